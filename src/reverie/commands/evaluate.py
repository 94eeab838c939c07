"""`reverie eval RUN`: play episodes with the agent of a run. Nothing but pictures is written into the folder."""

from __future__ import annotations

import json
from pathlib import Path

from reverie.commands.arguments import Parser, natural, positive

_DESCRIPTION = """\
Play episodes with the agent saved in folder RUN and print the scores.

The folder is only read: a copy on a read-only disk will do. With --video, pictures of what the world model
expected are written into its folder `videos`."""

_EPILOG = """\
examples:
  %(prog)s runs/dreamer_cartpole-20260101-120000
  %(prog)s runs/FOLDER --episodes 100 --seed 7
  %(prog)s runs/FOLDER --checkpoint NAME --json
  %(prog)s runs/FOLDER --video
  %(prog)s runs/FOLDER --task gym_CartPole-v1       an agent that learned from a dataset"""


def run(arguments: list[str]) -> int:
    parser = Parser("eval", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("run", metavar="RUN", type=Path, help="the run folder")
    parser.add_argument("--episodes", type=positive, metavar="N", help="episodes to play (default: as the run says)")
    parser.add_argument("--seed", type=natural, metavar="S", help="seed of the episodes (default: the run's own)")
    parser.add_argument("--checkpoint", metavar="NAME", help="a folder in RUN/checkpoints (default: the newest)")
    parser.add_argument("--task", metavar="TASK", help="what to play (default: the run's own task)")
    parser.add_argument("--video", action="store_true", help="also show and measure what the world model expected")
    parser.add_allow()
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args(arguments)

    from reverie.configuration import read_config

    task = given.task or read_config(given.run)["task"]

    from reverie import session
    from reverie.commands.composition import composed

    evaluated = session.evaluate(
        given.run,
        episodes=given.episodes,
        seed=given.seed,
        checkpoint=given.checkpoint,
        has_pictures=given.video,
        allow=given.allow,
        elsewhere=composed(given.task) if given.task else None,
    )
    if given.json:
        videos = {"videos": [str(path) for path in evaluated.files]} if given.video else {}
        print(json.dumps(evaluated.scores | videos))
    else:
        print(f"{given.run.resolve().name} on {task}")
        print(_table(evaluated.scores))
        print("".join(f"Video: {path}\n" for path in evaluated.files), end="")
    return 0


def _table(scores: dict[str, float]) -> str:
    width = max(map(len, scores), default=0)
    return "\n".join(f"{name:<{width}}  {value:>12.6g}" for name, value in scores.items())
