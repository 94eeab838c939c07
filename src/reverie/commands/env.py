"""`reverie env add NAME` and `reverie env check TASK`."""

from __future__ import annotations

import importlib

from reverie.commands.arguments import Parser

_DESCRIPTION = """\
Look after environments.

  add NAME      build an isolated interpreter for a simulator that needs old packages
  check TASK    step a task and say what an agent will see of it, and what is wrong with it"""

_EPILOG = "`%(prog)s add --help` and `%(prog)s check --help` say more."

_COMMANDS = {"add": "env_add", "check": "env_check"}
"""Command name to its module under `reverie.commands`."""


def run(arguments: list[str]) -> int:
    parser = Parser("env", description=_DESCRIPTION, epilog=_EPILOG, usage="%(prog)s add NAME | check TASK")
    parser.add_argument("command", choices=_COMMANDS)
    command = parser.parse_args(arguments[:1]).command
    return importlib.import_module(f"reverie.commands.{_COMMANDS[command]}").run(arguments[1:])
