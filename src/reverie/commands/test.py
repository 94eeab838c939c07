"""`reverie test`: the tests of this checkout, on all its cores."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import reverie
from reverie.commands.arguments import Parser
from reverie.commands.system_libraries import install_packages
from reverie.runtime.processors import usable_processors

_DESCRIPTION = """\
Run the tests of this checkout with pytest, in parallel; further arguments go to pytest.

`--all` adds the long ones: many kills and resumes, and full learning runs. Every environment suite is tested, so the
system libraries that some of them need are installed first where that is possible (root on Debian or Ubuntu);
`--as-it-is` leaves the system alone."""

_EPILOG = """\
examples:
  %(prog)s
  %(prog)s --all
  %(prog)s tests/unit -k scheduler"""

_MAX_WORKERS = 8  # each grows to two or three gigabytes


def run(arguments: list[str]) -> int:
    parser = Parser("test", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--all", action="store_true", help="also the long tests")
    parser.add_argument("--as-it-is", action="store_true", help="install no system libraries")
    given, rest = parser.parse_known_args(arguments)
    root = checkout(Path(reverie.__file__))
    for module, package in (("pytest", "pytest"), ("xdist", "pytest-xdist")):
        _require(module, package)
    if not given.as_it_is:
        install_packages()
    command = [sys.executable, "-m", "pytest", *pytest_arguments(root, rest, is_complete=given.all)]
    # Tests start about a thousand processes: what Python has compiled for one should be there for the next.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, env=environment, check=False).returncode


def checkout(package_file: Path) -> Path:
    """The root of the source tree that holds the package; an installed package has no tests beside it."""
    root = package_file.resolve().parents[2]
    if not (root / "tests").is_dir() or not (root / "pyproject.toml").is_file():
        from reverie.types import ReverieError

        raise ReverieError(
            f"there are no tests beside the installed package in `{package_file.parent}`: "
            "clone the repository and run `./reverie test` in it"
        )
    return root


def pytest_arguments(root: Path, rest: list[str], *, is_complete: bool) -> list[str]:
    """What pytest is called with: our defaults where the user said nothing else."""
    has_workers = any(argument.startswith(("-n", "--numprocesses")) for argument in rest)
    has_paths = any(Path(argument.partition("::")[0]).exists() for argument in rest if not argument.startswith("-"))
    return [
        *("-c", str(root / "pyproject.toml"), "--rootdir", str(root)),
        # One more than there are processors: many tests wait for processes of their own.
        *([] if has_workers else ["-n", str(min(usable_processors() + 1, _MAX_WORKERS)), "--dist", "worksteal"]),
        *(["--all"] if is_complete else []),
        *rest,
        *([] if has_paths else [str(root / "tests")]),
    ]


def _require(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        from reverie.types import ReverieError

        raise ReverieError(f"the tests need {package}: install it with `pip install -e '.[dev]'`")
