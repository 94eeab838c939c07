"""DreamerV3's walk as one node of autograd's graph, with its gradients written by hand.

``Rssm`` itself says what is computed. Here a walk keeps what stood in front of each norm and gate, and works out the
rest again on the way back, where autograd would keep all of it and add gradients up one kernel at a time. What either
direction does in one step is a plain function of tensors; ``Steps`` lets kernels of one's own take its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.components.networks.layers import NORM_EPSILON
from reverie.components.representation_learners.cells import gated
from reverie.components.representation_learners.latents import CategoricalLatents
from reverie.components.representation_learners.rssm_tape import Arriving, Inputs, Slopes, Steps, Tape, Weights
from reverie.runtime.compilation import chosen_walk, compiled_step


class PlainSteps:
    """Step after step in operations of torch, compiled where steps are."""

    def forward(self, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> Tape:
        deters, stochs, kept = [inputs.deter], [inputs.stoch.flatten(-2).to(weights.output.dtype)], []
        for step in range(len(inputs.keep)):
            noise = None if inputs.noise is None else inputs.noise[step]
            parts = inputs.keep[step], noise, inputs.action[step], inputs.tokens[step]
            deter, stoch, *rest = _stepped(deters[-1], stochs[-1], *parts, weights, latents)
            deters.append(deter)
            stochs.append(stoch)
            kept.append(rest)
        return Tape(torch.stack(deters), torch.stack(stochs), *[torch.stack(one) for one in zip(*kept, strict=True)])

    def backward(
        self, inputs: Inputs, weights: Weights, latents: CategoricalLatents, tape: Tape, arriving: Arriving
    ) -> Slopes:
        deter, stoch = torch.zeros_like(arriving.deter[0]), torch.zeros_like(arriving.stoch[0])
        kept = []
        for step in reversed(range(len(inputs.keep))):
            above = arriving.deter[step], arriving.stoch[step], arriving.logits[step]
            seen = [one[step] for one in (tape.deter, *tape[2:])]
            deter, stoch, *rest = _stepped_back(deter, stoch, *above, inputs.keep[step], seen, weights, latents)
            kept.append(rest)
        return Slopes(deter, stoch, *[torch.stack(one) for one in zip(*kept[::-1], strict=True)])


@compiled_step
def _stepped(
    deter: Tensor,
    stoch: Tensor,
    keep_B1: Tensor,
    noise: Tensor | None,
    action_BGD: Tensor,
    tokens_BH: Tensor,
    weights: Weights,
    latents: CategoricalLatents,
) -> tuple[Tensor, ...]:
    """The next ``deter`` and ``stoch``, and what the tape keeps beside them."""
    dtype, groups = weights.output.dtype, len(weights.blocks)
    old = deter * keep_B1
    read_deter, read_stoch = old.to(dtype), stoch * keep_B1.to(dtype)
    one = F.linear(read_deter, weights.deter, weights.deter_bias)
    two = F.linear(read_stoch, weights.stoch, weights.stoch_bias)
    reads_B2H = torch.stack([one, two], -2)
    shared = activated(reads_B2H, weights.read_scales).flatten(-2).unsqueeze(-2).expand(-1, groups, -1)
    x_BGI = torch.cat([read_deter.unflatten(-1, (groups, -1)), shared], -1)
    blocks = (torch.bmm(x_BGI.transpose(0, 1), weights.blocks).transpose(0, 1) + action_BGD).flatten(-2)
    x_BGD = activated(blocks, weights.block_scale).unflatten(-1, (groups, -1))
    gates = torch.baddbmm(weights.gate_bias.unsqueeze(1), x_BGD.transpose(0, 1), weights.gates).transpose(0, 1)
    new = gated(old.unflatten(-1, (groups, -1)), gates.to(old.dtype)).flatten(-2)
    seen = F.linear(new.to(dtype), weights.seen) + tokens_BH
    logits = F.linear(activated(seen, weights.seen_scale), weights.output, weights.output_bias)
    sample = latents.sample(logits.unflatten(-1, (latents.stoch, latents.classes)), noise)
    return new, sample.flatten(-2).to(dtype), reads_B2H, blocks, gates, seen, logits


@compiled_step
def _stepped_back(
    deter: Tensor,
    stoch: Tensor,
    deter_above: Tensor,
    stoch_above: Tensor,
    logits_above: Tensor,
    keep_B1: Tensor,
    kept: list[Tensor],
    weights: Weights,
    latents: CategoricalLatents,
) -> tuple[Tensor, ...]:
    """The first two are gradients from the later step, the next three from whoever used this one's results."""
    before, reads_B2H, blocks, gates, seen, logits = kept
    dtype, wide, groups = logits.dtype, deter.dtype, len(weights.blocks)
    to_logits = logits_gradient(stoch + stoch_above, logits, latents).add(logits_above).to(dtype)
    to_seen = silu_gradient(to_logits @ weights.output, seen, weights.seen_scale)
    to_new = (norm_gradient(to_seen, seen, weights.seen_scale) @ weights.seen).to(wide) + deter + deter_above
    old_BGD = (before * keep_B1).unflatten(-1, (groups, -1))
    to_old, to_gates = gates_gradient(to_new.unflatten(-1, (groups, -1)), old_BGD, gates)
    to_x = torch.bmm(to_gates.transpose(0, 1), weights.gates.mT).transpose(0, 1).flatten(-2)
    to_blocks = silu_gradient(to_x, blocks, weights.block_scale)
    sums = norm_gradient(to_blocks, blocks, weights.block_scale).unflatten(-1, (groups, -1))
    x_GBI = torch.bmm(sums.transpose(0, 1), weights.blocks.mT)
    own = to_old.shape[-1]
    shared_B2H = x_GBI[..., own:].sum(0).unflatten(-1, (2, -1))
    to_reads = silu_gradient(shared_B2H, reads_B2H, weights.read_scales)
    one, two = norm_gradient(to_reads, reads_B2H, weights.read_scales).unbind(-2)
    to_deter = (to_old + x_GBI[..., :own].transpose(0, 1)).flatten(-2) + one @ weights.deter
    return to_deter * keep_B1, (two @ weights.stoch) * keep_B1, to_reads, to_blocks, to_gates, to_seen, to_logits


