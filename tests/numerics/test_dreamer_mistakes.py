"""The mistakes that implementations of DreamerV3 make. Each test builds the wrong value too, and ours differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_dreamer import (
    CPU,
    SPACES,
    composed,
    first_latent,
    modelled,
    phase,
    shaken_dreamer,
    small_dreamer,
    synthetic_batch,
    values,
)
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.build import assemble, assemble_orchestrator
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.distributions import TwoHot, symexp_bins
from reverie.components.networks.layers import BlockLinear, NormSilu
from reverie.components.networks.symlog import symlog
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.rssm import Rssm
from reverie.orchestration.display import make_display
from reverie.orchestration.logger import Counters
from reverie.runtime.optimizer import LaProp
from reverie.types import Batch, Row, Space, Spaces
from reverie.workflows.dreamer import Dreamer, without_context
from reverie.workflows.dreamer_records import Dreamed

NUM, HORIZON, LAMBDA = 3, 4, 0.95


def differs(one: Tensor, other: Tensor) -> bool:
    return not torch.allclose(one, other, rtol=1e-3, atol=1e-4)


# A dream whose rewards, continues and values are known


class Known:
    """Stands for a distribution whose mean is given; its loss is the distance to the target."""

    def __init__(self, mean: Tensor) -> None:
        self._mean = mean

    def mean(self) -> Tensor:
        return self._mean

    def loss(self, target: Tensor) -> Tensor:
        width = target.shape[1]
        return (self._mean[:, :width] - target).abs()


class KnownCritic:
    def __init__(self, value: Tensor, slow: Tensor) -> None:
        self.value, self.slow = value, slow

    def __call__(self, feature: Tensor) -> Known:
        return Known(self.value[:, : feature.shape[1]])

    def slow_value(self, feature: Tensor) -> Tensor:
        return self.slow[:, : feature.shape[1]]

    def worth(self, _feature: Tensor, value: Known) -> Tensor:
        return value.mean()


DISCRETE = SPACES.action
CONTINUOUS = Space(shape=(2,), dtype="float32")


class KnownDream:
    """The behaviour losses of a workflow whose heads say what this object holds."""

    def __init__(self, action: Space = DISCRETE) -> None:
        rng = torch.Generator().manual_seed(5)
        shape = (NUM, HORIZON + 1)
        self.reward = torch.randn(shape, generator=rng)
        self.live = torch.rand(shape, generator=rng)
        self.value = torch.randn(shape, generator=rng)
        self.slow = torch.randn(shape, generator=rng)
        self.workflow = shaken_dreamer("workflow.entropy_scale=0.5", spaces=Spaces(obs=SPACES.obs, action=action))
        self.dreamed = Dreamed(feature=torch.randn(*shape, 16, generator=rng), action=values(action, *shape, rng))
        parts: dict[str, Any] = {
            "_reward_head": lambda _feature: Known(self.reward),
            "_continue_head": lambda _feature: Known(self.live),
            "_critic": KnownCritic(self.value, self.slow),
        }
        for name, part in parts.items():
            setattr(self.workflow, name, part)

    def losses(self) -> tuple[dict[str, Tensor], Tensor]:
        judged = self.workflow._judged(self.dreamed, self.live[:, 0])
        return judged.losses, judged.returns[:, 0]

    def returns(self, value: Tensor, *, shift: int = 1) -> Tensor:
        """Lambda-returns by the recursion; ``shift`` 1 reads rewards and continues at the arrival."""
        result, last = [], value[:, -1]
        for t in reversed(range(HORIZON)):
            reward, live = self.reward[:, t + shift], self.live[:, t + shift]
            last = reward + live * ((1 - LAMBDA) * value[:, t + 1] + LAMBDA * last)
            result.append(last)
        return torch.stack(result[::-1], 1)

    def weight(self, *, has_start: bool = True) -> Tensor:
        live = self.live.clone()
        if not has_start:
            live[:, 0] = 1.0
        return live.cumprod(1)[:, :-1]

    def gain_and_entropy(self) -> tuple[Tensor, Tensor]:
        policy = self.workflow._actor(self.dreamed.feature[:, :-1])
        # A fresh scale is 1: its moving average has seen a hundredth of the range.
        advantage = self.returns(self.value) - self.value[:, :-1]
        return policy.log_prob(self.dreamed.action[:, :-1]) * advantage, policy.entropy()


# 1


def test_free_nats_clip_each_state_and_not_the_mean() -> None:
    workflow = shaken_dreamer(size=0.5)
    workflow.draw_the_most_likely()
    batch = synthetic_batch()
    found = modelled(workflow, batch)
    latents, losses = found.latents, found.losses
    _, posterior = observed(workflow, batch)
    kl = workflow._rssm.kl(posterior, workflow._rssm.prior(latents.deter))[0]
    assert (kl < 1).any()
    assert (kl > 1).any()
    torch.testing.assert_close(losses["dynamics"], kl.clamp(min=1.0))
    torch.testing.assert_close(losses["representation"], kl.clamp(min=1.0))
    assert differs(losses["dynamics"].mean(), kl.mean().clamp(min=1.0))
    weights = composed().workflow.loss_weights
    assert (weights.dynamics, weights.representation) == (1.0, 0.1)


def observed(workflow: Dreamer, batch: Batch) -> tuple[Latent, Tensor]:
    seen = without_context(batch)
    carry = first_latent(workflow, batch)
    action = F.one_hot(batch.action[:, :-1], 3).float()
    return workflow._rssm.observe(carry, workflow._encoder(seen.obs), action, seen.is_first, None)


# 2


def test_two_hot_targets_stay_raw() -> None:
    bins = symexp_bins(255)
    target = torch.tensor([5.0, -120.0, 0.3])

    def two_hot(value: Tensor) -> Tensor:
        above = (bins <= value.unsqueeze(-1)).sum(-1)
        share = (value - bins[above - 1]) / (bins[above] - bins[above - 1])
        weights = torch.zeros(len(value), 255)
        rows = torch.arange(len(value))
        weights[rows, above - 1], weights[rows, above] = 1 - share, share
        return weights

    log_probs = torch.randn(3, 255, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    ours = TwoHot(log_probs, bins).loss(target)
    torch.testing.assert_close(ours, -(two_hot(target) * log_probs).sum(-1), rtol=1e-4, atol=1e-4)
    assert differs(ours, -(two_hot(symlog(target)) * log_probs).sum(-1))
    perfect = TwoHot(two_hot(target).clamp(min=1e-30).log(), bins)
    torch.testing.assert_close(perfect.mean(), target, rtol=1e-3, atol=1e-3)


# 3


def test_the_return_scale_starts_at_zero_is_not_debiased_and_never_falls_below_one() -> None:
    returns = torch.linspace(0, 100, 1001)
    scale = ReturnScale()
    first, second = scale.update(returns), scale.update(returns)
    unfloored, debiased = 0.01 * 90, 90.0
    assert float(first) == 1.0
    assert float(first) not in (pytest.approx(unfloored), pytest.approx(debiased))
    assert float(second) == pytest.approx((1 - 0.99**2) * 90, rel=1e-4)
    assert float(scale.low) == pytest.approx((1 - 0.99**2) * 5, rel=1e-4)


def test_the_scale_is_updated_before_it_is_used_and_the_low_end_is_not_subtracted() -> None:
    dream = KnownDream()
    dream.reward += 1000.0
    losses, _ = dream.losses()
    returns = dream.returns(dream.value)
    low, high = torch.quantile(returns.flatten(), torch.tensor([0.05, 0.95]))
    scale = (0.01 * (high - low)).clamp(min=1.0)
    assert scale > 2
    gain, entropy = dream.gain_and_entropy()
    torch.testing.assert_close(losses["policy"], -dream.weight() * (gain / scale + 0.5 * entropy), rtol=1e-4, atol=1e-3)
    assert differs(losses["policy"], -dream.weight() * (gain + 0.5 * entropy))


# 4


def core_step(rssm: Rssm, latent: Latent, action: Tensor, gates: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The new deter, with ``gates(gate outputs [N, G, 3 * D / G], old deter)`` in the place of the gated update."""
    deter, blocks = latent.deter, rssm._blocks
    parts = [rssm.read_deter(deter), rssm.read_stoch(latent.stoch.flatten(1)), rssm.read_action(action)]
    inputs = torch.cat(parts, -1).unsqueeze(1).expand(-1, blocks, -1)
    x = torch.cat([deter.unflatten(-1, (blocks, -1)), inputs], -1)
    for layer, norm in zip(rssm.dynamics, rssm.dynamics_norms, strict=True):
        x = norm(layer(x).flatten(1)).unflatten(-1, (blocks, -1))
    return gates(rssm.gates(x), deter)


