"""`reverie plan EXPERIMENT`: memory, disk and hours of a run on this machine, from a short probe."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from reverie.commands.arguments import Parser, positive

if TYPE_CHECKING:
    from reverie.probe import Probed

_USAGE = "%(prog)s EXPERIMENT [KEY=VALUE ...] [--seconds N] [--json] [--config-dir FOLDER]"

_DESCRIPTION = """\
Say what a run would need on this machine: RAM, GPU memory, disk and hours, and what is first in its way.

The experiment is composed as `train` would do it, and a short real run of it is made in a temporary folder: steps in
its environments, updates with its batches, a checkpoint. What comes after `train` may come after `plan`.

The exit code is 0 when everything fits, 1 when something does not, and 2 when the arguments are wrong."""

_EPILOG = """\
examples:
  %(prog)s dreamer_cartpole
  %(prog)s dreamer_atari100k task=atari_pong size=12m
  %(prog)s experiment=dreamer_dmc_vision task=dmc_walker_walk --seconds 20 --json"""

_SECONDS = 60


def run(arguments: list[str]) -> int:
    parser = Parser("plan", description=_DESCRIPTION, epilog=_EPILOG, usage=_USAGE)
    parser.add_argument("words", metavar="EXPERIMENT [KEY=VALUE ...]", nargs="*", help="what `train` would be given")
    parser.add_argument(
        "--seconds", type=positive, default=_SECONDS, metavar="N", help=f"length of the probe (default: {_SECONDS})"
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="FOLDER", help="config files of your own")
    given = parser.parse_intermixed_args(arguments)
    overrides = _overrides(given.words, parser)
    with _stopping():
        from reverie.commands.plan_report import as_json, shown
        from reverie.plan import planned

        plan = planned(_probed(overrides, given.config_dir, given.seconds))
    if given.json:
        print(json.dumps(as_json(plan), indent=2))
    else:
        shown(plan)
    return 0 if plan.fits else 1


def _overrides(words: list[str], parser: Parser) -> list[str]:
    """The words as `train` takes them: the one without a value is the name of the experiment."""
    names = [word for word in words if "=" not in word and not word.startswith("~")]
    overrides = [word for word in words if word not in names]
    named = [word for word in overrides if word.removeprefix("+").startswith("experiment=")]
    if len(names) + len(named) != 1:
        given = " ".join([*names, *named])
        parser.error(f"one EXPERIMENT is needed, got {given}" if given else "EXPERIMENT is needed: name what to plan")
    return [*(f"experiment={name}" for name in names), *overrides]


def _probed(overrides: list[str], config_dir: Path | None, seconds: int) -> Probed:
    from omegaconf.errors import OmegaConfBaseException

    from reverie.commands.composition import composed_run
    from reverie.configuration import check_sections, omegaconf_sentence
    from reverie.probe import probed
    from reverie.types import ReverieError

    config = composed_run(overrides, config_dir)
    check_sections(config)
    _say(f"Probing for about {seconds} seconds (longer where one update is) ...")
    try:
        return probed(config, seconds=seconds, say=_say)
    except OmegaConfBaseException as error:  # a reference to nowhere or a missing value, found when it was needed
        raise ReverieError(omegaconf_sentence(error)) from error


def _say(sentence: str) -> None:
    """Beside the plan, which may be read by a program."""
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that the folder and the simulators of a probe are cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)
