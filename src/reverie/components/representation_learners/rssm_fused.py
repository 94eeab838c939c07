"""DreamerV3's walk in kernels of its own: five for a step, five for its gradients, and some that add up long sums.

Written in Triton. All launches can be captured in a CUDA graph: shapes are known beforehand and nothing is asked of the
device. All sums have one order, so that the same numbers come out every time.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from reverie.components.representation_learners.rssm_piece_kernels import shared_slope_kernel, whole_kernel
from reverie.components.representation_learners.rssm_tape import Arriving, Inputs, Slopes, Tape, Weights
from reverie.runtime.kernel_room import AMPERE_BYTES, shared_bytes

_ROWS = 16
"""Of the batch in one program: the fewest that a matrix unit takes."""


_WAVE = 128
"""Programs that keep a large device busy, nearly one for each of its multiprocessors."""


@dataclass(frozen=True, kw_only=True)
class FusedSteps:
    """How the work is cut. What is None follows from the sizes of a walk."""

    columns: int | None = None
    """In one program, of a result as wide as ``deter``. Hidden layers are narrow: half as many there, for twice the
    depth, so that a tile of weights has as many bytes, and twice as many programs share the work."""
    depth: int | None = None
    """Terms of a sum that are read at a time."""
    terms: int = 2048
    """Of a sum over ``deter`` for a hidden layer, the most that one program takes."""
    warps: int = 4
    """In one program. Each has its own part of the terms, so that there must be 16 for each at a time."""
    stages: int | None = None
    """One more than the tiles of weights that a program holds, in use or on their way: with less than 24 KB on their
    way to each multiprocessor of a large device, its memory would wait. So None is four, and two where that many do not
    fit."""
    has_overlap: bool | None = None
    """Kernels are launched before the ones ahead of them have ended, and wait on the device: an eighth faster where
    launches are what counts, and nothing where it is the memory. So None is for all but the widest."""

    def forward(self, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> Tape:
        return _Forward(_Sizes(self, inputs, weights, latents), inputs, weights, latents).tape

    def backward(
        self, inputs: Inputs, weights: Weights, latents: CategoricalLatents, tape: Tape, arriving: Arriving
    ) -> Slopes:
        return _Backward(_Sizes(self, inputs, weights, latents), inputs, weights, latents, tape, arriving).slopes


class _Sizes:
    """Of one walk: those that kernels are compiled for, and how many programs each result takes."""

    def __init__(self, cut: FusedSteps, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> None:
        self.length, self.batch = inputs.keep.shape[:2]
        self.groups, _, self.own = weights.blocks.shape
        self.hidden, self.deter = weights.seen.shape
        self.flat = latents.stoch * latents.classes
        # Rows of weights come in lines of 128 bytes, but a tile that wide must leave enough programs.
        is_roomy = not inputs.keep.is_cuda or shared_bytes(inputs.keep.device) >= AMPERE_BYTES
        columns = cut.columns or (64 if is_roomy and self.deter >= 64 * _WAVE else 32)
        depth = cut.depth or max(256 // weights.output.element_size(), 16 * cut.warps)
        terms = _piece(self.deter, cut.terms, 2 * depth)
        self.pieces = triton.cdiv(self.deter, terms)
        lanes = triton.next_power_of_2(latents.classes)
        variables = max(1, 16 // lanes)
        self.row_tiles = triton.cdiv(self.batch, _ROWS)
        self.hidden_tiles = triton.cdiv(self.hidden, columns // 2)
        self.block_tiles = self.groups * triton.cdiv(self.own, columns)
        self.deter_tiles = triton.cdiv(self.deter, columns)
        self.shared_tiles = self.groups * triton.cdiv(2 * self.hidden, columns)
        self.class_tiles = triton.cdiv(latents.stoch, variables)
        has_overlap = _overlap_pays(self.deter, inputs.keep) if cut.has_overlap is None else cut.has_overlap
        overlap = {"launch_pdl": True} if has_overlap else {}
        self.launch = {"num_warps": cut.warps, "num_stages": cut.stages or (4 if is_roomy else 2), **overlap}
        self._names = {
            "G": self.groups,
            "OWN": self.own,
            "H": self.hidden,
            "S": latents.stoch,
            "C": latents.classes,
            "V": variables,
            "CP": lanes,
            "BM": _ROWS,
            "BN": columns,
            "BH": columns // 2,
            "BK": depth,
            "P": cut.warps,
            "T": terms,
            "OVERLAP": has_overlap,
        }

    def known(self, kernel: Any) -> dict[str, int]:
        """Those of the sizes that ``kernel`` is compiled for."""
        found = {name: size for name, size in self._names.items() if name in kernel.arg_names}
        is_narrow = "BN" not in found
        return found | {"BK": 2 * found["BK"]} if is_narrow and "BK" in found else found

    def run(self, kernel: Any, tiles: int, *arguments: Any, **flags: int) -> None:
        kernel[(self.row_tiles, tiles)](*arguments, self.batch, **flags, **self.known(kernel), **self.launch)


def _overlap_pays(deter: int, like: Tensor) -> bool:
    """Where launches are what counts; a GPU before Hopper cannot."""
    if deter >= 64 * _WAVE or not shared_bytes(like.device):
        return False
    return torch.cuda.get_device_capability(like.device) >= (9, 0)


def _piece(terms: int, most: int, depth: int) -> int:
    """Of a sum of ``terms``, what one program takes: all of them alike, as far as whole tiles allow."""
    pieces = triton.cdiv(terms, most)
    return triton.cdiv(triton.cdiv(terms, pieces), depth) * depth


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
        self._pieces = like.new_empty(sizes.pieces, batch, sizes.hidden, dtype=torch.float32)
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
        left = reads, self._read_parts, self._pieces
        run(read_kernel, (sizes.pieces + 1) * sizes.hidden_tiles, self._read, tape.stoch[step], kept, *two, *left)
        self._add_up(w.deter_bias, reads, self._read_parts, ADDED_STRIDE=0, STRIDE=2 * sizes.hidden)
        common = reads, self._read_parts, w.read_scales, action[step], w.blocks
        run(block_kernel, sizes.block_tiles, self._read, kept, *common, blocks, self._block_parts)
        layer = blocks, self._block_parts, w.block_scale, w.gates, w.gate_bias
        run(gate_kernel, sizes.block_tiles, old, kept, *layer, gates, new, self._read)
        left = seen, self._seen_parts, self._pieces
        run(seen_kernel, sizes.pieces * sizes.hidden_tiles, self._read, tokens[step], w.seen, *left)
        self._add_up(tokens[step], seen, self._seen_parts, ADDED_STRIDE=sizes.hidden, STRIDE=sizes.hidden)
        layer = seen, self._seen_parts, w.seen_scale, w.output, w.output_bias
        points = logits if noise is None else noise  # where there is no noise, nothing is read there
        flags = {"HAS_NOISE": noise is not None}
        run(class_kernel, sizes.class_tiles, *layer, points, logits, stoch, self._mix, **flags)

    def _add_up(self, added: Tensor, whole: Tensor, parts: Tensor, **strides: int) -> None:
        if self._sizes.pieces > 1:
            self._sizes.run(whole_kernel, self._sizes.hidden_tiles, self._pieces, added, whole, parts, **strides)


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
        self._pieces = wide.new_empty(sizes.groups, sizes.batch, 2 * sizes.hidden)
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
        run(read_slope_kernel, sizes.block_tiles + sizes.shared_tiles, *layer, self._pieces)
        norm = reads, read_inverse, w.read_scales
        run(shared_slope_kernel, 2 * sizes.hidden_tiles, self._pieces, *norm, read_slope, self._read_parts)
        layer = read_slope, *norm, self._read_parts, w.deter, w.stoch, keep, self._to_old, *self.slopes[:2]
        past = max(step - 1, 0)
        before = self._arriving.stoch[past], self._tape.logits[past], self._arriving.logits[past]
        flags = {"HAS_PAST": step > 0}
        tiles = sizes.deter_tiles + sizes.class_tiles
        run(carry_gradient_kernel, tiles, *layer, *before, self.slopes.logits[past], self._mix, **flags)


def _inverse(x: Tensor) -> Tensor:
    """What each norm multiplied its rows with, of all steps at once."""
    return torch.rsqrt(x.float().square().mean(-1) + NORM_EPSILON)
