"""How to make one simulator, in this process or in another one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reverie.environments.base import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Maker:
    """A class or function by name, and its arguments, which pass through JSON on their way to another process."""

    module: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    interpreter: str | None = None
    """The isolated interpreter that the simulator needs; None for Reverie's own."""
    needs_rendering: bool = False
    summary: Callable[[Mapping[str, float]], Mapping[str, float]] = Environment.summary
    """See `Environment.summary`."""

    def __call__(self) -> Environment:
        return getattr(importlib.import_module(self.module), self.name)(**self.arguments)

    def spec(
        self,
        *,
        count: int,
        processors: Sequence[int],
        awake_seconds: float,
        sys_path: list[str] | None,
        file: str | None,
    ) -> bytes:
        """What `worker_server.py` is told first: what to make and how often, and where and how to wait for work."""
        spec = {
            "count": count,
            "processors": list(processors),
            "awake_seconds": awake_seconds,
            "sys_path": sys_path,
            "file": file,
            "module": self.module,
            "name": self.name,
            "arguments": dict(self.arguments),
        }
        return json.dumps(spec).encode()
