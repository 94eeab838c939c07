"""DreamerV3's walk in kernels of its own: five for a step, and five for its gradients. Written in Triton.

All launches can be captured in a CUDA graph: shapes are known beforehand and nothing is asked of the device. All sums
have one order, so that the same numbers come out every time.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from reverie.components.networks.layers import NORM_EPSILON
from reverie.components.representation_learners.latents import CategoricalLatents
from reverie.components.representation_learners.rssm_backward_kernels import (
    block_slope_kernel,
    carry_gradient_kernel,
    gate_gradient_kernel,
    read_slope_kernel,
    seen_slope_kernel,
)
from reverie.components.representation_learners.rssm_by_hand import logits_gradient
from reverie.components.representation_learners.rssm_forward_kernels import (
    block_kernel,
    class_kernel,
    gate_kernel,
    read_kernel,
    seen_kernel,
)
from reverie.components.representation_learners.rssm_tape import Arriving, Inputs, Slopes, Tape, Weights

_ROWS = 16
"""Of the batch in one program: the fewest that a matrix unit takes."""


class FusedSteps:
    """``columns`` of a result that one program makes, and how many terms of its sums it reads at a time."""

    def __init__(self, *, columns: int = 16, depth: int = 128, warps: int = 4, stages: int = 3) -> None:
        self._columns, self._depth = columns, depth
        self._launch = {"num_warps": warps, "num_stages": stages}

    def forward(self, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> Tape:
        return _Forward(self._sizes(inputs, weights, latents), inputs, weights, latents).tape

    def backward(
        self, inputs: Inputs, weights: Weights, latents: CategoricalLatents, tape: Tape, arriving: Arriving
    ) -> Slopes:
        return _Backward(self._sizes(inputs, weights, latents), inputs, weights, latents, tape, arriving).slopes

    def _sizes(self, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> _Sizes:
        return _Sizes(inputs, weights, latents, columns=self._columns, depth=self._depth, launch=self._launch)


class _Sizes:
    """Of one walk: those that kernels are compiled for, and how many programs each result takes."""

    def __init__(
        self,
        inputs: Inputs,
        weights: Weights,
        latents: CategoricalLatents,
        *,
        columns: int,
        depth: int,
        launch: dict[str, int],
    ) -> None:
        self.length, self.batch = inputs.keep.shape[:2]
        self.groups, _, self.own = weights.blocks.shape
        self.hidden, self.deter = weights.seen.shape
        self.flat = latents.stoch * latents.classes
        lanes = triton.next_power_of_2(latents.classes)
        variables = max(1, 16 // lanes)
        self.row_tiles = triton.cdiv(self.batch, _ROWS)
        self.hidden_tiles = triton.cdiv(self.hidden, columns)
        self.block_tiles = self.groups * triton.cdiv(self.own, columns)
        self.deter_tiles = triton.cdiv(self.deter, columns)
        self.class_tiles = triton.cdiv(latents.stoch, variables)
        self.names: dict[str, Any] = {
            "G": self.groups,
            "OWN": self.own,
            "H": self.hidden,
            "S": latents.stoch,
            "C": latents.classes,
            "V": variables,
            "CP": lanes,
            "BM": _ROWS,
            "BN": columns,
            "BK": depth,
            **launch,
        }

    def run(self, kernel: Any, tiles: int, *arguments: Any, **flags: bool) -> None:
        kernel[(self.row_tiles, tiles)](*arguments, self.batch, **flags, **self.names)


class _Forward:
    def __init__(self, sizes: _Sizes, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> None:
        self._sizes, self._weights, self._mix = sizes, weights, latents.unimix
        dtype, wide = weights.output.dtype, inputs.deter.dtype
        length, batch, like = sizes.length, sizes.batch, inputs.deter
        self.tape = Tape(
            deter=like.new_empty(length + 1, batch, sizes.deter, dtype=wide),
            stoch=like.new_empty(length + 1, batch, sizes.flat, dtype=dtype),
            reads=like.new_empty(length, batch, 2, sizes.hidden, dtype=dtype),
            blocks=like.new_empty(length, batch, sizes.deter, dtype=dtype),
            gates=like.new_empty(length, batch, sizes.groups, 3 * sizes.own, dtype=dtype),
            seen=like.new_empty(length, batch, sizes.hidden, dtype=dtype),
            logits=like.new_empty(length, batch, sizes.flat, dtype=dtype),
        )
        self._read_parts = like.new_empty(2 * sizes.hidden_tiles, batch, dtype=torch.float32)
        self._block_parts = like.new_empty(sizes.block_tiles, batch, dtype=torch.float32)
        self._seen_parts = like.new_empty(sizes.hidden_tiles, batch, dtype=torch.float32)
        self.tape.deter[0].copy_(inputs.deter)
        self.tape.stoch[0].copy_(inputs.stoch.flatten(-2))
        self._read = like.new_empty(batch, sizes.deter, dtype=dtype).copy_(inputs.deter)
        parts = inputs.keep.contiguous(), inputs.action.contiguous(), inputs.tokens.contiguous()
        for step in range(length):
            self._step(step, *parts, None if inputs.noise is None else inputs.noise[step])

    def _step(self, step: int, keep: Tensor, action: Tensor, tokens: Tensor, noise: Tensor | None) -> None:
        sizes, w, tape, run = self._sizes, self._weights, self.tape, self._sizes.run
        reads, blocks, gates, seen = tape.reads[step], tape.blocks[step], tape.gates[step], tape.seen[step]
        old, new, kept = tape.deter[step], tape.deter[step + 1], keep[step]
        stoch, logits = tape.stoch[step + 1], tape.logits[step]
        two = w.deter, w.deter_bias, w.stoch, w.stoch_bias
        run(read_kernel, 2 * sizes.hidden_tiles, self._read, tape.stoch[step], kept, *two, reads, self._read_parts)
        common = reads, self._read_parts, w.read_scales, action[step], w.blocks
        run(block_kernel, sizes.block_tiles, self._read, kept, *common, blocks, self._block_parts)
        layer = blocks, self._block_parts, w.block_scale, w.gates, w.gate_bias
        run(gate_kernel, sizes.block_tiles, old, kept, *layer, gates, new, self._read)
        run(seen_kernel, sizes.hidden_tiles, self._read, tokens[step], w.seen, seen, self._seen_parts)
        layer = seen, self._seen_parts, w.seen_scale, w.output, w.output_bias
        points = logits if noise is None else noise  # where there is no noise, nothing is read there
        flags = {"HAS_NOISE": noise is not None}
        run(class_kernel, sizes.class_tiles, *layer, points, logits, stoch, self._mix, **flags)


class _Backward:
    def __init__(
        self,
        sizes: _Sizes,
        inputs: Inputs,
        weights: Weights,
        latents: CategoricalLatents,
        tape: Tape,
        arriving: Arriving,
    ) -> None:
        self._sizes, self._weights, self._mix = sizes, weights, latents.unimix
        self._tape, self._arriving, self._keep = tape, arriving, inputs.keep.contiguous()
        self._inverses = [_inverse(x) for x in (tape.reads, tape.blocks, tape.seen)]
        wide = arriving.deter[0]
        self.slopes = Slopes(
            deter=torch.zeros_like(wide),
            stoch=torch.zeros_like(arriving.stoch[0]),
            reads=torch.empty_like(tape.reads, dtype=torch.float32),
            blocks=torch.empty_like(tape.blocks, dtype=torch.float32),
            gates=torch.empty_like(tape.gates),
            seen=torch.empty_like(tape.seen, dtype=torch.float32),
            logits=torch.empty_like(tape.logits),
        )
        self._to_old = torch.empty_like(wide)
        self._read_parts = wide.new_empty(2 * sizes.hidden_tiles, sizes.batch)
        self._block_parts = wide.new_empty(sizes.block_tiles, sizes.batch)
        self._seen_parts = wide.new_empty(sizes.hidden_tiles, sizes.batch)
        last = logits_gradient(arriving.stoch[-1], tape.logits[-1], latents).add_(arriving.logits[-1])
        self.slopes.logits[-1].copy_(last)
        for step in reversed(range(sizes.length)):
            self._step(step)

    def _step(self, step: int) -> None:
        sizes, w, run = self._sizes, self._weights, self._sizes.run
        reads, blocks, gates, seen, _ = (one[step] for one in self._tape[2:])
        read_slope, block_slope, to_gates, seen_slope, to_logits = (one[step] for one in self.slopes[2:])
        read_inverse, block_inverse, seen_inverse = (one[step] for one in self._inverses)
        keep, old, above = self._keep[step], self._tape.deter[step], self._arriving.deter[step]
        norm = seen, seen_inverse, w.seen_scale
        run(seen_slope_kernel, sizes.hidden_tiles, to_logits, w.output, *norm, seen_slope, self._seen_parts)
        layer = seen_slope, *norm, self._seen_parts, w.seen
        state = above, self.slopes.deter, old, keep, gates
        run(gate_gradient_kernel, sizes.deter_tiles, *layer, *state, to_gates, self._to_old)
        norm = blocks, block_inverse, w.block_scale
        run(block_slope_kernel, sizes.block_tiles, to_gates, w.gates, *norm, block_slope, self._block_parts)
        layer = block_slope, *norm, self._block_parts, w.blocks, self._to_old
        norm = reads, read_inverse, w.read_scales
        tiles = sizes.block_tiles + 2 * sizes.hidden_tiles
        run(read_slope_kernel, tiles, *layer, *norm, read_slope, self._read_parts)
        layer = read_slope, *norm, self._read_parts, w.deter, w.stoch, keep, self._to_old, *self.slopes[:2]
        past = max(step - 1, 0)
        before = self._arriving.stoch[past], self._tape.logits[past], self._arriving.logits[past]
        flags = {"HAS_PAST": step > 0}
        tiles = sizes.deter_tiles + sizes.class_tiles
        run(carry_gradient_kernel, tiles, *layer, *before, self.slopes.logits[past], self._mix, **flags)


def _inverse(x: Tensor) -> Tensor:
    """What each norm multiplied its rows with, of all steps at once."""
    return torch.rsqrt(x.float().square().mean(-1) + NORM_EPSILON)
