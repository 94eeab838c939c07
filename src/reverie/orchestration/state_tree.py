"""A state tree taken apart into JSON (the structure) and named tensors (the arrays), and put together again.

In the JSON, lists, strings, booleans, None and ordinary numbers stand for themselves. Everything else is an object
with one key that says its kind: ``dict``, ``tuple``, ``tensor``, ``numpy`` (the value is the array's name), ``int``
(hex, for integers beyond 64 bits) and ``float`` (nan and the infinities). Array names are JSON pointers into the tree.
The order of keys is kept, so trees that are equal and were filled in the same order give equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.types import ReverieError, State

_MOST_NAMED = 3


def flattened(state: State) -> tuple[bytes, dict[str, Tensor]]:
    """The tree as JSON text and arrays by name. A value that no checkpoint can hold is a TypeError naming its place."""
    arrays: dict[str, Tensor] = {}
    structure = _encoded(state, "", arrays)
    return json.dumps(structure, allow_nan=False, indent=1).encode(), arrays


def unflattened(text: bytes, arrays: Mapping[str, Tensor]) -> State:
    """The tree that ``flattened`` took apart. Text of any other form is a ValueError."""
    try:
        state = _decoded(json.loads(text), arrays)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a state tree: {error}") from error
    if not isinstance(state, dict):
        raise ValueError("not a state tree: the outermost value is not a dict")
    return state


def compare_shapes(current: State, loaded: State, *, where: str) -> None:
    """Refuse a state whose arrays differ from this run's in name, shape or dtype. Values and devices may differ."""
    here, there = dict(_array_forms(current, "")), dict(_array_forms(loaded, ""))
    names = [*here, *(name for name in there if name not in here)]
    differing = [name for name in names if here.get(name) != there.get(name)]
    if not differing:
        return
    listed = "; ".join(
        f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
        for name in differing[:_MOST_NAMED]
    )
    rest = f"; and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
    raise ReverieError(
        f"{where} was made by a model of another size or with other components ({listed}{rest}): "
        "use the same `size=` and components as the run that wrote it"
    )


def _encoded(value: object, path: str, arrays: dict[str, Tensor]) -> object:
    # Exact types, not isinstance: a numpy float64 is a float too, and would come back as something else.
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if isinstance(value, int) and kind is int:
        return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor):
        arrays[path] = value
        return {"tensor": path}
    if isinstance(value, np.ndarray):
        arrays[path] = _tensor_of(value, path)
        return {"numpy": path}
    return _encoded_container(value, path, arrays)


def _encoded_container(value: object, path: str, arrays: dict[str, Tensor]) -> object:
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise TypeError(f"state at {path or '/'} has the key {key!r}; keys must be strings")
        return {"dict": {key: _encoded(item, _inside(path, key), arrays) for key, item in value.items()}}
    if type(value) is list or type(value) is tuple:
        items = [_encoded(item, _inside(path, str(index)), arrays) for index, item in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    raise TypeError(f"state at {path or '/'} is a {type(value).__name__}, which a checkpoint cannot hold")


def _decoded(value: Any, arrays: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"not a state tree: an object with the keys {sorted(value)}")
    ((kind, content),) = value.items()
    match kind:
        case "dict":
            return {key: _decoded(item, arrays) for key, item in content.items()}
        case "tuple":
            return tuple(_decoded(item, arrays) for item in content)
        case "tensor":
            return arrays[content]
        case "numpy":
            return arrays[content].numpy()
        case "int":
            return int(content, 16)
        case "float":
            return float(content)
        case _:
            raise ValueError(f"not a state tree: a value of kind {kind!r}")


def _tensor_of(array: np.ndarray, path: str) -> Tensor:
    # torch refuses negative strides and warns about read-only memory, so such arrays are copied.
    plain = array if array.flags.c_contiguous and array.flags.writeable else np.array(array, order="C")
    try:
        return torch.from_numpy(plain)
    except TypeError as error:
        raise TypeError(f"state at {path} is a numpy {array.dtype}, which a checkpoint cannot hold") from error


def _array_forms(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every array's name in dots, and its shape and dtype in words."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _array_forms(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _array_forms(item, f"{path}.{index}" if path else str(index))
    elif isinstance(value, Tensor | np.ndarray):
        yield path, f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def _inside(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
