"""The habits that tools can check: nothing unfinished, linted, formatted, typed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import reverie

PACKAGE = Path(reverie.__file__).parent
UNFINISHED = ("NotImplementedError", "TODO", "FIXME", "XXX")
BANNED_FILES = {"utils.py", "helpers.py", "common.py", "misc.py"}


def test_nothing_is_unfinished() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}: {word}"
        for path in PACKAGE.rglob("*.py")
        for word in UNFINISHED
        if word in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_files_are_nouns() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if path.name in BANNED_FILES] == []


def swallowed(tree: ast.AST) -> list[int]:
    """Lines of handlers that do nothing with what they catch."""
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return [node.lineno for node in handlers if all(isinstance(line, ast.Pass) for line in node.body)]


def test_no_error_is_swallowed() -> None:
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    pass")) == [3]
    found = {str(path): swallowed(ast.parse(path.read_text(encoding="utf-8"))) for path in PACKAGE.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


def assert_passes(command: list[str], repo_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=repo_root, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_ruff_finds_nothing(repo_root: Path) -> None:
    assert_passes(["ruff", "check", "--no-cache", "."], repo_root)


def test_everything_is_formatted(repo_root: Path) -> None:
    assert_passes(["ruff", "format", "--check", "--no-cache", "."], repo_root)


@pytest.mark.timeout(700)
def test_types_agree(repo_root: Path) -> None:
    assert_passes(["basedpyright", "--pythonpath", sys.executable, "src"], repo_root)