def gated(reset: Tensor, candidate: Tensor, update: Tensor, old: Tensor) -> Tensor:
    update = (update - 1).sigmoid()
    return update * torch.tanh(reset.sigmoid() * candidate) + (1 - update) * old


def by_block(outputs: Tensor) -> list[Tensor]:
    return [part.flatten(1) for part in outputs.chunk(3, -1)]


def flat_split(outputs: Tensor, old: Tensor) -> Tensor:
    reset, candidate, update = outputs.flatten(1).chunk(3, -1)
    return gated(reset, candidate, update, old)


def without_update_bias(outputs: Tensor, old: Tensor) -> Tensor:
    reset, candidate, update = by_block(outputs)
    return gated(reset, candidate, update + 1, old)


def reset_on_the_old_state(outputs: Tensor, old: Tensor) -> Tensor:
    reset, candidate, update = by_block(outputs)
    update = (update - 1).sigmoid()
    return update * torch.tanh(candidate + reset.sigmoid() * old) + (1 - update) * old


def test_gates_are_split_inside_each_block_with_the_update_bias_and_the_reset_on_the_candidate() -> None:
    workflow = shaken_dreamer()
    latent = first_latent(workflow, synthetic_batch())
    action = F.one_hot(torch.tensor([0, 1, 2, 0]), 3).float()
    rssm = workflow._rssm
    assert isinstance(rssm, Rssm)
    ours = rssm.imagine(latent, action, None).deter
    right = core_step(rssm, latent, action, lambda outputs, old: gated(*by_block(outputs), old))
    torch.testing.assert_close(ours, right)
    for wrong in (flat_split, without_update_bias, reset_on_the_old_state):
        assert differs(ours, core_step(rssm, latent, action, wrong)), wrong.__name__


