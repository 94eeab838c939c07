"""The command line: `reverie COMMAND ...`. Finds the command, and turns a mendable problem into one sentence.

Nothing here imports torch: `--help` must answer at once.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from importlib.metadata import PackageNotFoundError, version

from reverie.orchestration.command_name import reverie_command

_COMMANDS = {
    "train": ("train", "train an agent; without arguments, the default experiment"),
    "plan": ("plan", "say what a run would need here: RAM, GPU memory, disk and hours, from a one-minute probe"),
    "bench": ("bench", "measure how fast one update is here, whole and in parts"),
    "resume": ("resume", "go on with a run that was interrupted, exactly where it was saved"),
    "eval": ("evaluate", "play episodes with a trained agent and print the scores"),
    "record": ("record", "play a task at random or with a trained agent, and keep the episodes as a dataset"),
    "data": ("data", "import, look at and export datasets, which `train experiment=dreamer_offline` learns from"),
    "tasks": ("tasks", "list the tasks an agent can be trained on, and whether they run here"),
    "doctor": ("doctor", "check this machine: Python, torch, GPU, disk, and one step in every suite"),
    "replay-update": ("replay_update", "execute the update of a black box again and name what is not finite"),
    "env": ("env", "add an interpreter for an old simulator, or check a task, your own too"),
    "test": ("test", "run the tests of this checkout"),
}
"""Command name to its module under `reverie.commands` and a line of help."""

_HELP = """\
usage: {reverie} COMMAND [ARGUMENTS]

Reverie trains agents that learn a model of their world and learn to act inside it.

commands:
{commands}

`{reverie} train` with no arguments runs the experiment `{default}` and needs no GPU.

experiments ({reverie} train experiment=NAME):
{experiments}

examples:
  {reverie} train                                           the default experiment, in a new folder under runs/
  {reverie} train experiment={default} experiment.seed=3
  {reverie} eval runs/FOLDER --episodes 20

`{reverie} COMMAND --help` says more about one command; `{reverie} --version` prints the version.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, that of a ReverieError, or the command's own."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has left (`| head`). The interpreter flushes once more at exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("reverie: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        from reverie.types import ReverieError  # imports torch: only once something went wrong

        if not isinstance(error, ReverieError):
            raise
        print(f"reverie: {error}", file=sys.stderr)
        return error.exit_code


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_help(), end="")
        return 0
    command, *rest = arguments
    if command == "--version":
        print(f"reverie {_version()}")
        return 0
    if command not in _COMMANDS:
        print(f"reverie: {_unknown(command)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"reverie.commands.{_COMMANDS[command][0]}")
    try:
        return module.run(rest)
    except SystemExit as leaving:  # argparse and Hydra leave this way after printing help
        return leaving.code if isinstance(leaving.code, int) else 0


def _unknown(command: str) -> str:
    near = difflib.get_close_matches(command, _COMMANDS, n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    kind = "option" if command.startswith("-") else "command"
    return f"unknown {kind} `{command}`: {hint}(commands: {', '.join(_COMMANDS)})"


def _help() -> str:
    from reverie.commands.catalogue import default_experiment, experiments_text

    commands = "\n".join(f"  {name:<15}{text}" for name, (_, text) in _COMMANDS.items())
    return _HELP.format(
        reverie=reverie_command(),
        commands=commands,
        default=default_experiment(),
        experiments=experiments_text(),
    )


def _version() -> str:
    try:
        return version("reverie")
    except PackageNotFoundError:
        return "(run from source, not installed)"
