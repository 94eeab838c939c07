"""What every buffer offers to the loop, to workflows and to checkpoints."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeAlias

from torch import Tensor

from reverie.types import Batch, Row, RowIndex, State

Sampler: TypeAlias = "str | tuple[tuple[str, float], ...]"
"""The name of one, or several of them with the fraction of a batch that each chooses."""


class Buffer(Protocol):
    """Keeps rows and gives back windows of consecutive ones.

    Rows that can no longer change are offered as write-once chunks; everything else is in ``get_state``.
    """

    samplers: ClassVar[tuple[str, ...]]
    """Names that ``sample`` accepts, also with fractions."""

    is_on_device: bool
    """Whether batches are gathered where they are used, so that a CUDA graph can hold the calls of an update."""

    has_weights: bool
    """Whether batches come with weights that make up for what the sampler prefers."""

    stream_length: int
    """Rows of each stream that the buffer can hold."""

    @property
    def capacity(self) -> int:
        """Rows that it can hold over all streams."""
        ...

    def append(self, row: Row) -> None:
        """One row of every stream."""
        ...

    def can_sample(self, size: int, length: int, *, crosses_episodes: bool = True) -> bool:
        """Whether ``size`` different windows of ``length`` rows exist."""
        ...

    def could_sample(self, size: int, length: int) -> bool:
        """The same once the buffer is full: when False, waiting does not help."""
        ...

    def sample(self, size: int, length: int, *, sampler: Sampler, crosses_episodes: bool = True) -> Batch:
        """``size`` windows of ``length`` consecutive rows; ``crosses_episodes`` False: each inside one episode."""
        ...

    def prioritize(self, index: RowIndex, priority: Tensor, *, crosses_episodes: bool = True) -> None:
        """How much the windows at ``index`` are worth [B] to the sampler `prioritized` from now on."""
        ...

    def aged(self, stream: Tensor, age: Tensor) -> Batch:
        """Rows by their ``age`` [B, T] in each ``stream`` [B]: 0 is the newest. Draws nothing and changes nothing."""
        ...

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        """Replace what the policy stored with the last rows of a sampled batch."""
        ...

    def __len__(self) -> int:
        """Rows held, over all streams."""
        ...

    def closed_chunks(self) -> range: ...

    def chunk(self, index: int) -> dict[str, Tensor]: ...

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None: ...

    def get_state(self) -> State: ...

    def set_state(self, state: State) -> None: ...
