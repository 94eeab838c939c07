"""What goes into DreamerV3's walk along a sequence, what is kept of it, and the gradients that come back out of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from reverie.components.representation_learners.latents import CategoricalLatents


class Inputs(NamedTuple):
    """What a walk reads, by time; what does not depend on the recurrence has been multiplied before."""

    keep: Tensor
    """[T, B, 1]: 0 where an episode begins."""
    noise: Tensor | None
    """[T, B, S, 1]; without it the most likely classes are taken."""
    deter: Tensor
    """[B, D]: of the carry, as ``stoch`` [B, S, C]."""
    stoch: Tensor
    action: Tensor
    """[T, B, G, D / G]: what actions add to the blocks, with the blocks' bias."""
    tokens: Tensor
    """[T, B, H]: what tokens add to the first layer of the posterior, with its bias."""


class Weights(NamedTuple):
    """Matrices and biases in the type that products compute in, scales of norms in float32 or wider."""

    deter: Tensor
    """[H, D]; its bias [H] comes next, as for ``stoch`` [H, S * C]."""
    deter_bias: Tensor
    stoch: Tensor
    stoch_bias: Tensor
    read_scales: Tensor
    """[2, H]: of the norms behind these two."""
    blocks: Tensor
    """[G, D / G + 2 H, D / G]: without what reads actions."""
    block_scale: Tensor
    gates: Tensor
    """[G, D / G, 3 D / G]"""
    gate_bias: Tensor
    seen: Tensor
    """[H, D]: the posterior's first layer, without what reads tokens."""
    seen_scale: Tensor
    output: Tensor
    """[S * C, H]"""
    output_bias: Tensor


class Tape(NamedTuple):
    """What is kept of a walk, by time: results with the carry in front, and what norms and gates read."""

    deter: Tensor
    stoch: Tensor
    """[T + 1, B, S * C]"""
    reads: Tensor
    """[T, B, 2, H]: of ``deter`` and of ``stoch``"""
    blocks: Tensor
    """[T, B, D]"""
    gates: Tensor
    """[T, B, G, 3 D / G]"""
    seen: Tensor
    logits: Tensor
    """[T, B, S * C]"""


class Slopes(NamedTuple):
    """Gradients of a walk: of the carry, of gates and logits, and by time of what each SiLU read."""

    deter: Tensor
    stoch: Tensor
    reads: Tensor
    blocks: Tensor
    gates: Tensor
    seen: Tensor
    logits: Tensor


class Arriving(NamedTuple):
    """Gradients of what a walk gives, by time."""

    deter: Tensor
    stoch: Tensor
    logits: Tensor


class Steps(Protocol):
    def forward(self, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> Tape: ...

    def backward(
        self, inputs: Inputs, weights: Weights, latents: CategoricalLatents, tape: Tape, arriving: Arriving
    ) -> Slopes: ...
