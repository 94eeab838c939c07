"""DreamerV3: learn a world model from replay, and an actor and a critic inside what it imagines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from reverie.components.controllers.dreamer import (
    Critic,
    DreamerPolicy,
    one_hot_action,
    restored_latent,
    stored_latent,
)
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.distributions import TwoHot
from reverie.components.networks.heads import BinaryHead, OneHotHead, TwoHotHead
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.rssm import Latent, Rssm
from reverie.components.return_computers.base import ReturnComputer
from reverie.components.return_computers.td_lambda import replay_lambda_return
from reverie.types import Batch, Metrics, Phase, Policy, ReverieError, Stateful, require
from reverie.workflows.base import UpdateResult, WorldModelWorkflow, weighted_sum
from reverie.workflows.context import WorkflowContext

LOSSES = frozenset(
    ("reconstruction", "reward", "continue", "dynamics", "representation", "policy", "value", "replay_value")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DreamerV3Config:
    loss_weights: Mapping[str, float]
    """One weight per loss; the names must be exactly those that ``update`` computes."""
    horizon: int = 15
    """Imagined steps from every replayed state."""
    discount_horizon: int = 333
    """gamma = 1 - 1 / discount_horizon; it lives inside the target of the continue head."""
    free_nats: float = 1.0
    """KL below this is not reduced further, per state."""
    entropy_scale: float = 3e-4
    slow_regularizer: float = 1.0
    """Weight of the pull of the critic towards its slow copy."""
    replay_lambda: float = 0.95
    """Lambda of the returns along replayed sequences."""

    def __post_init__(self) -> None:
        require("workflow.horizon", self.horizon, at_least=1)
        require("workflow.discount_horizon", self.discount_horizon, at_least=2)
        require("workflow.replay_lambda", self.replay_lambda, at_least=0, at_most=1)
        for name in ("free_nats", "entropy_scale", "slow_regularizer"):
            require(f"workflow.{name}", getattr(self, name), at_least=0)
        if self.loss_weights.keys() != LOSSES:
            names, given = ", ".join(sorted(LOSSES)), ", ".join(sorted(self.loss_weights))
            raise ReverieError(f"`workflow.loss_weights` must have the keys {names}, got {given}.")


@dataclass(kw_only=True, slots=True)
class Dreamed:
    """Imagined sequences [N, H + 1, ...]: index 0 is the replayed start, and every action is chosen at its state."""

    feature: Tensor
    action: Tensor


class DreamerV3(WorldModelWorkflow):
    """One joint update: the world model on replay, actor and critic in imagination, one optimiser step."""

    context_rows: ClassVar[int] = 1
    min_batch_length: ClassVar[int] = 2  # a return needs a step to arrive at

    def __init__(self, config: DreamerV3Config) -> None:
        self._config = config

    def initialize(self, context: WorkflowContext) -> None:
        super().initialize(context)
        if context.spaces.action.classes is None:
            raise ReverieError(
                f"this workflow chooses discrete actions, but the task's action is continuous with shape "
                f"{context.spaces.action.shape}: choose a task with discrete actions (the command `tasks` lists them)."
            )
        if isinstance(context.spaces.action.classes, tuple):
            raise ReverieError(
                f"this workflow chooses one discrete action at a time, but the task's action has "
                f"{len(context.spaces.action.classes)} of them: wrap the environment so that it takes a single Discrete."
            )
        components, controllers = context.components, context.controllers
        self._encoder = components.find("encoder", VectorEncoder)
        self._rssm = components.find("representation_learner", Rssm)
        self._decoder = components.find("decoder", VectorDecoder)
        self._reward_head = components.find("reward_head", TwoHotHead)
        self._continue_head = components.find("continue_head", BinaryHead)
        self._return_computer = components.find("return_computer", ReturnComputer)
        self._return_scale = components.find("return_scale", ReturnScale)
        self._actor = controllers.find("actor", OneHotHead)
        self._critic = controllers.find("critic", Critic)
        self._rng = context.rng.stream("update")
        self._policies: dict[str, Policy] = {}
        modules = {**components.modules(), **controllers.modules()}
        self._optimizer = context.optimizers["model"](trainable_parameters(modules))

    def optimizers(self) -> Mapping[str, Stateful]:
        return {"model": self._optimizer}

    def policy(self, controller: str | None) -> Policy:
        name = controller or "actor"
        if name not in self._policies:
            actor = self._context.controllers.find(name, OneHotHead)
            self._policies[name] = DreamerPolicy(self._encoder, self._rssm, actor, rngs=self._acting_rngs())
        return self._policies[name]

    def update(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """Losses of world model, actor and critic; one step; then the slow critic follows."""
        seen = without_context(batch)
        latents, losses = self._world_model_losses(batch, seen)
        dreamed = self.imagine(horizon=self._config.horizon, starts=latents.detach().flatten())
        behaviour, start_return, metrics = self._behaviour_losses(dreamed)
        losses |= behaviour
        losses["replay_value"] = self._replay_value_loss(latents, seen, start_return.view_as(seen.reward))
        metrics |= {f"loss/{name}": loss.detach().mean() for name, loss in losses.items()}
        metrics |= self._optimizer.step(weighted_sum(losses, self._config.loss_weights), progress=phase.progress)
        self._critic.update_slow()
        return UpdateResult(metrics=metrics, write_back=stored_latent(latents.detach()))

    @torch.no_grad()
    def imagine(self, *, horizon: int, starts: Latent) -> Dreamed:
        """Follow the actor for ``horizon`` steps inside the model. A last action is chosen and leads nowhere."""
        latent, features, actions = starts, [], []
        for step in range(horizon + 1):
            if step:
                latent = self._rssm.imagine(latent, one_hot_action(actions[-1], self._actor.classes), self._rng)
            features.append(latent.feature)
            actions.append(self._actor(features[-1]).sample(self._rng))
        return Dreamed(feature=torch.stack(features, 1), action=torch.stack(actions, 1))

    def _world_model_losses(self, batch: Batch, seen: Batch) -> tuple[Latent, dict[str, Tensor]]:
        carry = restored_latent({key: value[:, 0] for key, value in batch.stored.items()}, self._rssm.classes)
        previous_action = one_hot_action(batch.action[:, :-1], self._actor.classes)
        latents, posterior = self._rssm.observe(
            carry, self._encoder(seen.obs), previous_action, seen.is_first, self._rng
        )
        dynamics, representation = self._rssm.kl(posterior, self._rssm.prior(latents.deter))
        reconstruction = self._decoder(latents.decoder_feature)
        feature = latents.feature
        # Free nats clip each state by itself; clipping the mean would let bad states hide behind good ones.
        return latents, {
            "reconstruction": torch.stack([reconstruction[key].loss(seen.obs[key]) for key in reconstruction]).sum(0),
            "reward": self._reward_head(feature).loss(seen.reward),
            "continue": self._continue_head(feature).loss(self._live(seen)),
            "dynamics": dynamics.clamp(min=self._config.free_nats),
            "representation": representation.clamp(min=self._config.free_nats),
        }

    def _behaviour_losses(self, dreamed: Dreamed) -> tuple[dict[str, Tensor], Tensor, Metrics]:
        """Actor and critic losses, the return of each start, and what is worth watching."""
        feature = dreamed.feature
        value = self._critic(feature)
        with torch.no_grad():
            reward = self._reward_head(feature).mean()
            live = self._continue_head(feature).mean()  # gamma is inside
            baseline = value.mean()
            returns = self._return_computer(reward, live, baseline)
            advantage = (returns - baseline[:, :-1]) / self._return_scale.update(returns)
            weight = live.cumprod(1)[:, :-1]
            padded = torch.cat([returns, baseline[:, -1:]], 1)
        policy = self._actor(feature[:, :-1])
        entropy = policy.entropy()
        gain = policy.log_prob(dreamed.action[:, :-1]) * advantage + self._config.entropy_scale * entropy
        losses = {
            "policy": -weight * gain,
            "value": weight * self._value_loss(value, feature, padded)[:, :-1],
        }
        metrics = {
            "entropy": entropy.detach().mean(),
            "return_mean": returns.mean(),
            "value_mean": baseline.mean(),
            "reward_mean": reward.mean(),
            "advantage_size": advantage.abs().mean(),
        }
        return losses, returns[:, 0], metrics

    def _replay_value_loss(self, latents: Latent, seen: Batch, start_return: Tensor) -> Tensor:
        """Along the replayed sequence, with the imagined returns as bootstraps and gradients into the model."""
        inside = (~seen.is_last).float()
        returns = replay_lambda_return(seen.reward, self._live(seen), inside * self._config.replay_lambda, start_return)
        feature = latents.feature[:, :-1]
        return inside[:, :-1] * self._value_loss(self._critic(feature), feature, returns)

    def _value_loss(self, value: TwoHot, feature: Tensor, returns: Tensor) -> Tensor:
        steady = value.loss(self._critic.slow_value(feature))
        return value.loss(returns) + self._config.slow_regularizer * steady

    def _live(self, seen: Batch) -> Tensor:
        return (~seen.is_terminal).float() * (1 - 1 / self._config.discount_horizon)


def without_context(batch: Batch) -> Batch:
    """The rows that are trained on."""
    rows = slice(DreamerV3.context_rows, None)
    return Batch(
        obs={key: value[:, rows] for key, value in batch.obs.items()},
        reward=batch.reward[:, rows],
        is_first=batch.is_first[:, rows],
        is_last=batch.is_last[:, rows],
        is_terminal=batch.is_terminal[:, rows],
        action=batch.action[:, rows],
        stored={key: value[:, rows] for key, value in batch.stored.items()},
        index=batch.index,
    )


def trainable_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{key}": parameter
        for name, module in modules.items()
        for key, parameter in module.named_parameters()
        if parameter.requires_grad
    }
