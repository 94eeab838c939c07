"""What is wrong with data, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: the file (and the episode in it), the key and the first step that show it, as far as they apply."""

    where: str
    what: str
    key: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        place = [self.where, *([self.key] if self.key is not None else [])]
        place += [f"step {self.step}"] if self.step is not None else []
        return f"{', '.join(place)}: {self.what}"
