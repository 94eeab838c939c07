"""Which config files exist: the packaged ones and those of a folder given with --config-dir."""

from __future__ import annotations

import re
from pathlib import Path

import reverie

CONFIGS = Path(reverie.__file__).absolute().parent / "configs"
"""The packaged config files. A path and not a module, so that Hydra finds them without an `__init__.py` in each."""

GROUPS = ("experiment", "workflow", "components", "controller", "buffer", "environment", "phases", "size", "runtime")
"""The folders of `configs/`; `GROUP=NAME` on the command line chooses a file."""


def options(group: str, config_dir: Path | None = None) -> dict[str, str]:
    """Name and description of every config in ``group``, in order. The description is the file's first comment."""
    folders = [root / group for root in (CONFIGS, config_dir) if root is not None]
    found = [file for folder in folders for file in folder.glob("*.yaml")]
    return {file.stem: _description(file) for file in sorted(found, key=_rank)}


def default_experiment() -> str:
    """What plain `reverie train` runs, by the defaults list of config.yaml."""
    text = (CONFIGS / "config.yaml").read_text(encoding="utf-8")
    lines = (line.strip().removeprefix("- ") for line in text.splitlines())
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("experiment:"))


def experiments_text() -> str:
    """The experiments as aligned lines for a help page."""
    default = default_experiment()
    found = options("experiment")
    width = max(len(name) for name in found)
    return "\n".join(
        f"  {name:<{width}}  {text}{' (the default)' if name == default else ''}" for name, text in found.items()
    )


def _rank(file: Path) -> tuple[int, str]:
    """Sizes from small to large, everything else by name."""
    width = re.search(r"^deter: (\d+)", file.read_text(encoding="utf-8"), flags=re.M)
    return int(width[1]) if width and file.parent.name == "size" else 0, file.name


def _description(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.removeprefix("#").strip().startswith("@"):
            return line.removeprefix("#").strip()
    return ""
