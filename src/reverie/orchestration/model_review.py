"""Looks at a world model after an evaluation: metrics, and pictures of what it expected beside what came."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.orchestration.evaluator import Evaluator, OpenLoopConfig
from reverie.orchestration.held_out import HeldOut, Span, leads
from reverie.orchestration.history_plots import history_plot
from reverie.orchestration.line_plots import Line, line_plot
from reverie.orchestration.model_health import model_health
from reverie.orchestration.pictures import Picture, film, video
from reverie.orchestration.plan_pictures import plan_pictures
from reverie.runtime.durable_files import reason, remedy, replace_file
from reverie.types import Observation, ReverieError, Spaces
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.open_loop import OpenLoop, PredictsOpenLoop
from reverie.workflows.plans import ShowsPlans
from reverie.workflows.showing import DreamsFreely, HasHistory

VIDEO_FOLDER = "videos"
MAX_LINES = 12
"""Numbers of an observation that are drawn; a vector may have hundreds."""
MOMENTS, PLANS = 16, 4
"""Moments of an episode at which plans are looked at, and how many of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    metrics: dict[str, float] = field(default_factory=dict)
    """By name: `model/reward_error`, ..."""
    pictures: dict[str, Picture] = field(default_factory=dict)
    """By what they show: `open_loop/image`, `open_loop/lines`, `episode/image`, ..."""
    files: list[Path] = field(default_factory=list)
    """Where the pictures are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """Rows and what was predicted of them, on the CPU."""

    seen: Observation
    predicted: OpenLoop
    lead: Tensor


class ModelReview:
    """Asks a workflow what it expected of an evaluation's rows. It draws nothing at random and changes no state."""

    def __init__(
        self,
        workflow: WorldModelWorkflow,
        spaces: Spaces,
        config: OpenLoopConfig,
        *,
        folder: Path,
        say: Callable[[str], None],
        remark: Callable[[str], None] | None = None,
    ) -> None:
        """``folder`` is that of the run; ``say`` is told, once, why there is nothing to see, and ``remark`` (else it,
        too) why there is less than there could be.
        """
        self._workflow = workflow
        self._folder = folder / VIDEO_FOLDER
        self._spaces = spaces
        self._config = config
        self._say, self._remark = say, remark or say
        self._has_complained = False

    def review(self, evaluator: Evaluator, *, name: str, has_pictures: bool | None = None) -> Review:
        """Of the last evaluation; its files are called `name-...`. The configuration says which have pictures.

        Empty for a workflow that predicts nothing.
        """
        if not isinstance(self._workflow, PredictsOpenLoop) or not self._config.sequences:
            return Review()
        held_out = evaluator.held_out
        if held_out is None:
            return self._nothing("the configuration has no `buffer.evaluation` that keeps the rows of evaluations")
        sequences = self._sequences(self._workflow, held_out)
        if sequences is None:
            return self._nothing(
                f"the {held_out.num_rows} rows that the evaluation kept of each environment hold no episode longer "
                f"than `evaluation.open_loop.context` ({self._config.context}): make that smaller"
            )
        health = model_health(sequences.seen, sequences.predicted, sequences.lead, self._spaces)
        metrics = {f"model/{key}": value for key, value in health.items()}
        if not (self._is_due(evaluator.evaluations) if has_pictures is None else has_pictures):
            return Review(metrics=metrics)
        if (why := sequences.predicted.why_blind) is not None:
            self._tell(self._remark, f"Pictures show rewards and ends, but no observations: {why}.")
        pictures = dict(self._pictures("open_loop", sequences))
        if (episode := self._episode(self._workflow, held_out)) is not None:
            pictures |= dict(self._pictures("episode", episode))
        pictures |= self._shown(sequences.seen)
        if isinstance(self._workflow, ShowsPlans):
            pictures |= self._plans(self._workflow, held_out)
        files = write_pictures(self._folder, pictures, prefix=name)
        return Review(metrics=metrics, pictures=pictures, files=files)

    def _is_due(self, evaluations: int) -> bool:
        every = self._config.pictures_every
        return every is not None and (evaluations - 1) % every == 0

    def _sequences(self, workflow: PredictsOpenLoop, held_out: HeldOut) -> _Compared | None:
        count, length = self._config.sequences, self._config.length
        span = held_out.sequences(count, length, before=self._workflow.context_rows)
        return self._compared(workflow, held_out, span)

    def _episode(self, workflow: PredictsOpenLoop, held_out: HeldOut) -> _Compared | None:
        return self._compared(workflow, held_out, self._episode_span(held_out))

    def _episode_span(self, held_out: HeldOut) -> Span | None:
        length = self._config.episode_length
        return held_out.first_episode(length, before=self._workflow.context_rows) if length else None

    def _plans(self, workflow: ShowsPlans, held_out: HeldOut) -> dict[str, Picture]:
        """Of the first episode; none where nothing is planned."""
        span = self._episode_span(held_out)
        if span is None:
            return {}
        episode = held_out.rows(span, before=self._workflow.context_rows)
        plans = workflow.plans(episode, moments=MOMENTS, shown=PLANS)
        if plans is None:
            return {}
        seen = held_out.rows(span).to(torch.device("cpu"))
        return plan_pictures(plans.cpu(), seen, self._spaces, columns=self._config.columns)

    def _shown(self, seen: Observation) -> dict[str, Picture]:
        """What the workflow shows by itself."""
        pictures: dict[str, Picture] = {}
        if isinstance(self._workflow, DreamsFreely):
            films = self._workflow.free_dreams(seen)
            pictures |= {f"dream/{name}": film(one[: self._config.columns].numpy()) for name, one in films.items()}
        if isinstance(self._workflow, HasHistory):
            histories = self._workflow.histories()
            pictures |= {f"history/{name}": history_plot(one, title=name) for name, one in histories.items()}
        return pictures

    def _nothing(self, why: str) -> Review:
        self._tell(self._say, f"No metrics and no pictures of the world model: {why}.")
        return Review()

    def _tell(self, listener: Callable[[str], None], sentence: str) -> None:
        """Once in the life of a run, or of a part of it."""
        if not self._has_complained:
            listener(sentence)
            self._has_complained = True

    def _compared(self, workflow: PredictsOpenLoop, held_out: HeldOut, span: Span | None) -> _Compared | None:
        """None when no row of ``span`` would be imagined."""
        if span is None:
            return None
        seen = held_out.rows(span)
        lead = leads(seen.is_first, context=self._config.context, period=self._config.length)
        if not lead.any():
            return None
        batch = held_out.rows(span, before=self._workflow.context_rows)
        predicted = workflow.open_loop(batch, is_context=lead == 0)
        return _Compared(seen=seen.to(torch.device("cpu")), predicted=predicted.cpu(), lead=lead.cpu())

    def _pictures(self, kind: str, compared: _Compared) -> Iterator[tuple[str, Picture]]:
        """A GIF for every picture that the model predicts, and one PNG for all numbers."""
        count = len(compared.lead)
        shown = torch.linspace(0, count - 1, min(self._config.columns, count)).round().long()
        is_context = (compared.lead == 0)[shown].numpy()
        truth = {key: compared.seen.obs[key][shown].numpy() for key in compared.predicted.obs}
        predicted = {key: value[shown].numpy() for key, value in compared.predicted.obs.items()}
        for key in predicted:
            if self._spaces.obs[key].is_image:
                yield f"{kind}/{key}", video(truth[key], predicted[key], is_context)
        vectors = [key for key in predicted if not self._spaces.obs[key].is_image]
        lines = [line for key in vectors for line in _lines(key, truth[key], predicted[key])][:MAX_LINES]
        lines += _reward_and_end(compared, shown)
        if lines:
            yield f"{kind}/lines", line_plot(lines, is_context, title=kind.replace("_", " "))


