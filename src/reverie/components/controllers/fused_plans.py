"""TD-MPC2's plans in kernels of their own: 20 for an iteration, where the compiler makes more than a hundred.

Written in Triton. From the same noise they are the plans of ``mppi.py``, rounded in another order. All launches can be
captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from reverie.components.controllers.action_search import Belief, GaussianSearch
from reverie.components.controllers.latent_model import LatentModel
from reverie.components.controllers.mppi import Mppi, PlanNoise
from reverie.components.controllers.plan_kernels import (
    action_kernel,
    choice_kernel,
    draw_kernel,
    rank_kernel,
    returns_kernel,
)
from reverie.components.controllers.plan_layer_kernel import MISH, PLAIN, SIMNORM, layer_kernel
from reverie.components.controllers.plan_layers import Layer, plan_layers


class LayerCut(NamedTuple):
    """What one program makes of a layer."""

    rows: int
    columns: int
    depth: int
    """Terms of a sum that are read at a time."""
    warps: int
    stages: int

    @classmethod
    def of(cls, rows: int, outputs: int, groups: int, *, is_narrow: bool) -> LayerCut:
        """Wide programs work out the same rows less often, but all multiprocessors should have one."""
        if not is_narrow:
            return cls(16, 32, 64, 4, 2)
        columns = 128
        while columns > 16 and triton.cdiv(rows, 16) * triton.cdiv(outputs, columns) * groups <= _PROGRAMS // 2:
            columns //= 2
        return cls(16, columns, 128, 8 if columns > 32 else 4, 3)


_PROGRAMS = 132
"""One for each multiprocessor of an H200."""


class FusedPlans:
    """The plans of one agent, whose networks are as ``can_be_layers`` asks. ``dtype`` is that of products."""

    def __init__(
        self, planner: Mppi, search: GaussianSearch, model: LatentModel, dtype: torch.dtype, *, has_overlap: bool
    ) -> None:
        self.temperature, self.search, self.model, self.dtype = planner.temperature, search, model, dtype
        self.layers = plan_layers(model, dtype)
        self.has_overlap = has_overlap

    def __call__(self, latent: Tensor, previous_mean: Tensor, noise: PlanNoise) -> tuple[Tensor, Tensor]:
        """Actions [N, A], and the means of the plans [H, N, A]. The arguments are those of ``Mppi``."""
        self.layers.copies.refresh()
        # Ordinary launches follow, so the first kernel that overlaps may read the copies before it waits.
        begun = self.search.begin(torch.cat([previous_mean[1:], torch.zeros_like(previous_mean[:1])]))
        return _Planning(self, begun, latent.to(self.dtype).contiguous(), noise).result()


class _Read(NamedTuple):
    """What a layer reads: latents of environments, or what another layer left."""

    x: Tensor
    """[networks, rows, K], one for all networks where there is one."""
    sums: Tensor
    """[networks, parts, 2, rows]: of each row and of its squares, by the programs that made them."""
    kind: Any
    """What becomes of a row first."""
    repeat: int = 1
    """Plans that one row serves."""

    def of(self, networks: Any) -> _Read:
        return self._replace(x=self.x[networks], sums=self.sums[networks])


class _Planning:
    """One call: what its kernels write into, and their launches in order."""

    def __init__(self, plans: FusedPlans, begun: Belief, latent: Tensor, noise: PlanNoise) -> None:
        self._plans, self._layers, self._noise, self._latent = plans, plans.layers, noise, latent.unsqueeze(0)
        self._mean, self._std = begun
        self._steps, self._envs, dim = self._mean.shape
        self._samples, self._elites = noise.last_action.shape[2], noise.choice.shape[1]
        shape, device = (self._envs, self._samples), latent.device
        self._actions = torch.empty(self._steps, *shape, dim, device=device)
        self._last_action = torch.empty(*shape, dim, device=device)
        self._returns, self._weights = torch.empty(2, *shape, device=device)
        self._ranks = torch.empty(shape, dtype=torch.int32, device=device)
        self._width = {"A": dim, "AP": triton.next_power_of_2(dim)}
        self._plenty = {"S": self._samples, "SP": triton.next_power_of_2(self._samples)}

    def result(self) -> tuple[Tensor, Tensor]:
        drawn, search = self._noise.drawn, self._plans.search
        if self._noise.proposed.shape[2]:
            self._propose()
        self._draw(drawn[0], learns=False)
        for turn, (last_action, pair) in enumerate(zip(self._noise.last_action, self._noise.pairs, strict=True)):
            self._judge(last_action, pair)
            self._draw(drawn[turn + 1] if turn + 1 < len(drawn) else None, learns=True)
        chosen = torch.empty_like(self._mean[0])
        arguments = self._ranks, self._weights, self._noise.choice, self._actions, chosen
        self._run(choice_kernel, (self._envs,), *arguments, **self._plenty, E=self._elites, **self._width)
        return search.final(Belief(self._mean, self._std), chosen, self._noise.action), self._mean

    def _seen(self, count: int) -> _Read:
        """The latents, for ``count`` plans of each environment."""
        return _Read(self._latent, self._mean.unsqueeze(0), PLAIN, count)  # nobody reads the sums of a plain row

    def _propose(self) -> None:
        """Actions of the policy, followed from the latents, as the first plans of each environment."""
        count = self._noise.proposed.shape[2]
        rows, state = self._envs * count, self._seen(count)
        for step, noise in enumerate(self._noise.proposed):
            if step:
                for layer in self._layers.shared:
                    state = self._product(layer.last(), state, rows, self._actions[step - 1])
                state = self._product(self._layers.dynamics, state, rows)._replace(kind=SIMNORM)
            self._act(state, rows, noise, self._actions[step])

    def _judge(self, last_action: Tensor, pair: Tensor) -> None:
        """What all plans are worth, and the place of each among those of its environment."""
        layers, rows, state = self._layers, self._envs * self._samples, self._seen(self._samples)
        *further, last = layers.shared
        hidden = self._room(last, rows, self._steps, len(last.weight))
        for step, actions in enumerate(self._actions):
            for layer in further:
                state = self._product(layer, state, rows, actions)
            state = self._product(last, state, rows, actions, into=hidden.of(step))
            state = self._product(layers.dynamics, state.of(slice(1, 2)), rows)._replace(kind=SIMNORM)
        # The rewards of all steps at once: nothing waited for them.
        rewards = self._product(layers.reward, hidden.of((slice(None), 0)), rows).x
        self._act(state, rows, last_action, self._last_action)
        for layer in layers.critic:
            state = self._product(layer, state, rows, self._last_action, members=pair)
        model, form = self._plans.model, self._plans.model.critic.form
        sizes = {"H": self._steps, "CP": triton.next_power_of_2(self._steps + 2)}
        bins = {"B": form.width, "BP": triton.next_power_of_2(form.width)}
        arguments = rewards, state.x, form.bins, self._returns, rows, model.discount
        flags = {"IS_CAUTIOUS": model.critic.is_cautious, "num_warps": 1}  # one warp waits for no other
        self._run(returns_kernel, (rows,), *arguments, **sizes, **bins, **flags)
        arguments = self._returns, self._ranks, self._weights, self._plans.temperature
        grid, at_once = (self._envs, triton.cdiv(self._samples, 4)), min(512, self._plenty["SP"])
        self._run(rank_kernel, grid, *arguments, S=self._samples, E=self._elites, BM=4, BK=at_once)

    def _draw(self, noise: Tensor | None, *, learns: bool) -> None:
        """What is believed of good actions, from the plans that were judged; and new plans, where there is noise."""
        search, proposals = self._plans.search, self._noise.proposed.shape[2]
        known = self._weights, self._weights if noise is None else noise, self._actions
        flags = {"P": proposals, "LEARNS": learns, "DRAWS": noise is not None}
        arguments = *known, self._mean, self._std, search.min_std, search.max_std
        self._run(draw_kernel, (self._envs, self._steps), *arguments, **self._plenty, **self._width, **flags)

    def _act(self, state: _Read, rows: int, noise: Tensor, action: Tensor) -> None:
        """What the policy does, for the first plans of each environment in ``action`` [N, S, A]."""
        for layer in self._layers.policy:
            state = self._product(layer, state, rows)
        prior, sizes = self._plans.model.prior, (rows, rows // self._envs, action.shape[1])
        arguments = state.x, noise, action, *sizes, prior.min_log_std, prior.span
        self._run(action_kernel, (triton.cdiv(rows, 32),), *arguments, **self._width, BM=32)

    def _room(self, layer: Layer, rows: int, *networks: int) -> _Read:
        """For what ``layer`` makes, side by side for so many networks."""
        outputs = layer.weight.shape[1]
        parts = triton.cdiv(outputs, self._cut(layer, rows, networks[-1]).columns)
        x = self._latent.new_empty(*networks, rows, outputs)
        return _Read(x, torch.empty(*networks, parts, 2, rows, device=x.device), MISH)

    def _cut(self, layer: Layer, rows: int, networks: int) -> LayerCut:
        return LayerCut.of(rows, layer.weight.shape[1], networks, is_narrow=self._latent.element_size() == 2)

    def _product(
        self,
        layer: Layer,
        read: _Read,
        rows: int,
        action: Tensor | None = None,
        *,
        members: Tensor | None = None,
        into: _Read | None = None,
    ) -> _Read:
        """A layer. Of ``action`` [N, S, A], the first plans of each environment are read where the layer reads any."""
        networks, outputs, terms = layer.weight.shape
        groups = max(networks, len(read.x)) if members is None else len(members)
        cut, made = self._cut(layer, rows, groups), into or self._room(layer, rows, groups)
        nothing = made.x  # stands where nothing is read
        norm = (self._layers.latent if read.kind is SIMNORM else layer.norm) or (nothing, nothing)
        taken = nothing if action is None else action
        beside = nothing if layer.action is None else layer.action
        asked = nothing if members is None else members
        arguments = read.x, read.sums, *norm, taken, layer.weight, beside, layer.bias, asked, *made[:2]
        apart = (read.x.stride(0), read.sums.stride(0)) if len(read.x) > 1 else (0, 0)
        sizes = rows, *apart, rows * outputs, rows // self._envs, taken.shape[1], read.repeat
        self._run(
            *(layer_kernel, (triton.cdiv(rows, cut.rows), triton.cdiv(outputs, cut.columns), groups)),
            *(*arguments, *sizes),
            K=terms,
            N=outputs,
            A=0 if layer.action is None else self._width["A"],
            AP=max(16, self._width["AP"]),
            KIND=read.kind,
            DIM=self._layers.simnorm_dim,
            OWN=members is None and networks > 1,
            HAS_MEMBERS=members is not None,
            PARTS=read.sums.shape[1],
            LP=triton.next_power_of_2(read.sums.shape[1]),
            BM=cut.rows,
            BN=cut.columns,
            BK=max(16, min(cut.depth, triton.next_power_of_2(terms))),
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
        return made

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **names: Any) -> None:
        overlap = {"launch_pdl": True} if self._plans.has_overlap else {}
        kernel[grid](*arguments, **names, OVERLAP=self._plans.has_overlap, **overlap)
