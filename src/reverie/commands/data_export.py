"""`reverie data export PATH DEST`: the episodes of a dataset for other codes."""

from __future__ import annotations

from pathlib import Path

from reverie.commands.arguments import Parser
from reverie.orchestration.command_name import reverie_command

_DESCRIPTION = """\
Write the episodes of the dataset in folder PATH to DEST, in a format that other codes read.

  npz     a folder with one file per episode, in the layout of the older Dreamer codes
  hdf5    one file with a group per episode (needs h5py: pip install 'reverie[data]')

`import` reads both again, and gives the same rows."""

_EPILOG = """\
examples:
  %(prog)s data/cartpole exported --format npz
  %(prog)s data/cartpole cartpole.hdf5 --format hdf5"""


def run(arguments: list[str]) -> int:
    parser = Parser("data", description=_DESCRIPTION, epilog=_EPILOG)
    parser.prog = reverie_command("data", "export")
    parser.add_argument("path", metavar="PATH", type=Path, help="the folder of the dataset")
    parser.add_argument("dest", metavar="DEST", type=Path, help="the folder or file to make")
    parser.add_argument("--format", choices=("npz", "hdf5"), required=True, help="what to write")
    given = parser.parse_args(arguments)

    from reverie.datasets.dataset import Dataset
    from reverie.interop.dataset_export import FORMATS

    dataset = Dataset(given.path)
    FORMATS[given.format](dataset, given.dest)
    print(f"{given.dest}: {len(dataset.index.episodes):,} episodes, {dataset.index.rows:,} rows as {given.format}.")
    return 0
