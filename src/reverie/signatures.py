"""What a callable accepts, read from its signature and annotations, and said in words for people."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from reverie.types import ReverieError

Parameters = Mapping[str, inspect.Parameter]

_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    None: "null",
    types.NoneType: "null",
}


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that looks most like ``name``, or None when none looks like it. Case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def unknown_key(key: str, valid: Sequence[str], *, path: str) -> ReverieError:
    """The error for a key that does not exist under ``path``, with the nearest one that does."""
    near = nearest(key, valid)
    hint = f": did you mean `{joined(path, near)}`?" if near else ""
    return ReverieError(f"unknown key `{joined(path, key)}`{hint} (valid: {', '.join(valid) or 'none'})")


def joined(path: str, key: object) -> str:
    """The dotted path of ``key`` under ``path``, which is empty at the top."""
    return f"{path}.{key}" if path else str(key)


def parameters(target: Callable[..., Any]) -> Parameters:
    """The parameters of ``target`` by name, ``self`` left out."""
    try:
        return inspect.signature(target).parameters
    except ValueError as error:  # some builtins have none
        name = f"{target.__module__}.{target.__qualname__}"
        raise ReverieError(
            f"`{name}` does not say which arguments it takes: wrap it in a function that does"
        ) from error


def keywords(target: Callable[..., Any]) -> list[str]:
    """Names that can be given as keyword arguments."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in parameters(target).items() if parameter.kind in by_keyword]


def takes_any_keyword(target: Callable[..., Any]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters(target).values())


def required(target: Callable[..., Any]) -> list[str]:
    """Keyword names without a default."""
    found = parameters(target)
    return [name for name in keywords(target) if found[name].default is inspect.Parameter.empty]


def hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the parameters as objects. A name that only type checkers import counts as ``Any``."""
    owner = _annotated(target)
    unknown: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(owner, localns=unknown) if unknown else get_type_hints(owner)
        except NameError as error:
            if error.name is None or error.name in unknown:
                raise
            unknown[error.name] = Any


def _annotated(target: Callable[..., Any]) -> Any:
    """What carries the annotations: of a class its ``__init__``, or its ``__new__`` where it has no other."""
    if not inspect.isclass(target) or dataclasses.is_dataclass(target):
        return target
    return target.__new__ if target.__init__ is object.__init__ else target.__init__


def is_open(annotation: Any) -> bool:
    """Whether every value fits."""
    return annotation in (Any, object, inspect.Parameter.empty) or isinstance(annotation, TypeVar)


def is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def is_dataclass_type(annotation: Any) -> bool:
    return inspect.isclass(annotation) and dataclasses.is_dataclass(annotation)


def is_sequence(annotation: Any) -> bool:
    """A list, tuple, set or abstract sequence, with or without its element type; text is none."""
    kind = get_origin(annotation) or annotation
    return inspect.isclass(kind) and kind is not str and issubclass(kind, (Sequence, set, frozenset))


def is_mapping(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    return inspect.isclass(kind) and issubclass(kind, Mapping)


def element_types(annotation: Any, length: int) -> list[Any] | None:
    """One annotation per element of a sequence of ``length``, or None where the annotation fixes another length."""
    inner = get_args(annotation)
    if get_origin(annotation) is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        return list(inner) if len(inner) == length else None
    return [inner[0] if inner else Any] * length


def description(annotation: Any) -> str:
    """The values that ``annotation`` stands for: "an integer", "one of 'a', 'b'", "a list, each an integer"."""
    if annotation in _NAMES:
        return _NAMES[annotation]
    inner = get_args(annotation)
    if is_union(annotation):
        return " or ".join(description(member) for member in inner)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in inner)
    if is_dataclass_type(annotation):
        return f"a mapping with the keys {', '.join(keywords(annotation))}"
    if is_mapping(annotation):
        return "a mapping" + (f", each value {description(inner[1])}" if inner and not is_open(inner[1]) else "")
    if is_sequence(annotation):
        return _sequence_description(annotation, inner)
    return f"a `_target_` node that makes a {getattr(annotation, '__name__', annotation)}"


def _sequence_description(annotation: Any, inner: tuple[Any, ...]) -> str:
    if get_origin(annotation) is tuple and Ellipsis not in inner:
        return f"a list of {len(inner)}: {', '.join(description(member) for member in inner)}"
    return "a list" + (f", each {description(inner[0])}" if inner and not is_open(inner[0]) else "")
