"""One step of a policy on tensors that stay where they are: a few copies, one recorded graph, and one wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Generator, Tensor

from reverie.runtime.capture import Captured
from reverie.runtime.packed_tensors import PackedTensors
from reverie.types import Carry, Metrics, Mode, Observation, Policy, Row

_OBS = "obs/"
_STORED = "stored/"


class RecordedStep:
    """``policy`` with so many environments in one mode. Without a CUDA device the same step runs unrecorded.

    A call waits for the device, so that the next one may write where this one has read.
    """

    def __init__(
        self,
        policy: Policy,
        carry: Carry,
        seen: Observation,
        *,
        mode: Mode,
        device: torch.device,
        generators: Callable[[], Iterable[Generator]],
        beside: torch.cuda.Stream | None = None,
        row_on_host: bool = False,
    ) -> None:
        """``carry`` and ``seen`` are examples. ``beside`` is a stream for this work, where it is not the current one.

        ``row_on_host``: rows are wanted in the memory of the host.
        """
        self._policy, self._device = policy, device
        self._mode: Mode = mode
        self._beside, self._row_on_host = beside, row_on_host
        self._seen = PackedTensors(_parts(seen), device)
        self._carry = {key: torch.empty_like(value) for key, value in carry.items()}
        self._given: PackedTensors | None = None
        """The action, then what is stored. Made when the policy has acted once."""
        self._run: Callable[[], Metrics] = self._acted
        self._arrived: torch.cuda.Event | None = None
        if device.type == "cuda":
            switch = "captures_acting"
            self._run = Captured(self._acted, name="acting", generators=generators, stream=beside, switch=switch)
            self._arrived = torch.cuda.Event()

    def __call__(self, carry: Carry, seen: Observation, *, after: torch.cuda.Event | None) -> tuple[Carry, Tensor, Row]:
        """What follows on ``carry``, the action on the host, and the row; the first two until the next call.

        The device does not begin before ``after``.
        """
        main = torch.cuda.current_stream(self._device) if self._beside is not None else None
        with nullcontext() if self._beside is None else torch.cuda.stream(self._beside):
            self._join(main, after, is_known=carry is self._carry)
            if carry is not self._carry:
                for key, value in self._carry.items():
                    value.copy_(carry[key])
            for key, value in _parts(seen).items():
                self._seen.on_host[key].copy_(value)
            self._seen.send()
            self._run()
            assert self._given is not None
            self._given.receive(only_first=not self._row_on_host)
            row = None if self._row_on_host else self._row(main)
            if self._arrived is not None:
                self._arrived.record()
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._carry, self._given.on_host["action"], row or self._host_row(seen)

    def _join(self, main: torch.cuda.Stream | None, after: torch.cuda.Event | None, *, is_known: bool) -> None:
        """Let the stream beside the main one wait for what it needs from there."""
        if self._beside is None or main is None:
            return
        if after is not None:
            self._beside.wait_event(after)
        is_warm = isinstance(self._run, Captured) and self._run.is_recorded
        if not is_known or not is_warm:  # a carry from elsewhere, tensors that are made at a first use
            self._beside.wait_stream(main)

    @torch.no_grad()
    def _acted(self) -> Metrics:
        seen = _observation(self._seen.on_device)
        carry, action, stored = self._policy.act(self._carry, seen, mode=self._mode)
        given = {"action": action, **{f"{_STORED}{name}": value for name, value in stored.items()}}
        if self._given is None:
            self._given = PackedTensors(given, self._device)
        for name, value in given.items():
            self._given.on_device[name].copy_(value)
        for key, value in carry.items():
            assert value.dtype == self._carry[key].dtype, "a recorded step cannot change the form of what it remembers"
            self._carry[key].copy_(value)
        return {}

    def _row(self, user: torch.cuda.Stream | None) -> Row:
        assert self._given is not None
        return _complete(_observation(self._seen.copy_on_device(user)), self._given.copy_on_device(user))

    def _host_row(self, seen: Observation) -> Row:
        assert self._given is not None
        return _complete(seen, self._given.copy_on_host())


def _parts(seen: Observation) -> dict[str, Tensor]:
    flags = {"is_first": seen.is_first, "is_last": seen.is_last, "is_terminal": seen.is_terminal}
    return {**{f"{_OBS}{key}": value for key, value in seen.obs.items()}, "reward": seen.reward, **flags}


def _observation(parts: dict[str, Tensor]) -> Observation:
    return Observation(
        obs={name.removeprefix(_OBS): value for name, value in parts.items() if name.startswith(_OBS)},
        reward=parts["reward"],
        is_first=parts["is_first"],
        is_last=parts["is_last"],
        is_terminal=parts["is_terminal"],
    )


def _complete(seen: Observation, given: dict[str, Tensor]) -> Row:
    stored = {name.removeprefix(_STORED): value for name, value in given.items() if name != "action"}
    return Row.complete(seen, given["action"], stored)
