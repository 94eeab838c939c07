"""The numbers of World Models, and what its phases must look like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reverie.types import ReverieError, require

VAE_LOSSES = ("reconstruction", "kl")
POPULATION = "population"
"""The controller of phases in which every environment acts with the weights of a contestant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OgWmConfig:
    loss_weights: Mapping[str, float]
    """One weight per loss: reconstruction, kl and latent, and those of the heads that the MDN-RNN has."""
    termination_weight: float = 10.0
    """How often a row counts that ends an episode: most do not."""
    acts_on: Literal["sample", "mean"] = "sample"
    """Which latent of a picture the controller and the MDN-RNN read while acting."""
    temperature: float = 1.0
    """Of the dreams that a controller evolves in; above 1 they are less certain than the model."""
    shown_temperatures: tuple[float, ...] = (0.5, 1.0, 1.5)
    """Of the dreams that are shown after evaluations."""
    dream_limit: int = 1000
    """Steps after which a dream is cut."""
    dream_starts: int = 1000
    """First observations that are kept as beginnings of dreams."""

    def __post_init__(self) -> None:
        require("workflow.termination_weight", self.termination_weight, at_least=0)
        require("workflow.temperature", self.temperature, at_least=1e-3)
        for temperature in self.shown_temperatures:
            require("workflow.shown_temperatures", temperature, at_least=1e-3)
        require("workflow.dream_limit", self.dream_limit, at_least=1)
        require("workflow.dream_starts", self.dream_starts, at_least=1)

    def weights_of(self, losses: Sequence[str]) -> dict[str, float]:
        return {name: self.loss_weights[name] for name in losses}

    def check_losses(self, *, has_reward_head: bool, has_termination_head: bool) -> None:
        """The weights name exactly what the parts compute."""
        heads = {"reward": has_reward_head, "termination": has_termination_head}
        expected = {*VAE_LOSSES, "latent", *(name for name, has in heads.items() if has)}
        if self.loss_weights.keys() != expected:
            raise ReverieError(
                f"`workflow.loss_weights` must have the keys {', '.join(sorted(expected))} with these parts, got "
                f"{', '.join(self.loss_weights)}."
            )


def check_hooks(phases: Sequence[Any], *, has_heads: bool, capacity: int, batch_size: int) -> None:
    """What would be noticed only hours later, when the phase comes. ``capacity`` is that of the replay."""
    rows = 0
    for phase, hook, batch in _hooks(phases):
        where = f"training.phases ('{phase.get('name')}')"
        if hook == "collect" and phase.get("buffer"):
            rows = min(capacity, rows + (phase.get("duration_steps") or 0))
        if hook == "evolve" and phase.get("controller") != POPULATION:
            raise ReverieError(f"{where}: `evolve` judges who acts there: give the phase `controller: {POPULATION}`.")
        if hook == "evolve_in_dream" and not has_heads:
            raise ReverieError(
                f"{where}: `evolve_in_dream` needs rewards and ends that the model predicts: set "
                "components.dynamics.has_reward_head=true and components.dynamics.has_termination_head=true, and give "
                "workflow.loss_weights their weights."
            )
        if hook == "encode" and batch.get("sampler") != "sweep":
            raise ReverieError(f"{where}: `encode` must come to every row: give its batch the sampler 'sweep'.")
        if hook == "encode":
            needed = -(-rows // (batch.get("size", batch_size) * batch.get("length", 1)))
            if 0 < (phase.get("duration_updates") or 0) < needed:
                raise ReverieError(
                    f"{where}: {rows:,} rows are collected before, and some of them would stay without a latent: set "
                    f"its duration_updates to at least {needed:,}."
                )
        if hook == "converge_mdn" and batch.get("length", 2) < 2:
            raise ReverieError(f"{where}: `converge_mdn` learns what follows: its batch.length must be at least 2.")


def _hooks(phases: Sequence[Any]) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """(phase, hook, batch) of every entry, those inside repeats too."""
    for phase in phases:
        yield from _hooks(phase.get("phases", []))
        for entry in phase.get("workflow_hooks", []):
            if isinstance(entry, str):
                yield phase, entry, {}
            else:
                for hook, options in entry.items():
                    yield phase, hook, options.get("batch", {})