def _reward_and_end(compared: _Compared, shown: Tensor) -> list[Line]:
    """What the model predicts of them."""
    lines: list[Line] = []
    predicted = compared.predicted
    if predicted.reward is not None:
        lines += _lines("reward", predicted.real_reward[shown].numpy(), predicted.reward[shown].numpy())
    if predicted.live is not None:
        live = (~compared.seen.is_terminal).float()
        lines += _lines("continue", live[shown].numpy(), predicted.live[shown].numpy())
    return lines


def write_pictures(folder: Path, pictures: Mapping[str, Picture], *, prefix: str) -> list[Path]:
    """Put every picture into ``folder`` as `{prefix}-{name}`, each in one step; their paths."""
    paths: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            stem = re.sub(r"[^\w-]+", "-", name)  # a key of an observation may be called anything
            paths.append(folder / f"{prefix}-{stem}.{picture.format}")
            replace_file(paths[-1], [picture.data])
    except OSError as error:
        raise ReverieError(
            f"cannot write pictures to {folder}: {reason(error)}. {remedy(error)}, "
            "or do without: evaluation.open_loop.pictures_every=null."
        ) from error
    return paths


def _lines(name: str, truth: np.ndarray, predicted: np.ndarray) -> list[Line]:
    """One line for a single number, else one for every element of the vector."""
    if truth.ndim == 2:
        return [Line(name=name, truth=truth, predicted=predicted)]
    pairs = zip(np.moveaxis(truth, -1, 0), np.moveaxis(predicted, -1, 0), strict=True)
    return [Line(name=f"{name}[{i}]", truth=one, predicted=other) for i, (one, other) in enumerate(pairs)]