# 5


def test_a_reward_belongs_to_the_state_it_arrives_with() -> None:
    dream = KnownDream()
    _, start_return = dream.losses()
    torch.testing.assert_close(start_return, dream.returns(dream.value)[:, 0])
    assert differs(start_return, dream.returns(dream.value, shift=0)[:, 0])


def test_the_reward_head_learns_the_reward_of_its_own_row() -> None:
    workflow = shaken_dreamer()
    workflow.draw_the_most_likely()
    batch = synthetic_batch()
    found = modelled(workflow, batch)
    latents, losses = found.latents, found.losses
    head = workflow._reward_head(latents.feature)
    torch.testing.assert_close(losses["reward"], head.loss(batch.reward[:, 1:]))
    assert differs(losses["reward"], head.loss(batch.reward[:, :-1]))


# 6


def test_training_starts_from_the_stored_latent_and_not_from_zeros() -> None:
    workflow = shaken_dreamer()
    workflow.draw_the_most_likely()
    batch = synthetic_batch()
    ours = modelled(workflow, batch).latents
    right, _ = observed(workflow, batch)
    torch.testing.assert_close(ours.deter, right.deter)
    forced = replace(batch, is_first=batch.is_first.clone())
    forced.is_first[:, 1] = True
    wrong, _ = observed(workflow, forced)
    assert differs(ours.deter[:, 0], wrong.deter[:, 0])


def test_the_previous_action_is_all_zero_at_a_reset() -> None:
    rssm = shaken_dreamer()._rssm
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(1, 1, 8, generator=rng)
    carry = Latent(deter=torch.randn(1, 8, generator=rng), stoch=torch.zeros(1, 2, 4))

    def deter(action: Tensor, is_first: bool) -> Tensor:
        return rssm.observe(carry, tokens, action.view(1, 1, 3), torch.tensor([[is_first]]), None)[0].deter[0, 0]

    actions = torch.eye(3)
    zero = rssm.observe(rssm.initial(1, CPU), tokens, torch.zeros(1, 1, 3), torch.tensor([[False]]), None)[0]
    for action in actions:
        torch.testing.assert_close(deter(action, True), zero.deter[0, 0])
        assert differs(deter(action, False), zero.deter[0, 0])
    kept = rssm.observe(rssm.initial(1, CPU), tokens, actions[:1].view(1, 1, 3), torch.tensor([[False]]), None)[0]
    assert differs(deter(actions[0], True), kept.deter[0, 0])


def test_a_continuous_previous_action_is_zero_at_a_reset_and_scaled_to_the_border_elsewhere() -> None:
    rssm = shaken_dreamer(spaces=Spaces(obs=SPACES.obs, action=CONTINUOUS))._rssm
    rng = torch.Generator().manual_seed(0)
    tokens, carry = torch.randn(1, 1, 8, generator=rng), rssm.initial(1, CPU)

    def deter(action: list[float], is_first: bool) -> Tensor:
        flags = torch.tensor([[is_first]])
        return rssm.observe(carry, tokens, torch.tensor(action).view(1, 1, 2), flags, None)[0].deter

    torch.testing.assert_close(deter([3.0, -0.5], True), deter([0.0, 0.0], False))
    torch.testing.assert_close(deter([3.0, -0.5], False), deter([1.0, -0.5], False))
    assert differs(deter([3.0, -0.5], False), deter([0.0, 0.0], False))


