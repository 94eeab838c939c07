"""Owns the loop: asks the scheduler what comes next, lets the workflow do it, logs, evaluates and saves.

It knows no algorithm. Everything it remembers is one tree of state, so that a killed run goes on as the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from reverie.orchestration.checkpoint import CheckpointManager, Loaded
from reverie.orchestration.display import Display
from reverie.orchestration.evaluator import in_words
from reverie.orchestration.logger import Counters, Logger
from reverie.orchestration.model_review import ModelReview
from reverie.orchestration.parts import Parts, check_sizes
from reverie.orchestration.phase_scheduler import Action, PhaseScheduler
from reverie.orchestration.phase_updates import PhaseUpdates
from reverie.orchestration.phases import HookSpec, PhaseSpec
from reverie.orchestration.progress_meter import ProgressMeter
from reverie.orchestration.recurrence import Recurrence
from reverie.orchestration.scoreboard import Scoreboard
from reverie.orchestration.signals import StopSignals
from reverie.orchestration.stopwatch import Stopwatch
from reverie.orchestration.update_guard import UpdateGuard
from reverie.runtime.device_timer import DeviceTimer
from reverie.types import Phase, ReverieError, State

PREFIXES = {"update_controller": "controller"}
"""Metric prefixes of updating hooks; all others are logged under ``train``."""


class Orchestrator:
    def __init__(
        self,
        parts: Parts,
        *,
        phases: tuple[PhaseSpec, ...],
        evaluations: Recurrence,
        captures_updates: bool,
        model_review: ModelReview,
        checkpoints: CheckpointManager,
        logger: Logger,
        display: Display,
        guard: UpdateGuard,
        labels: Mapping[str, str],
    ) -> None:
        """``labels`` are the names that a person sees: experiment, task and logdir.

        ``captures_updates`` needs a CUDA device: each update becomes one CUDA graph.
        """
        self._parts = parts
        self._workflow = parts.workflow
        self._scheduler = PhaseScheduler(phases)
        self._evaluations = evaluations
        self._model_review = model_review
        self.checkpoints = checkpoints
        self._logger = logger
        self._display = display
        self.labels = labels
        self._stopwatch = Stopwatch(DeviceTimer() if parts.device.type == "cuda" else None)
        self._guard = guard
        self._updates = PhaseUpdates(parts, guard, self._stopwatch, captures=captures_updates)
        self.scoreboard = Scoreboard()
        self._actions = 0
        self._acted_in = 0
        """Index of the phase of the last action."""
        self._owes_afterwards = False
        """The evaluation after the last action is not over, and may be broken off; what follows is still to be done."""
        self._signals = StopSignals()
        self._meter = ProgressMeter(phases, labels)
        self._enter_phase()

    def begin(self) -> None:
        """Start from nothing; what an earlier attempt logged is cut away."""
        self._logger.reset()

    def restore(self, loaded: Loaded, source: CheckpointManager) -> None:
        """Go on from a checkpoint, which ``source`` has read. Usually that is this run's own manager."""
        state = loaded.state
        check_sizes(self._workflow, loaded)
        source.restore_buffers(loaded, self._parts.buffers)
        for name, owner in self._owners().items():
            owner.set_state(state[name])
        self._workflow.set_state(state)
        for name, buffer in self._parts.buffers.items():
            buffer.set_state(state["buffers"][name])
        own = state["orchestrator"]
        self._actions, self._acted_in, self._owes_afterwards = own["actions"], own["acted_in"], own["owes_afterwards"]
        self._evaluations.mark(own["evaluated_at"], own.get("evaluated_at_updates", 0))
        self._stopwatch.continue_from(own["wall_seconds"])
        self._meter.start_from(self.counters())
        self._enter_phase()
        if self._scheduler.phase_index < state["phase_state"]["phase_index"]:
            self._display.say(f"Phase '{self._phase.name}' is longer than it was: going back to it.")
        if self._parts.train_env.inexact:
            self._display.say(self._parts.train_env.inexact)

    def run(self) -> int:
        """Work until the phases are over or a signal asks to stop. Gives the exit code: 0, 130 or 143."""
        with self._signals:
            self._display.start()
            try:
                if self._parts.train_env.drawn_by is not None:
                    self._display.say(f"{self._parts.train_env.task} is drawn by {self._parts.train_env.drawn_by}.")
                if self._owes_afterwards:
                    self._afterwards()
                while (action := self._next_action()) is not None and self._signals.received is None:
                    self._perform(action)
                self._guard.finish()
                if self._signals.received is not None:
                    self._display.say("Stopping: saving a checkpoint. Ctrl-C again leaves at once, unsaved.")
                    self.save()
                    return 128 + self._signals.received
                self.save()
                if self._logger.has_pending:
                    self._logger.write(self.counters(), self._line_metrics())
                return 0
            finally:
                try:
                    self._show(is_last=True)
                finally:  # a device that has failed cannot say how long it worked
                    self._display.stop()

    def close(self) -> None:
        self._logger.close()
        self._parts.close()

    def _next_action(self) -> Action | None:
        try:
            return self._scheduler.next_action(self._is_ready)
        except ReverieError:  # a phase cannot go on; what came before it is not lost
            self.save()
            raise

    @property
    def is_finished(self) -> bool:
        return self._scheduler.current_phase() is None

    def counters(self) -> Counters:
        totals = self._scheduler.totals
        return Counters(
            agent_steps=totals.agent_steps,
            env_frames=totals.agent_steps * self._parts.train_env.frames_per_step,
            updates=totals.updates,
            wall_seconds=self._stopwatch.wall_seconds,
        )

    def save(self) -> None:
        name = f"{self._scheduler.totals.agent_steps:010d}-{self._actions:010d}"
        with self._stopwatch.measuring("checkpoint"):
            self.checkpoints.save(name, self.get_state(), self._parts.buffers)

    def get_state(self) -> State:
        return {
            "version": 1,
            "global_step": self._scheduler.totals.agent_steps,
            "workflow_name": type(self._workflow).__name__,
            **self._workflow.get_state(),
            **{name: owner.get_state() for name, owner in self._owners().items()},
            "buffers": {name: buffer.get_state() for name, buffer in self._parts.buffers.items()},
            "orchestrator": {
                "actions": self._actions,
                "evaluated_at": self._evaluations.steps,
                "evaluated_at_updates": self._evaluations.updates,
                "acted_in": self._acted_in,
                "owes_afterwards": self._owes_afterwards,
                "wall_seconds": self._stopwatch.wall_seconds,
            },
        }

    def _owners(self) -> dict[str, Any]:
        return {
            "phase_state": self._scheduler,
            "environments": self._parts.train_env,
            "evaluator": self._parts.evaluator,
            "random_streams": self._parts.rng,
            "scoreboard": self.scoreboard,
            "skipped_updates": self._guard,
            "checkpoints": self.checkpoints,
            "logger": self._logger,
        }

    def _enter_phase(self) -> None:
        """Turn the phase's YAML into objects once; the loop only looks them up."""
        spec = self._scheduler.current_phase()
        self._phase_index = self._scheduler.phase_index
        if spec is None:
            return
        self._buffer = self._parts.buffers[spec.buffer] if spec.buffer else None
        progress = torch.zeros((), device=self._parts.device)
        self._phase = Phase(name=spec.name, type=spec.type, progress=progress, controller=spec.controller)
        self._updates.enter(spec, self._phase, self._buffer)

    def _is_ready(self, hook: HookSpec) -> bool:
        """Whether the buffer of the scheduler's current phase holds enough for the hook's batch."""
        if self._scheduler.phase_index != self._phase_index:
            self._enter_phase()
        assert hook.batch is not None, "only hooks with a batch wait for a buffer"
        assert self._buffer is not None, "the parser lets no batch through without a buffer"
        length = hook.batch.length + self._workflow.context_rows
        return self._buffer.can_sample(hook.batch.windows_needed, length, crosses_episodes=hook.batch.crosses_episodes)

    def _perform(self, action: Action) -> None:
        if action.phase_index != self._phase_index:
            self._enter_phase()
        self._phase.progress.fill_(self._scheduler.progress())
        steps = 0
        if action.kind == "collect":
            steps = self._collect()
        elif action.kind == "evaluate":
            if not self._has_evaluated(self._phase.controller):
                return  # broken off by a signal: the action is still to be done
        else:
            self._update(action.hook)
        self._scheduler.advance(action, steps=steps)
        self._actions += 1
        self._acted_in = action.phase_index
        self._afterwards()

    def _collect(self) -> int:
        env, before = self._parts.train_env, self._parts.train_env.seconds
        start = self._stopwatch.elapsed_seconds
        result = self._workflow.collect_step(self._scheduler.totals.agent_steps, phase=self._phase)
        env_seconds = env.seconds - before
        self._stopwatch.add("env", env_seconds)
        self._stopwatch.add("policy", self._stopwatch.elapsed_seconds - start - env_seconds)
        if self._buffer is not None:
            with self._stopwatch.measuring("replay"):
                self._buffer.append(result.trajectory)
        self.scoreboard.add(result.episodes)
        self._logger.add_episodes(result.episodes)
        for notice in env.notices():
            self._display.say(notice)
        self._logger.add(result.metrics, prefix="collect")
        self._logger.add(result.extras, prefix="workflow")
        return result.steps

    def _update(self, hook: HookSpec) -> None:
        metrics = self._updates.perform(hook, self.counters())
        self._logger.add(metrics, prefix=PREFIXES.get(hook.name, "train"))

    def _has_evaluated(self, controller: str | None) -> bool:
        """Evaluate; False when a signal broke it off, which leaves no trace in the run's state."""
        before = self._parts.rng.get_state()
        try:
            with self._stopwatch.measuring("evaluate"):
                scores = self._parts.evaluator.evaluate(
                    self._workflow.policy(controller), lambda: self._signals.received is not None
                )
        except ReverieError:  # its simulators have failed; what was learned before it is not lost
            self._parts.rng.set_state(before)
            self.save()
            raise
        for notice in self._parts.evaluator.notices():
            self._display.say(notice)
        if scores is None:
            self._parts.rng.set_state(before)
            return False
        self.scoreboard.add_evaluation(scores)
        counters = self.counters()
        with self._stopwatch.measuring("evaluate"):
            name = f"{counters.agent_steps:010d}-{counters.updates:010d}"
            review = self._model_review.review(self._parts.evaluator, name=name)
        values = {f"eval/{name}": value for name, value in (scores | review.metrics).items()}
        self._logger.write_now(counters, values, {f"eval/{name}": one for name, one in review.pictures.items()})
        self._display.say(f"Evaluation after {counters.reached}: {in_words(scores)}")
        return True

    def _afterwards(self) -> None:
        """What step counts make due, in an order that a resumed run repeats."""
        steps, updates = self._scheduler.totals.agent_steps, self._scheduler.totals.updates
        is_due = self._evaluations.is_due(steps, updates)
        controller = self._scheduler.phases[self._acted_in].controller
        is_soon = self._scheduler.is_evaluation_after(self._acted_in)
        self._owes_afterwards = is_due and not is_soon
        if self._owes_afterwards and not self._has_evaluated(controller):
            return
        self._owes_afterwards = False
        if is_due:
            self._evaluations.mark(steps, updates)
        if self._logger.should_write(steps, updates=updates):
            self._logger.write(self.counters(), self._line_metrics())
        if (message := self._scheduler.waiting_message()) is not None:
            self._display.say(message)
        if self.checkpoints.should_save(steps, updates):
            self.save()
        if self._display.is_due():
            self._show()

    def _line_metrics(self) -> dict[str, float]:
        """What a line holds beside the means of its interval."""
        env, means = self._parts.train_env, self.scoreboard.mean_scores.means()
        scores = {f"collect/{name}": value for name, value in {**means, **env.summary(means)}.items()}
        deaths = {"collect/simulator_deaths": float(env.deaths)} if env.deaths else {}
        skipped = {"train/skipped_updates": float(self._guard.total())} if self._guard.has_counted else {}
        return scores | deaths | skipped | {f"time/{name}": one for name, one in self._stopwatch.line_shares().items()}

    def _show(self, *, is_last: bool = False) -> None:
        progress = self._meter.progress(
            self.counters(),
            phase_index=self._phase_index,
            scoreboard=self.scoreboard,
            stopwatch=self._stopwatch,
            is_last=is_last,
        )
        self._display.update(progress)
