"""Where a run stands, put together for the display from its counts, scores and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reverie.orchestration.logger import Counters
from reverie.orchestration.panel import Progress
from reverie.orchestration.phases import PhaseSpec
from reverie.orchestration.scoreboard import Scoreboard
from reverie.orchestration.stopwatch import Stopwatch


class ProgressMeter:
    """Rates and time left are those of this process; a resumed run starts measuring anew."""

    def __init__(self, phases: Sequence[PhaseSpec], labels: Mapping[str, str]) -> None:
        """``labels`` are the names that a person sees: experiment, task and logdir."""
        self._phases = phases
        self._labels = labels
        known = [phase.duration_steps for phase in phases if phase.has_hook("collect")]
        total = sum(duration for duration in known if duration is not None)
        self._total_steps = total if known and None not in known else None
        self._total_updates = None if known else _total_updates(phases)
        self._start = Counters(agent_steps=0, env_frames=0, updates=0, wall_seconds=0.0)

    def start_from(self, counters: Counters) -> None:
        self._start = counters

    def progress(
        self,
        counters: Counters,
        *,
        phase_index: int,
        scoreboard: Scoreboard,
        stopwatch: Stopwatch,
        is_last: bool,
    ) -> Progress:
        """``phase_index`` may lie behind the last phase; ``is_last`` says that there is no time left to tell."""
        index = min(phase_index, len(self._phases) - 1)
        elapsed = max(stopwatch.elapsed_seconds, 1e-9)
        return Progress(
            experiment=self._labels["experiment"],
            task=self._labels["task"],
            logdir=self._labels["logdir"],
            phase=self._phases[index].name,
            phase_index=index,
            num_phases=len(self._phases),
            agent_steps=counters.agent_steps,
            total_steps=self._total_steps,
            total_updates=self._total_updates,
            env_frames=counters.env_frames,
            episodes=scoreboard.episodes,
            score_now=scoreboard.now,
            score_best=scoreboard.best,
            updates=counters.updates,
            updates_per_second=(counters.updates - self._start.updates) / elapsed,
            frames_per_second=(counters.env_frames - self._start.env_frames) / elapsed,
            seconds_left=None if is_last else self._seconds_left(counters, elapsed, self._phases[index]),
            shares=stopwatch.shares(),
            last_eval=scoreboard.evaluation.get("return_mean"),
        )

    def _seconds_left(self, counters: Counters, elapsed: float, phase: PhaseSpec) -> float | None:
        total, now, start = self._total_updates, counters.updates, self._start.updates
        if self._total_steps is not None:
            if not phase.has_hook("collect"):
                return None  # steps stand still, so that nobody knows how long the phase takes
            total, now, start = self._total_steps, counters.agent_steps, self._start.agent_steps
        return None if total is None or now == start else max(0.0, elapsed * (total - now) / (now - start))


def _total_updates(phases: Sequence[PhaseSpec]) -> int | None:
    """Of phases that only learn; None where one of them is counted in something else."""
    known = [phase.duration_updates for phase in phases if phase.has_hook("update")]
    return sum(duration or 0 for duration in known) if known and None not in known else None
