"""Random streams with names: one generator per consumer, each derived from (seed, name, rank)."""

from __future__ import annotations

import hashlib

import torch

from reverie.types import Mode, State

ACTING = "act/"
"""Names of the streams that policies draw from begin like this and go on with the mode."""


def derived_seed(seed: int, name: str, rank: int = 0) -> int:
    """A 63-bit seed that depends on all three and on nothing else (not on Python's hash seed)."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class RandomStreams:
    """All generators of a run. A stream begins the first time it is asked for and is saved from then on."""

    def __init__(self, seed: int, *, device: torch.device, rank: int = 0) -> None:
        self._seed = seed
        self._rank = rank
        self._device = device
        self._streams: dict[str, torch.Generator] = {}

    def stream(self, name: str, *, device: torch.device | None = None) -> torch.Generator:
        """``device`` None is that of the run; another one must be named when the stream begins."""
        if name not in self._streams:
            generator = torch.Generator(device or self._device)
            generator.manual_seed(derived_seed(self._seed, name, self._rank))
            self._streams[name] = generator
        return self._streams[name]

    def streams(self) -> list[torch.Generator]:
        """Those that have begun on the device of the run."""
        return [one for _, one in self._on_device()]

    def acting_streams(self, mode: Mode) -> list[torch.Generator]:
        """Those among them that policies draw from in that mode."""
        return [one for name, one in self._on_device() if name.startswith(f"{ACTING}{mode}")]

    def learning_streams(self) -> list[torch.Generator]:
        """All others. A graph that draws from a stream must not be replayed beside another one that could."""
        return [one for name, one in self._on_device() if not name.startswith(ACTING)]

    def _on_device(self) -> list[tuple[str, torch.Generator]]:
        return [(name, one) for name, one in self._streams.items() if one.device.type == self._device.type]

    def get_state(self) -> State:
        return {name: generator.get_state() for name, generator in self._streams.items()}

    def set_state(self, state: State) -> None:
        """A stream that was saved on another kind of device begins anew: its state has no meaning here."""
        for name, value in state.items():
            generator = self.stream(name)
            if value.numel() == generator.get_state().numel():
                generator.set_state(value.cpu())
