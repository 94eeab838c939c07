"""Copies of parameters for kernels of our own: in the type that products read, and side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 4096
"""Numbers that one program copies."""


class CopiedParameters:
    """Parameters keep their addresses for as long as they live, so one launch for each type copies them all."""

    def __init__(self) -> None:
        self._jobs: dict[torch.dtype, list[tuple[Tensor, Tensor, int]]] = {}
        self._launches: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def of(
        self, parameters: Sequence[Tensor], dtype: torch.dtype = torch.float32, columns: slice = slice(None)
    ) -> Tensor:
        """Room for some columns of all ``parameters``, which have one shape: [len(parameters), ...]."""
        like = parameters[0].detach()[..., columns]
        room = torch.empty(len(parameters), *like.shape, dtype=dtype, device=like.device)
        for parameter, place in zip(parameters, room.unbind(), strict=True):
            assert parameter.is_contiguous()
            self._jobs.setdefault(dtype, []).append((parameter.detach()[..., columns], place, parameter.shape[-1]))
        self._launches = None
        return room

    def refresh(self) -> None:
        """Copy the parameters as they are now."""
        from reverie.components.networks.copy_kernel import copy_kernel  # Triton is not everywhere where torch is

        if self._launches is None:
            self._launches = [_launch(jobs) for jobs in self._jobs.values()]
        for jobs, blocks, like in self._launches:
            copy_kernel[(len(blocks),)](jobs, blocks, like, BLOCK=_BLOCK)


def _launch(jobs: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    table = [
        (source.data_ptr(), place.data_ptr(), place.numel(), place.shape[-1], stride) for source, place, stride in jobs
    ]
    blocks = [(number, start) for number, job in enumerate(table) for start in range(0, job[2], _BLOCK)]
    place = jobs[0][1]
    return torch.tensor(table, device=place.device), torch.tensor(blocks, device=place.device), place
