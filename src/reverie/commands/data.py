"""`reverie data import | info | export`."""

from __future__ import annotations

import importlib

from reverie.commands.arguments import Parser

_DESCRIPTION = """\
Datasets: episodes on disk that a run can learn from without an environment.

  import SOURCE DEST    make one from npz episodes, HDF5 files or a Minari dataset
  info PATH             what it holds, and whether it is whole
  export PATH DEST      write its episodes as npz files or as one HDF5 file"""

_EPILOG = "`%(prog)s import --help` and so on say more; `reverie record` makes a dataset by playing."

_COMMANDS = {"import": "data_import", "info": "data_info", "export": "data_export"}
"""Command name to its module under `reverie.commands`."""


def run(arguments: list[str]) -> int:
    usage = "%(prog)s import SOURCE DEST | info PATH | export PATH DEST"
    parser = Parser("data", description=_DESCRIPTION, epilog=_EPILOG, usage=usage)
    parser.add_argument("command", choices=_COMMANDS)
    command = parser.parse_args(arguments[:1]).command
    return importlib.import_module(f"reverie.commands.{_COMMANDS[command]}").run(arguments[1:])
