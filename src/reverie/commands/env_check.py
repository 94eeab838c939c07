"""`reverie env check TASK`: tries an environment, anybody's own too, and says what a run would meet in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reverie.commands.arguments import Parser, positive
from reverie.orchestration.command_name import reverie_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from reverie.commands.env_trial import Trial
    from reverie.types import Space

_DESCRIPTION = """\
Step an environment with random actions and print what comes to light: keys, dtypes, ranges, ends of episodes, seeding,
how an episode comes back after a resume, speed, and which kind of encoder each key needs. Whatever is wrong is a
sentence that says what to do.

The exit code is 0 when nothing is wrong, 1 when something is, 2 when the environment cannot be made."""

_EPILOG = """\
examples:
  %(prog)s gym_CartPole-v1
  %(prog)s gym:my_package:MyEnv-v0
  %(prog)s gym_FrozenLake-v1 environment.simulator.action_repeat=2 --steps 1000"""

_NATIVE_SECONDS = 120.0


def run(arguments: list[str]) -> int:
    parser = Parser("env", description=_DESCRIPTION, epilog=_EPILOG, usage="%(prog)s TASK [KEY=VALUE ...] [--steps N]")
    parser.prog = reverie_command("env", "check")
    parser.add_argument("task", metavar="TASK", nargs="?", help="the task, suite included")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="settings, as for `train`")
    parser.add_argument("--steps", type=positive, default=500, metavar="N", help="random steps to take (default: 500)")
    given = parser.parse_intermixed_args(arguments)
    if given.task is None:  # argparse itself would ask for KEY=VALUE too
        parser.error("TASK is missing: name the task")

    from reverie.commands.composition import IN_WORKERS, composed

    config = composed(given.task, [IN_WORKERS, *given.overrides])
    native = _native_findings(given.task, given.overrides, given.steps, config)
    print(given.task)
    if native["problems"]:  # the simulator breaks its own rules: what follows from that would only hide it
        return _verdict(native["problems"])
    trial = _trial(config, given.steps)
    if isinstance(trial, str):
        return _verdict([trial])
    _show(trial, native["ranges"])
    refusal = _refusal(config, trial)
    ends = _end_notes(trial, native["episode_steps"]) if "episode_steps" in native else []
    for note in [*trial.notes, *ends, *_image_notes(trial), *([refusal] if refusal else [])]:
        print(f"note: {note}")
    code = _verdict(trial.problems)
    if code == 0 and not refusal:
        print(f"Train on it: {reverie_command('train', f'task={given.task}', *given.overrides)}")
    return code


def answer(question: str) -> dict[str, Any]:
    """In a child process: what the simulator itself does wrong, the ranges it declares, and its time limit."""
    import numpy as np

    from reverie.commands.composition import composed
    from reverie.configuration import instantiate
    from reverie.environments.gym import GymEnvironment
    from reverie.environments.gym_check import declared_ranges, native_problems
    from reverie.types import ReverieError

    asked = json.loads(question)
    try:
        node = composed(asked["task"], asked["overrides"]).environment.simulator
        environment = instantiate(node, path="environment.simulator", allow=None)
    except ReverieError as error:
        return {"refusal": str(error)}
    assert isinstance(environment, GymEnvironment)
    found = native_problems(environment, steps=asked["steps"], rng=np.random.default_rng(0))
    limit = environment.native.spec.max_episode_steps if environment.native.spec is not None else None
    return {"problems": found, "ranges": declared_ranges(environment), "episode_steps": limit}


def _native_findings(task: str, overrides: list[str], steps: int, config: DictConfig) -> dict[str, Any]:
    """What ``answer`` says of a Gymnasium environment; no problems and no ranges for the other suites."""
    from reverie.environments.child_process import NoAnswer, answers
    from reverie.types import ReverieError

    if config.environment.simulator.get("_target_") != "reverie.environments.gym.GymEnvironment":
        return {"problems": [], "ranges": {}}
    question = json.dumps({"task": task, "overrides": overrides, "steps": steps})
    found = next(answers(__name__, [question], timeout_seconds=_NATIVE_SECONDS))
    if isinstance(found, NoAnswer):
        return {"problems": [f"the environment {found.why}: run it by hand under a debugger."]}
    if "refusal" in found:
        raise ReverieError(found["refusal"])
    return found


def _trial(config: DictConfig, steps: int) -> Trial | str:
    """The trial, or the sentence with which the environment gave up on the way."""
    from reverie.build import environments
    from reverie.commands.env_trial import tried
    from reverie.types import ReverieError

    first = environments(config, num_envs=1, seed=0, allow=None)  # what cannot be made at all is raised from here
    try:
        return tried(first, lambda: environments(config, num_envs=1, seed=0, allow=None), steps=steps)
    except ReverieError as error:
        return str(error)
    finally:
        first.close()


def _end_notes(trial: Trial, limit: int | None) -> list[str]:
    """What looks odd about the ends of somebody's own episodes."""
    terminal, truncated = trial.terminal_lengths, trial.limit_lengths
    if not terminal and not truncated and limit is None:
        return [
            f"no episode ended in {trial.steps} steps: if none ever does, set a time limit (max_episode_steps= in "
            "gymnasium.register)."
        ]
    if len(terminal) > 2 and not truncated and len(set(terminal)) == 1 and terminal[0] > 1:
        return [
            f"every episode ended as terminated after {terminal[0]} steps: if that is a time limit, give truncated "
            "instead, or the agent learns that the future is worth nothing there."
        ]
    return []


