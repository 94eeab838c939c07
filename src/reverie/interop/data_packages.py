"""Packages for other formats of data, which the optional dependencies bring."""

from __future__ import annotations

import importlib
from types import ModuleType

from reverie.types import ReverieError


def data_package(name: str, *, what: str) -> ModuleType:
    """The imported package, or a sentence that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        why = " ".join(str(error).split())
        raise ReverieError(f"{what} needs the package {name} ({why}): run pip install 'reverie[data]'.") from error
