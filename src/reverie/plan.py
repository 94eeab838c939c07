"""What a run will need, and how long it will take: arithmetic over what a probe measured and what a run will do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from reverie.orchestration.phases import HookSpec
from reverie.orchestration.run_counts import PhaseWork
from reverie.plan_needs import Need, needs
from reverie.probe import Probed
from reverie.probe_measures import Collecting

_WRITING_RATE = 200e6
"""Bytes a second, for what a checkpoint will hold beyond the one that was measured, if that was too small to tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One line of the time table."""

    what: str
    kind: str
    """env, policy, replay, update, evaluate, checkpoint, log or start."""
    each_seconds: float
    count: int

    @property
    def seconds(self) -> float:
        return self.each_seconds * self.count


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    experiment: str
    task: str
    device: str
    phases: tuple[PhaseWork, ...]
    needs: tuple[Need, ...]
    costs: tuple[Cost, ...]
    bottleneck: str
    """The first thing in the way, and what would mend it."""
    remarks: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return sum(cost.seconds for cost in self.costs)

    @property
    def fits(self) -> bool:
        return all(need.fits for need in self.needs)


def planned(probed: Probed) -> Plan:
    """The plan of the run that was probed."""
    found = needs(probed)
    costs = tuple(cost for cost in _costs(probed) if cost.count)
    return Plan(
        experiment=probed.experiment,
        task=probed.task,
        device=probed.device,
        phases=probed.counts.phases,
        needs=found,
        costs=costs,
        bottleneck=_bottleneck(probed, found, costs),
        remarks=tuple(_remarks(probed)),
    )


def _costs(probed: Probed) -> Iterator[Cost]:
    counts, measured = probed.counts, probed.measured
    yield Cost(what="start", kind="start", each_seconds=measured.start_seconds, count=1)
    if (collecting := measured.collecting) is not None:
        steps, envs = counts.count("collect"), _plural(probed.num_envs, "environment")
        yield Cost(what=f"step of {envs}", kind="env", each_seconds=collecting.env_seconds, count=steps)
        yield Cost(what="policy step", kind="policy", each_seconds=collecting.policy_seconds, count=steps)
        yield Cost(what="row into replay", kind="replay", each_seconds=collecting.append_seconds, count=steps)
    performed = _performed(probed)
    for (hook, buffer), updating in measured.updating.items():
        count, name = performed.get((hook, buffer), 0), _hook_words(hook)
        if updating.draw_seconds is not None:
            yield Cost(what=f"batch for {name}", kind="replay", each_seconds=updating.draw_seconds, count=count)
        yield Cost(what=name, kind="update", each_seconds=updating.seconds, count=count)
    yield Cost(what="evaluation", kind="evaluate", each_seconds=_evaluation_seconds(probed), count=counts.evaluations)
    yield Cost(what="checkpoint", kind="checkpoint", each_seconds=_checkpoint_seconds(probed), count=counts.checkpoints)
    yield Cost(what="metrics line", kind="log", each_seconds=measured.files.line_seconds, count=_lines(probed))


def _performed(probed: Probed) -> dict[tuple[HookSpec, str | None], int]:
    """How often each kind of update is made, over all phases."""
    found: dict[tuple[HookSpec, str | None], int] = {}
    for phase in probed.counts.phases:
        for hook, count in phase.hooks:
            if hook.kind == "update":
                found[hook, phase.buffer] = found.get((hook, phase.buffer), 0) + count
    return found


def _evaluation_seconds(probed: Probed) -> float:
    """An estimate from training: simulators take as long as there."""
    collecting, evaluation = probed.measured.collecting, probed.evaluation
    if collecting is None:
        return 0.0
    envs = min(evaluation.envs, evaluation.episodes)
    rounds = math.ceil(evaluation.episodes / envs)
    step = collecting.env_seconds * envs / probed.num_envs + collecting.policy_seconds
    return rounds * _episode_length(probed, collecting) * step


def _episode_length(probed: Probed, collecting: Collecting) -> float:
    """What was seen, or the time limit where no episode was seen to its end."""
    if collecting.has_ended_episodes or probed.episode_limit is None:
        return collecting.episode_length
    return probed.episode_limit


def _checkpoint_seconds(probed: Probed) -> float:
    """The measured one, and what later ones hold beside it: new rows, and latents of half of all rows on average."""
    files, width = probed.measured.files, probed.measured.row_bytes
    rows = sum(replay.rows for replay in probed.replay.values())
    new_rows = probed.counts.steps / max(1, probed.counts.checkpoints)
    more = rows * width.stored / 2 + new_rows * width.row
    return files.checkpoint_seconds + more / max(files.checkpoint_bytes / files.checkpoint_seconds, _WRITING_RATE)


def _lines(probed: Probed) -> int:
    steps, updates = probed.counts.steps, probed.counts.count("update")
    return max(steps // probed.logging.every_steps, updates // probed.logging.every_updates)


def _bottleneck(probed: Probed, found: tuple[Need, ...], costs: tuple[Cost, ...]) -> str:
    for need in found:
        if not need.fits:
            return f"{need.name} does not fit; {need.remedy}."
    largest = max(costs, key=lambda cost: cost.seconds)
    share = largest.seconds / max(sum(cost.seconds for cost in costs), 1e-12)
    return f"the {largest.what}, {share:.0%} of the time; {_advice(probed, largest)}."


def _advice(probed: Probed, cost: Cost) -> str:
    is_processor = probed.device == "cpu"
    has_ratio = probed.counts.count("collect") > 0
    less = "a lower training.train_ratio" if has_ratio else "a smaller training.total_updates"
    match cost.kind:
        case "update":
            faster = "a GPU, a smaller size=" if is_processor else "a smaller size="
            return f"{faster} or {less} shortens it"
        case "env":
            if probed.num_envs == 1:
                return "one simulator plays alone: more environment.num_envs play side by side, which is another run"
            return "simulators share the processors: environment.in_workers=true and more processors shorten it"
        case "policy":
            return "one call acts for all environments: a smaller size= or more environment.num_envs shortens it"
        case "replay":
            return f"smaller batches or {less} shorten it"
        case "evaluate":
            return "fewer evaluation.episodes or a larger evaluation.every_steps shorten it"
        case "checkpoint":
            return "a larger checkpoint.every_steps or a faster disk shortens it"
        case "log":
            return "a larger logging.every_steps shortens it"
        case _:
            return "the run is hardly longer than its beginning"


def _remarks(probed: Probed) -> Iterator[str]:
    """What a reader must know to take the numbers for what they are."""
    yield "All times are extrapolated from a short probe; another load on this machine changes them."
    if any(updating.is_first_call for updating in probed.measured.updating.values()):
        yield "An update was measured in its first call, which can take twice as long as others: give more --seconds."
    collecting, limit = probed.measured.collecting, probed.episode_limit
    if not probed.counts.evaluations:
        return
    if collecting is None:
        yield "Evaluations are not counted: this run has no training environment to measure their steps in."
        return
    length = f"{_episode_length(probed, collecting):,.0f} steps"
    if collecting.has_ended_episodes:
        more = (
            ""
            if limit is None
            else f"; at the time limit of {limit:,} one takes {limit / collecting.episode_length:.1f} times as long"
        )
        yield f"Evaluations are estimated from training steps, with episodes of {length} as in the probe{more}."
    elif limit is not None:
        yield f"Evaluations are estimated from training steps, with episodes up to the time limit of {length}."
    else:
        yield f"Evaluations take longer than estimated: no episode of the probe had ended after {length}."


def _hook_words(hook: HookSpec) -> str:
    batch = "" if hook.batch is None else f" of {hook.batch.size} x {hook.batch.length}"
    return f"{hook.name.replace('_', ' ')}{batch}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