def _image_notes(trial: Trial) -> list[str]:
    return [
        f"the image '{key}' is {space.shape[0]}x{space.shape[1]}; convolutional encoders halve it four times, so give "
        "it sides that are multiples of 16, such as 64x64."
        for key, space in trial.spaces.obs.items()
        if space.is_image and (space.shape[0] % 16 or space.shape[1] % 16)
    ]


def _refusal(config: DictConfig, trial: Trial) -> str | None:
    """Why the chosen experiment cannot train with these spaces; found by building its agent, small."""
    import torch
    from omegaconf import OmegaConf

    from reverie.build import assemble_workflow
    from reverie.commands.catalogue import CONFIGS
    from reverie.runtime.rng import RandomStreams
    from reverie.types import ReverieError

    device = torch.device("cpu")
    config = config.copy()
    config["size"] = OmegaConf.load(CONFIGS / "size" / "debug.yaml")
    try:
        assemble_workflow(
            config,
            spaces=trial.spaces,
            train_env=None,
            rng=RandomStreams(0, device=device),
            device=device,
            allow=None,
        )
    except ReverieError as error:
        return f"the experiment {config.experiment.name} cannot train on it: {error}"
    return None


def _show(trial: Trial, ranges: dict[str, str]) -> None:
    from reverie.environments.suites import space_words

    rows = [("key", "space", "declared", "seen", "encoder")]
    for key, space in trial.spaces.obs.items():
        seen = "{:.4g} to {:.4g}".format(*trial.ranges[key]) if key in trial.ranges else "nothing finite"
        rows.append((key, space_words(space), ranges.get(key) or _declared(space), seen, encoder_kind(space)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    action = trial.spaces.action
    scaled = "" if action.is_discrete else " in [-1, 1]"
    reward = "{:.4g} to {:.4g}".format(*trial.ranges["reward"]) if "reward" in trial.ranges else "nothing finite"
    lines = {
        "action": f"{space_words(action)}{scaled}",
        "reward": reward,
        "episodes": _ends(trial),
        "seeding": trial.seeding,
        "resume": trial.resume,
        "speed": f"{trial.steps_per_second:,.0f} steps/s with one environment, {trial.frames_per_step} frames per step",
    }
    for name, text in lines.items():
        print(f"  {name:<10}{text}")


def encoder_kind(space: Space) -> str:
    """The kind of network that reads this key."""
    if space.is_image:
        return "convolutional"
    return "MLP, as one-hots" if space.is_discrete else "MLP"


def _declared(space: Space) -> str:
    if space.classes is not None:
        return f"0 to {(space.classes if isinstance(space.classes, int) else max(space.classes)) - 1}"
    return "0 to 255" if space.dtype == "uint8" else "any"


def _ends(trial: Trial) -> str:
    terminal, limit = trial.terminal_lengths, trial.limit_lengths
    if not terminal and not limit:
        return f"none ended in {trial.steps} steps"
    lengths = [*terminal, *limit]
    return (
        f"{len(lengths)} ended in {trial.steps} steps ({len(terminal)} terminal, {len(limit)} at a time limit), "
        f"{min(lengths)} to {max(lengths)} steps long"
    )


def _verdict(problems: list[str]) -> int:
    for number, problem in enumerate(problems, start=1):
        print(f"problem {number}: {problem}")
    print(f"{len(problems)} to mend." if problems else "Nothing is wrong with it.")
    return 1 if problems else 0