# 7


def test_new_latents_come_back_for_the_trained_rows_and_the_next_window_starts_from_them() -> None:
    workflow = shaken_dreamer()
    batch = synthetic_batch(size=2)
    buffer = WorldModelSequenceBuffer(capacity=14, num_streams=2, rng=torch.Generator())
    for t in range(7):
        buffer.append(
            Row(
                obs={"vector": batch.obs["vector"][:, t]},
                reward=batch.reward[:, t],
                is_first=batch.is_first[:, t],
                is_last=batch.is_last[:, t],
                is_terminal=batch.is_terminal[:, t],
                action=batch.action[:, t],
                stored={key: value[:, t] for key, value in batch.stored.items()},
            )
        )
    sampled = buffer.sample(2, 7, sampler="fresh_first")
    written = workflow.update(sampled, phase=phase()).write_back
    assert written is not None
    assert written["deter"].shape == (2, 6, 8)
    buffer.write_back(sampled.index, written)
    again = buffer.rows_at(sampled.index)
    assert torch.equal(again.stored["deter"][:, 0], sampled.stored["deter"][:, 0]), "the context row stays as it was"
    assert torch.equal(again.stored["deter"][:, 1:], written["deter"])
    assert differs(again.stored["deter"][:, 1:].float(), sampled.stored["deter"][:, 1:].float())


def test_the_loop_writes_back_after_every_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[set[str]] = []
    monkeypatch.setattr(WorldModelSequenceBuffer, "write_back", lambda _self, _index, values: calls.append(set(values)))
    counters = counters_of_a_run(tmp_path, action_repeat=1)
    assert counters.updates > 0
    assert calls == [{"deter", "stoch"}] * counters.updates


# 8


def test_returns_bootstrap_from_the_online_critic_and_the_slow_one_only_steadies() -> None:
    dream = KnownDream()
    losses, start_return = dream.losses()
    returns = dream.returns(dream.value)
    torch.testing.assert_close(start_return, returns[:, 0])
    assert differs(start_return, dream.returns(dream.slow)[:, 0])
    distance = (dream.value[:, :-1] - returns).abs()
    steady = (dream.value - dream.slow)[:, :-1].abs()
    torch.testing.assert_close(losses["value"], dream.weight() * (distance + steady))
    assert differs(losses["value"], dream.weight() * distance)


# 9


def after_one_update(gradient: Tensor, **settings: float) -> Tensor:
    weight = nn.Parameter(torch.ones(2, 3))
    laprop = LaProp({"weight": weight}, learning_rate=1.0, warmup_updates=0, **settings)
    laprop.apply((gradient,))
    laprop.apply((torch.full((2, 3), 1e-3),))
    return weight.detach()


def test_clipping_is_per_tensor_and_momentum_comes_after_the_scaling() -> None:
    """Two updates by hand: one row's large gradient, then equal small ones."""
    gradient = torch.tensor([[9.0, 9.0, 9.0], [0.1, 0.2, 0.3]])
    small = torch.full((2, 3), 1e-3)

    def clipped(value: Tensor, weight: Tensor, *, is_per_row: bool = False) -> Tensor:
        dim = 1 if is_per_row else None
        norm, size = value.norm(dim=dim, keepdim=True), weight.norm(dim=dim, keepdim=True)
        return value / (norm / (0.3 * size.clamp(min=1e-3))).clamp(min=1.0)

    def by_hand(*, is_per_row: bool = False, is_adam: bool = False) -> Tensor:
        weight, square, mean = torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2, 3)
        for update, raw in enumerate((gradient, small), start=1):
            value = clipped(raw, weight, is_per_row=is_per_row)
            square = 0.999 * square + 0.001 * value**2
            rms = (square / (1 - 0.999**update)).sqrt() + 1e-20
            mean = 0.9 * mean + 0.1 * (value if is_adam else value / rms)
            step = mean / (1 - 0.9**update)
            weight = weight - (step / rms if is_adam else step)
        return weight

    ours = after_one_update(gradient)
    torch.testing.assert_close(ours, by_hand(), rtol=1e-4, atol=1e-4)
    assert differs(ours, by_hand(is_per_row=True))
    assert differs(ours, by_hand(is_adam=True))


