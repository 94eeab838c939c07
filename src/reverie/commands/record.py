"""`reverie record TASK DEST`: play a task and keep the episodes as a dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from reverie.commands.arguments import Parser, natural, positive

if TYPE_CHECKING:
    from omegaconf import DictConfig

_USAGE = "%(prog)s TASK DEST [--episodes N | --steps N] [--run RUN] [--seed S] [KEY=VALUE ...] [--allow PACKAGE]"

_DESCRIPTION = """\
Play TASK and write the episodes as a dataset into the new folder DEST.

The actions are random, or those of the agent in folder RUN, which acts as in evaluations. DEST is there when it
is whole; a recording that is interrupted leaves nothing behind."""

_EPILOG = """\
examples:
  %(prog)s gym_CartPole-v1 data/cartpole --episodes 100
  %(prog)s gym_CartPole-v1 data/expert --run runs/FOLDER --steps 50000
  %(prog)s dmc_walker_walk data/walker --episodes 20 environment.num_envs=4"""

_EPISODES = 10
_OVERRIDE = re.compile(r"[\w.+~@]+=")
"""People mix settings with the other words."""


def run(arguments: list[str]) -> int:
    parser = Parser("record", description=_DESCRIPTION, epilog=_EPILOG, usage=_USAGE)
    parser.add_argument(
        "words",
        metavar="TASK DEST [KEY=VALUE ...]",
        nargs="*",
        help="what to play (`reverie tasks` lists the tasks), the folder to make, and settings of the environment",
    )
    amounts = parser.add_mutually_exclusive_group()
    amounts.add_argument("--episodes", type=positive, metavar="N", help=f"whole episodes (default: {_EPISODES})")
    amounts.add_argument("--steps", type=positive, metavar="N", help="rows; the last episodes are cut off there")
    parser.add_argument("--run", type=Path, metavar="RUN", help="a run folder whose agent acts (default: at random)")
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="seed of the episodes (default: 0)")
    parser.add_allow()
    given = parser.parse_intermixed_args(arguments)
    overrides = [word for word in given.words if _OVERRIDE.match(word)]
    names = [word for word in given.words if word not in overrides]
    if len(names) != 2:
        parser.error(f"TASK and DEST are needed, got {' '.join(names) or 'neither'}")
    task, dest = names[0], Path(names[1])

    from reverie.commands.dataset_words import summary
    from reverie.datasets.writer import refuse_existing
    from reverie.recording import Amount, record_agent, record_random

    refuse_existing(dest)
    episodes = None if given.steps else given.episodes or _EPISODES
    amount = Amount(episodes=episodes, steps=given.steps)
    if given.run is None:
        from reverie.commands.composition import composed

        index = record_random(composed(task, overrides), dest, amount=amount, seed=given.seed)
    else:
        config = _agent_config(given.run, task, overrides, given.allow)
        index = record_agent(config, given.run, dest, amount=amount, seed=given.seed, allow=given.allow)
    print(f"{dest}: {summary(index)}")
    return 0


def _agent_config(run: Path, task: str, overrides: list[str], allow: list[str]) -> DictConfig:
    """The run's own environment where it knows the task, else the task's usual one."""
    from reverie.commands.composition import composed
    from reverie.configuration import with_overrides
    from reverie.saved_agent import moved_to, stored_config

    stored = stored_config(run, allow)
    if stored["task"] == task:
        return moved_to(with_overrides(stored, overrides), None, where=str(run))
    return moved_to(stored, composed(task, overrides), where=str(run))
