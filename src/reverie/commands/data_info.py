"""`reverie data info PATH`: what a dataset holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.commands.arguments import Parser
from reverie.orchestration.command_name import reverie_command

if TYPE_CHECKING:
    from reverie.datasets.dataset import Dataset

_DESCRIPTION = """\
Say what the dataset in folder PATH holds, and whether its files are there and whole.

Without --verify only the presence and length of the files are checked; training checks every byte of them."""

_EPILOG = """\
examples:
  %(prog)s data/cartpole
  %(prog)s data/cartpole --verify --json"""


def run(arguments: list[str]) -> int:
    parser = Parser("data", description=_DESCRIPTION, epilog=_EPILOG)
    parser.prog = reverie_command("data", "info")
    parser.add_argument("path", metavar="PATH", type=Path, help="the folder of the dataset")
    parser.add_argument("--verify", action="store_true", help="read every file and compare its checksum")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args(arguments)

    from reverie.commands.dataset_words import description
    from reverie.datasets.dataset import Dataset
    from reverie.types import ReverieError

    dataset = Dataset(given.path)
    if problems := dataset.problems(reads_all=given.verify):
        raise ReverieError(f"the dataset {given.path} is damaged ({'; '.join(problems)}): restore these files")
    if given.json:
        print(json.dumps(_content(dataset)))
        return 0
    rows = description(dataset.index)
    width = max(map(len, rows))
    for heading, text in rows.items():
        print(f"{heading:<{width}}  {text}")
    return 0


def _content(dataset: Dataset) -> dict[str, object]:
    from dataclasses import asdict

    from reverie.datasets.spaces_json import spaces_content

    index = dataset.index
    return {
        "task": index.task,
        "origin": index.origin,
        "rows": index.rows,
        "episodes": [asdict(episode) for episode in index.episodes],
        "spaces": spaces_content(index.spaces),
        "bytes": index.size_bytes,
        "digest": index.digest,
    }