def activated(x: Tensor, scale: Tensor) -> Tensor:
    """As ``NormSilu``."""
    return F.silu(_normed(x, scale)[0] * scale).to(x.dtype)


def silu_gradient(gradient: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """From the gradient of ``activated`` to that of what SiLU read."""
    return torch.ops.aten.silu_backward(gradient.to(scale.dtype), _normed(x, scale)[0] * scale)


def norm_gradient(slope: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """From there to that of ``x``."""
    normed, inverse = _normed(x, scale)
    to_normed = slope * scale
    return ((to_normed - normed * (to_normed * normed).mean(-1, keepdim=True)) * inverse).to(x.dtype)


def _normed(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.to(scale.dtype)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return wide * inverse, inverse


def gates_gradient(to_new: Tensor, old: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``gated``: to the old state, and to reset, candidate and update side by side in every block."""
    reset, candidate, update = gates.to(old.dtype).chunk(3, -1)
    reset, update = reset.sigmoid(), (update - 1).sigmoid()
    value = torch.tanh(reset * candidate)
    inside = to_new * update * (1 - value.square())
    to_reset, to_candidate = inside * candidate * reset * (1 - reset), inside * reset
    to_update = to_new * (value - old) * update * (1 - update)
    return to_new * (1 - update), torch.cat([to_reset, to_candidate, to_update], -1).to(gates.dtype)


def logits_gradient(to_stoch: Tensor, logits: Tensor, latents: CategoricalLatents) -> Tensor:
    """Straight through: what reaches the one-hots is meant for the mixed probabilities."""
    shape = (latents.stoch, latents.classes)
    probs = logits.to(to_stoch.dtype).unflatten(-1, shape).softmax(-1)
    to_probs = to_stoch.unflatten(-1, shape) * (1 - latents.unimix)
    return (probs * (to_probs - (probs * to_probs).sum(-1, keepdim=True))).flatten(-2)


class _Walk(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, steps: Steps, latents: CategoricalLatents, keep: Tensor, noise: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Detached: a carry with gradients would be another form of argument, and the first step be compiled twice.
        tensors = tuple(one.detach() for one in tensors)
        inputs, weights = Inputs(keep, noise, *tensors[:4]), Weights(*tensors[4:])
        narrow = weights_in(inputs.tokens.dtype, weights)
        tape = steps.forward(inputs, narrow, latents)
        ctx.steps, ctx.latents, ctx.noise = steps, latents, noise
        ctx.save_for_backward(keep, *tensors[:4], *narrow, *tape)
        shape = (latents.stoch, latents.classes)
        stoch = tape.stoch[1:].to(inputs.stoch.dtype).unflatten(-1, shape)
        return tape.deter[1:], stoch, tape.logits.unflatten(-1, shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        keep, *rest = ctx.saved_tensors
        inputs, weights, tape = Inputs(keep, ctx.noise, *rest[:4]), Weights(*rest[4:17]), Tape(*rest[17:])
        deter, stoch, logits = grad_outputs
        arriving = Arriving(deter.contiguous(), stoch.flatten(-2).contiguous(), logits.flatten(-2).contiguous())
        slopes = ctx.steps.backward(inputs, weights, ctx.latents, tape, arriving)
        to_action, to_seen, *found = gradients_behind(keep, weights, tape, slopes)
        to_carry = slopes.deter, slopes.stoch.unflatten(-1, inputs.stoch.shape[-2:])
        return (None, None, None, None, *to_carry, to_action, to_seen, *found)


def weights_in(dtype: torch.dtype, weights: Weights) -> Weights:
    """Products read ``dtype``, norms keep their scales as they are."""
    kept = {"read_scales": weights.read_scales, "block_scale": weights.block_scale, "seen_scale": weights.seen_scale}
    return Weights(*[one.to(dtype).contiguous() for one in weights])._replace(**kept)


@compiled_step
def gradients_behind(keep: Tensor, weights: Weights, tape: Tape, slopes: Slopes) -> tuple[Tensor, ...]:
    """Those of actions, of tokens and of the weights, all of whose steps can be treated at once."""
    to_blocks = norm_gradient(slopes.blocks, tape.blocks, weights.block_scale)
    to_seen = norm_gradient(slopes.seen, tape.seen, weights.seen_scale)
    found = weight_gradients(keep, weights, tape, slopes, to_blocks, to_seen)
    return to_blocks.unflatten(-1, (len(weights.blocks), -1)), to_seen, *found


def weight_gradients(
    keep: Tensor, weights: Weights, tape: Tape, slopes: Slopes, to_blocks: Tensor, to_seen: Tensor
) -> Weights:
    """One product per weight, of all that its layer read and all the gradients it received."""
    dtype, wide, groups = tape.logits.dtype, weights.seen_scale.dtype, len(weights.blocks)
    old = (tape.deter[:-1] * keep).to(dtype).flatten(0, 1)
    old_stoch = (tape.stoch[:-1] * keep.to(dtype)).flatten(0, 1)
    one, two = norm_gradient(slopes.reads, tape.reads, weights.read_scales).flatten(0, 1).unbind(1)
    shared = activated(tape.reads, weights.read_scales).flatten(0, 1).flatten(-2)
    to_blocks, to_seen, to_logits = (x.flatten(0, 1) for x in (to_blocks, to_seen, slopes.logits))
    blocks_GMD = to_blocks.unflatten(-1, (groups, -1)).transpose(0, 1)
    own = torch.bmm(old.unflatten(-1, (groups, -1)).permute(1, 2, 0), blocks_GMD)
    common = (shared.T @ to_blocks).unflatten(-1, (groups, -1)).transpose(0, 1)
    hidden_MGD = activated(tape.blocks, weights.block_scale).flatten(0, 1).unflatten(-1, (groups, -1))
    gates_MGD = slopes.gates.flatten(0, 1)
    found = Weights(
        deter=one.T @ old,
        deter_bias=one.sum(0, dtype=wide),
        stoch=two.T @ old_stoch,
        stoch_bias=two.sum(0, dtype=wide),
        read_scales=_scale_gradient(slopes.reads, tape.reads, weights.read_scales),
        blocks=torch.cat([own, common], 1),
        block_scale=_scale_gradient(slopes.blocks, tape.blocks, weights.block_scale),
        gates=torch.bmm(hidden_MGD.permute(1, 2, 0), gates_MGD.transpose(0, 1)),
        gate_bias=gates_MGD.sum(0, dtype=wide),
        seen=to_seen.T @ tape.deter[1:].to(dtype).flatten(0, 1),
        seen_scale=_scale_gradient(slopes.seen, tape.seen, weights.seen_scale),
        output=to_logits.T @ activated(tape.seen, weights.seen_scale).flatten(0, 1),
        output_bias=to_logits.sum(0, dtype=wide),
    )
    return Weights(*[one.to(wide) for one in found])


def _scale_gradient(slope: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    return (slope * _normed(x, scale)[0]).flatten(0, 1).sum(0)


def walked_by_hand(
    inputs: Inputs, weights: Weights, latents: CategoricalLatents, steps: Steps
) -> tuple[Tensor, Tensor, Tensor]:
    """``deter`` [T, B, D], ``stoch`` and the posterior's logits [T, B, S, C]; ``weights`` are parameters."""
    keep, noise, *rest = inputs
    return _Walk.apply(steps, latents, keep, noise, *rest, *weights)


def chosen_steps() -> Steps | None:
    """Those that ``runtime.walk`` asks for; None leaves gradients to autograd."""
    if chosen_walk() == "fused":
        # Triton is not everywhere where torch is, and takes a second to load.
        from reverie.components.representation_learners.rssm_fused import FusedSteps

        return FusedSteps()
    return PlainSteps() if chosen_walk() == "by_hand" else None
