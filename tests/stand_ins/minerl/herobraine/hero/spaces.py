"""As in MineRL, as far as values can be checked with them."""

from __future__ import annotations

from typing import Any

import numpy as np


class Dict:
    def __init__(self, spaces: dict[str, Any]) -> None:
        self.spaces = spaces

    def __contains__(self, value: dict[str, Any]) -> bool:
        return value.keys() == self.spaces.keys() and all(value[key] in self.spaces[key] for key in value)


class Box:
    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: Any) -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype

    def __contains__(self, value: Any) -> bool:
        array = np.asarray(value)
        is_kind = np.can_cast(array.dtype, self.dtype)
        return is_kind and array.shape == self.shape and bool(((array >= self.low) & (array <= self.high)).all())


class Discrete:
    def __init__(self, count: int) -> None:
        self.count = count

    def __contains__(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self.count


class Enum:
    def __init__(self, *values: str, default: str) -> None:
        self.values = np.array(sorted(values))
        self.default = default

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.values
