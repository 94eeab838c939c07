"""`reverie data import SOURCE DEST`: a dataset out of other formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.commands.arguments import Parser
from reverie.orchestration.command_name import reverie_command

if TYPE_CHECKING:
    from reverie.interop.dataset_import import Imported

_DESCRIPTION = """\
Make a dataset in the new folder DEST out of SOURCE, which is one of

  FOLDER or FILE.npz      npz files, one per episode, in the layout of the older Dreamer codes
  FOLDER or FILE.hdf5     HDF5: observations, actions, rewards, terminals [, timeouts], flat or one group per episode
  FOLDER or minari:ID     a Minari dataset that is on this machine

Good episodes are kept. Whatever is wrong with the others is listed with its file, key and step. The exit code is
0 when at least one episode was good and 2 when none was; then nothing is written. HDF5 and Minari need
pip install 'reverie[data]'."""

_EPILOG = """\
examples:
  %(prog)s train_eps data/walker
  %(prog)s halfcheetah_medium-v2.hdf5 data/cheetah --task gym_HalfCheetah-v5
  %(prog)s pendulum.h5 data/pendulum --action-range -2 2
  %(prog)s minari:D4RL/door/human-v2 data/door"""


def run(arguments: list[str]) -> int:
    parser = Parser("data", description=_DESCRIPTION, epilog=_EPILOG)
    parser.prog = reverie_command("data", "import")
    parser.add_argument("source", metavar="SOURCE", help="where the episodes are")
    parser.add_argument("dest", metavar="DEST", type=Path, help="the folder to make")
    parser.add_argument("--task", metavar="TASK", help="the task that was played, for the record")
    parser.add_argument(
        "--action-range",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="the range of continuous actions, which becomes [-1, 1] (default: they are in [-1, 1])",
    )
    parser.add_argument(
        "--actions",
        choices=("auto", "vector"),
        default="auto",
        help="whether actions that are one-hot in every row are choices (auto, the default) or vectors",
    )
    given = parser.parse_args(arguments)
    low, high = given.action_range or (-1.0, 1.0)
    if not low < high:
        parser.error(f"--action-range must rise, got {low:g} {high:g}")

    from reverie.commands.dataset_words import summary
    from reverie.interop.dataset_import import import_dataset, opened_source
    from reverie.interop.episode_forms import ActionReading
    from reverie.types import ReverieError

    kind = "vector" if given.action_range else given.actions
    reading = ActionReading(low=low, high=high, kind=kind)
    source = opened_source(given.source)
    if source.spaces is not None and reading != ActionReading():
        parser.error(f"{given.source} says itself what its actions are: leave out --action-range and --actions")
    imported = import_dataset(source, given.dest, reading=reading, task=given.task)
    _report(imported)
    if imported.index is None:
        raise ReverieError(f"`{given.source}` holds no good episode, so {given.dest} was not written")
    print(f"{given.dest}: {summary(imported.index)}")
    return 0


def _report(imported: Imported) -> None:
    for text, count in imported.notes.items():
        print(f"note ({count:,} {'time' if count == 1 else 'times'}): {text}.")
    if imported.findings:
        places = len({finding.where for finding in imported.findings})
        print(f"left out ({places:,}), because of:", file=sys.stderr)
        for finding in imported.findings:
            print(f"  {finding}", file=sys.stderr)
