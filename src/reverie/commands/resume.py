"""`reverie resume RUN`: go on where the last checkpoint was saved."""

from __future__ import annotations

from pathlib import Path

from reverie.commands.arguments import Parser

_USAGE = "%(prog)s RUN [KEY=VALUE ...] [--allow PACKAGE]"

_DESCRIPTION = """\
Go on with the run in folder RUN, from its newest whole checkpoint.

On the same machine and versions the result is the same as that of a run that was never interrupted.
What may change, given as key=value: durations, logging, pictures, checkpointing, runtime, experiment.device,
buffer.device, the path of a dataset and training.max_skipped_updates."""

_EPILOG = """\
examples:
  %(prog)s runs/dreamer_cartpole-20260101-120000
  %(prog)s runs/FOLDER training.total_timesteps=100000     train longer, also after the end
  %(prog)s runs/FOLDER --allow my_package"""


def run(arguments: list[str]) -> int:
    parser = Parser("resume", description=_DESCRIPTION, epilog=_EPILOG, usage=_USAGE)
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="the run folder")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="settings that may differ")
    parser.add_allow()
    given = parser.parse_intermixed_args(arguments)
    if given.run is None:
        parser.error("RUN is missing: name the run folder")

    from reverie.configuration import read_config, refuse_different_config, with_overrides

    config = read_config(given.run)
    refuse_different_config(config, with_overrides(config, given.overrides), where=str(given.run))

    from reverie import session

    return session.resume(given.run, given.overrides, given.allow)
