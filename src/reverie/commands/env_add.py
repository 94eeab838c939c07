"""`reverie env add NAME`: an interpreter of its own for a simulator that cannot live beside today's packages."""

from __future__ import annotations

from reverie.commands.arguments import Parser
from reverie.environments.isolated.recipes import RECIPES
from reverie.orchestration.command_name import reverie_command

_DESCRIPTION = """\
Build an isolated interpreter: a Python of its own with the old packages that a simulator needs.

It is checked with one real step. A second call does nothing while the recipe stays the same.
known: {known}"""

_EPILOG = """\
examples:
  %(prog)s procgen
  %(prog)s my_simulator.toml     your own recipe; docs/guides/environments/isolated.md shows one

Interpreters lie in $REVERIE_HOME/interpreters, by default in ~/.local/share/reverie/interpreters."""


def run(arguments: list[str]) -> int:
    from reverie.environments.isolated.interpreters import add_interpreter

    parser = Parser("env", description=_DESCRIPTION.format(known=", ".join(RECIPES)), epilog=_EPILOG)
    parser.prog = reverie_command("env", "add")
    parser.add_argument("name", metavar="NAME", help="a known name, or the file of a recipe (.toml)")
    add_interpreter(parser.parse_args(arguments).name, say=lambda text: print(text, flush=True))
    return 0
