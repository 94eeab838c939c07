"""DreamerV3's walk in plain operations that autograd follows, in any precision, and made-up walks of all sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.components.representation_learners.latents import CategoricalLatents
from reverie.components.representation_learners.rssm_by_hand import walked_by_hand
from reverie.components.representation_learners.rssm_tape import Inputs, Steps, Weights


@dataclass(frozen=True, kw_only=True)
class Walk:
    length: int = 4
    size: int = 3
    blocks: int = 2
    deter: int = 8
    hidden: int = 5
    stoch: int = 3
    classes: int = 4
    has_noise: bool = True
    unimix: float = 0.01

    @property
    def latents(self) -> CategoricalLatents:
        return CategoricalLatents(stoch=self.stoch, classes=self.classes, unimix=self.unimix)


def made_up(walk: Walk, dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Inputs, Weights]:
    """Random numbers everywhere, also where a fresh model has zeros and ones; episodes begin in the middle."""
    rng = torch.Generator().manual_seed(walk.length + 10 * walk.deter)

    def drawn(*shape: int, fan: int = 1) -> Tensor:
        values = torch.randn(*shape, dtype=torch.float64, generator=rng) / fan**0.5
        return values.to(device=device, dtype=dtype).requires_grad_()

    length, size, own, flat = walk.length, walk.size, walk.deter // walk.blocks, walk.stoch * walk.classes
    keep = (torch.rand(length, size, 1, generator=rng) > 0.3).to(device=device, dtype=dtype)
    noise = torch.rand(length, size, walk.stoch, 1, generator=rng).to(device) if walk.has_noise else None
    parts = drawn(length, size, walk.blocks, own), drawn(length, size, walk.hidden)
    inputs = Inputs(keep, noise, drawn(size, walk.deter), drawn(size, walk.stoch, walk.classes), *parts)
    weights = Weights(
        deter=drawn(walk.hidden, walk.deter, fan=walk.deter),
        deter_bias=drawn(walk.hidden),
        stoch=drawn(walk.hidden, flat, fan=walk.stoch),
        stoch_bias=drawn(walk.hidden),
        read_scales=drawn(2, walk.hidden),
        blocks=drawn(walk.blocks, own + 2 * walk.hidden, own, fan=own + 2 * walk.hidden),
        block_scale=drawn(walk.deter),
        gates=drawn(walk.blocks, own, 3 * own, fan=own),
        gate_bias=drawn(walk.blocks, 3 * own),
        seen=drawn(walk.hidden, walk.deter, fan=walk.deter),
        seen_scale=drawn(walk.hidden),
        output=drawn(flat, walk.hidden, fan=walk.hidden),
        output_bias=drawn(flat),
    )
    return inputs, weights


def plain_walk(inputs: Inputs, w: Weights, latents: CategoricalLatents) -> tuple[Tensor, Tensor, Tensor]:
    deter, stoch, found = inputs.deter, inputs.stoch, []
    for step, keep in enumerate(inputs.keep):
        deter, stoch = deter * keep, stoch * keep.unsqueeze(-1)
        one = _activated(F.linear(deter, w.deter, w.deter_bias), w.read_scales[0])
        two = _activated(F.linear(stoch.flatten(1), w.stoch, w.stoch_bias), w.read_scales[1])
        own = deter.chunk(len(w.blocks), -1)
        x = [torch.cat([part, one, two], -1) @ block for part, block in zip(own, w.blocks, strict=True)]
        x = _activated(torch.cat(x, -1) + inputs.action[step].flatten(1), w.block_scale)
        new = []
        for block, part in enumerate(x.chunk(len(w.blocks), -1)):
            reset, candidate, update = (part @ w.gates[block] + w.gate_bias[block]).chunk(3, -1)
            update = torch.sigmoid(update - 1)
            new.append(update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * own[block])
        deter = torch.cat(new, -1)
        x = _activated(F.linear(deter, w.seen) + inputs.tokens[step], w.seen_scale)
        logits = F.linear(x, w.output, w.output_bias).unflatten(-1, (latents.stoch, latents.classes))
        probs = (1 - latents.unimix) * logits.softmax(-1) + latents.unimix / latents.classes
        # The draw itself is the component's own: it has a test of its own, and must agree to the last bit.
        chosen = latents.sample(logits.detach(), None if inputs.noise is None else inputs.noise[step]).detach()
        stoch = chosen.to(probs.dtype) + probs - probs.detach()
        found.append((deter, stoch, logits))
    deters, stochs, posteriors = (torch.stack(one) for one in zip(*found, strict=True))
    return deters, stochs, posteriors


def _activated(x: Tensor, scale: Tensor) -> Tensor:
    return F.silu(x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt() * scale)


def outcome(walk: Walk, inputs: Inputs, weights: Weights, steps: Steps | None) -> dict[str, Tensor]:
    """All that a walk gives, and the gradient of everything that it reads. Without ``steps`` by autograd."""
    if steps is None:
        found = plain_walk(inputs, weights, walk.latents)
    else:
        found = walked_by_hand(inputs, weights, walk.latents, steps)
    rng = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64, device=inputs.deter.device)
    for value in found:
        factors = torch.randn(value.shape, dtype=torch.float64, generator=rng)
        total = total + (value * factors.to(value.device)).sum()
    leaves = {f"inputs.{name}": value for name, value in inputs._asdict().items() if name not in ("keep", "noise")}
    leaves |= {f"weights.{name}": value for name, value in weights._asdict().items()}
    gradients = torch.autograd.grad(total, list(leaves.values()))
    values = {name: value.detach() for name, value in zip(("deter", "stoch", "logits"), found, strict=True)}
    return values | dict(zip(leaves, gradients, strict=True))