def test_the_epsilon_lets_tiny_gradients_count_fully() -> None:
    parameter = nn.Parameter(torch.ones(3))
    LaProp({"p": parameter}, learning_rate=0.1, warmup_updates=0).apply((torch.full((3,), 1e-12),))
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.9))
    wrong = 1 - 0.1 * 1e-12 / (1e-12 + 1e-8)
    assert differs(parameter.detach(), torch.full((3,), wrong))
    assert composed().optimizers.model.epsilon == 1e-20


# 10


def test_block_weights_start_small_norms_have_the_large_epsilon_and_every_layer_a_bias() -> None:
    layer = BlockLinear(1024, 1024, blocks=8)
    right, per_block = (1.1368 * 0.87962566 / math.sqrt(fan_in) for fan_in in (1024, 128))
    assert float(layer.weight.detach().std()) == pytest.approx(right, rel=0.02)
    assert float(layer.weight.detach().std()) != pytest.approx(per_block, rel=0.5)

    x = torch.tensor([[0.003, -0.001, 0.002]])
    ours = NormSilu(3)(x).detach()
    formula = [F.silu(x * torch.rsqrt(x.square().mean() + epsilon)) for epsilon in (1e-4, 1e-6)]
    torch.testing.assert_close(ours, formula[0])
    assert differs(ours, formula[1])

    picture = {"image": Space(shape=(16, 16, 3), dtype="uint8"), **SPACES.obs}
    modules = small_dreamer(spaces=Spaces(obs=picture, action=CONTINUOUS)).modules()
    kinds = (nn.Linear, BlockLinear, nn.Conv2d)
    layers = [m for module in modules.values() for m in module.modules() if isinstance(m, kinds)]
    assert len(layers) > 30
    assert all(isinstance(layer.bias, nn.Parameter) for layer in layers)


# 11


def counters_of_a_run(folder: Path, *, action_repeat: int) -> Counters:
    config = composed(
        "training.total_timesteps=64",
        "environment.num_envs=2",
        "training.train_ratio=16",
        "training.batch_size=4",
        "training.batch_length=8",
        f"environment.simulator.action_repeat={action_repeat}",
        "evaluation.every_steps=null",
        "evaluation.episodes=1",
        "logging.has_tensorboard=false",
    )
    parts = assemble(config, device=CPU, allow=None)
    orchestrator = assemble_orchestrator(config, parts, folder=folder, display=make_display())
    orchestrator.begin()
    assert orchestrator.run() == 0
    orchestrator.close()
    return orchestrator.counters()


def test_the_train_ratio_counts_agent_steps_and_not_frames(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "twice").mkdir()
    once = counters_of_a_run(tmp_path / "once", action_repeat=1)
    twice = counters_of_a_run(tmp_path / "twice", action_repeat=2)
    assert (once.agent_steps, once.env_frames) == (64, 64)
    assert (twice.agent_steps, twice.env_frames) == (64, 128)
    by_steps, by_frames = 64 * 16 // (4 * 8), 128 * 16 // (4 * 8)
    assert once.updates == twice.updates == by_steps
    assert twice.updates != by_frames


# 12


def test_every_replayed_state_starts_a_dream(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, starts = shaken_dreamer(), []
    imagine = workflow.imagine
    monkeypatch.setattr(workflow, "imagine", lambda **given: starts.append(given["starts"]) or imagine(**given))
    written = workflow.update(synthetic_batch(), phase=phase()).write_back
    assert written is not None
    assert starts[0].deter.shape == (4 * 6, 8)
    assert starts[0].deter.shape != (4, 8), "not only the last state"
    assert torch.equal(starts[0].deter.to(torch.bfloat16), written["deter"].flatten(0, 1))


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_the_weight_includes_the_start_s_own_continue(action: Space) -> None:
    dream = KnownDream(action)
    losses, _ = dream.losses()
    gain, entropy = dream.gain_and_entropy()
    torch.testing.assert_close(losses["policy"], -dream.weight() * (gain + 0.5 * entropy))
    assert differs(losses["policy"], -dream.weight(has_start=False) * (gain + 0.5 * entropy))


# 14


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_the_entropy_bonus_lies_inside_the_weight(action: Space) -> None:
    dream = KnownDream(action)
    losses, _ = dream.losses()
    gain, entropy = dream.gain_and_entropy()
    torch.testing.assert_close(losses["policy"], -dream.weight() * (gain + 0.5 * entropy))
    assert differs(losses["policy"], -(dream.weight() * gain + 0.5 * entropy))
