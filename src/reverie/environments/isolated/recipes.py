"""What an isolated interpreter is made of: Reverie's own recipes, and those that a user writes as TOML."""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.types import ReverieError


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A program outside Python that the simulator needs, such as a compiler."""

    command: tuple[str, ...]
    """Prints its version."""
    expects: str
    """A pattern that must occur in what it prints."""
    cure: str
    """What to install, after "needs"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to build one interpreter, and how to see that it works."""

    name: str
    python: tuple[str, ...]
    """Versions that will do, such as "3.9", the best one first."""
    requirements: tuple[str, ...]
    check: str
    """Python code that imports the simulator and takes one real step."""
    build_requirements: tuple[str, ...] = ()
    """What packages without a wheel are built with; empty for what each of them asks for."""
    tools: tuple[Tool, ...] = ()


_PROCGEN_CHECK = """\
import numpy
from procgen import ProcgenGym3Env
game = ProcgenGym3Env(num=1, env_name="coinrun", num_threads=0)
game.act(numpy.array([7]))
assert game.observe()[1]["rgb"].shape == (1, 64, 64, 3)"""

_MINECRAFT_CHECK = """\
import os
if not os.environ.get("DISPLAY"):
    os.environ.setdefault("MINERL_HEADLESS", "1")
import gym, minerl
game = gym.make("MineRLTreechop-v0")
game.reset()
game.step(game.action_space.noop())
game.close()"""

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="procgen",
            python=("3.11", "3.12"),
            requirements=("procgen-mirror==0.10.7", "gym3==0.3.3", "gym==0.26.2", "numpy==1.26.4"),
            check=_PROCGEN_CHECK,
        ),
        Recipe(
            name="minecraft",
            python=("3.9", "3.8"),
            # gym 0.18 to 0.19 say of themselves what today's installers refuse to read; MineRL runs on 0.17.3 too.
            requirements=("minerl==0.4.4", "gym==0.17.3", "numpy<1.24"),
            check=_MINECRAFT_CHECK,
            build_requirements=("setuptools<60", "wheel<0.38"),
            tools=(
                Tool(
                    command=("javac", "-version"),
                    expects=r"javac 1\.8\.",
                    cure="a JDK 8 (Debian: openjdk-8-jdk), with `javac` of that version on PATH",
                ),
                Tool(command=("xvfb-run", "--help"), expects="Usage", cure="xvfb (Debian: xvfb) where no screen is"),
            ),
        ),
    )
}
"""The recipes that come with Reverie, by name."""


def chosen_recipe(name: str) -> Recipe:
    """The recipe of that name, or the one in the file ``name`` when it ends in .toml."""
    if name.endswith(".toml"):
        return _read(Path(name))
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join(RECIPES)
    raise ReverieError(f"There is no recipe `{name}`: {hint}(known: {known}; or give a recipe of your own, FILE.toml)")


def _read(path: Path) -> Recipe:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReverieError(f"The recipe {path} cannot be read ({error.strerror}): check the path.") from error
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ReverieError(f"The recipe {path} is not valid TOML: {error}") from error
    tools = given.pop("tools", [])
    if not isinstance(tools, list):
        raise ReverieError(f"The recipe {path} has `tools` of the wrong kind: write one [[tools]] table for each.")
    recipe = _made(Recipe, given, where=str(path))
    recipe = dataclasses.replace(recipe, tools=tuple(_made(Tool, tool, where=f"{path}, tools") for tool in tools))
    _check(recipe, path)
    return recipe


def _made(kind: type[Any], given: Any, *, where: str) -> Any:
    """An object of the dataclass ``kind``, whose fields are texts and tuples of texts."""
    if not isinstance(given, dict):
        raise ReverieError(f"{where} must be a table, got {given!r}.")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name != "tools"}
    for key in given:
        if key not in fields:
            raise ReverieError(f"{where} has an unknown key `{key}` (valid: {', '.join(fields)}).")
    for key, field in fields.items():
        if key not in given and field.default is dataclasses.MISSING:
            raise ReverieError(f"{where} lacks the key `{key}` (see the guide on isolated interpreters).")
    values: dict[str, Any] = {}
    for key, value in given.items():
        is_list = fields[key].type != "str"
        good = isinstance(value, list) and all(isinstance(one, str) for one in value) if is_list else type(value) is str
        if not good:
            raise ReverieError(
                f"{where} has `{key}` of the wrong kind: it must be {'a list of texts' if is_list else 'a text'}."
            )
        values[key] = tuple(value) if is_list else value
    return kind(**values)


def _check(recipe: Recipe, path: Path) -> None:
    if not re.fullmatch(r"[A-Za-z][\w-]*", recipe.name):
        raise ReverieError(f"The recipe {path} has the name {recipe.name!r}: use letters, digits, `_` and `-`.")
    if recipe.name in RECIPES:
        raise ReverieError(f"The recipe {path} has the name of one of Reverie's own, {recipe.name}: choose another.")
    bad = [version for version in recipe.python if not re.fullmatch(r"3\.\d+", version)]
    if bad or not recipe.python:
        raise ReverieError(f'The recipe {path} needs `python` as versions such as ["3.8", "3.9"], got {recipe.python}.')
    if any(not tool.command for tool in recipe.tools):
        raise ReverieError(f"The recipe {path} has a tool with an empty `command`.")
    for tool in recipe.tools:
        try:
            re.compile(tool.expects)
        except re.error as error:
            raise ReverieError(
                f"The recipe {path} has `expects` {tool.expects!r}, no valid pattern: {error}."
            ) from error
