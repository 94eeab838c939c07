"""DreamerV3: learn a world model from replay, and an actor and a critic inside what it imagines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from reverie.components.controllers.dreamer import Critic, DreamerPolicy
from reverie.components.controllers.exploration import Exploration
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.actions import ActionHead
from reverie.components.networks.distributions import TwoHot
from reverie.components.networks.heads import ScalarHead
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.components.return_computers.base import ReturnComputer
from reverie.components.return_computers.td_lambda import replay_lambda_return
from reverie.runtime.finite import SKIPPED
from reverie.types import Batch, Metrics, Phase, Policy, ReverieError, Stateful, require
from reverie.workflows.base import UpdateResult, WorldModelWorkflow, weighted_sum
from reverie.workflows.context import WorkflowContext
from reverie.workflows.dreamer_open_loop import open_loop_latents, predicted_obs
from reverie.workflows.dreamer_records import Dreamed, Judged, Learned, Modelled
from reverie.workflows.open_loop import OpenLoop

LOSSES = frozenset(
    ("reconstruction", "reward", "continue", "dynamics", "representation", "policy", "value", "replay_value")
)
GRAD_HEADS = ("reconstruction", "reward", "continue", "replay_value")
"""Losses of heads that read replayed latents: their gradient may reach the representation or stop at the head."""


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
    grad_heads: tuple[str, ...] = GRAD_HEADS
    """Losses that also train the representation. The two KL losses always do, those of actor and critic never."""
    exploration: Exploration = field(default_factory=Exploration)

    def __post_init__(self) -> None:
        require("workflow.horizon", self.horizon, at_least=1)
        require("workflow.discount_horizon", self.discount_horizon, at_least=2)
        require("workflow.replay_lambda", self.replay_lambda, at_least=0, at_most=1)
        for name in ("free_nats", "entropy_scale", "slow_regularizer"):
            require(f"workflow.{name}", getattr(self, name), at_least=0)
        if self.loss_weights.keys() != LOSSES:
            names, given = ", ".join(sorted(LOSSES)), ", ".join(sorted(self.loss_weights))
            raise ReverieError(f"`workflow.loss_weights` must have the keys {names}, got {given}.")
        for name in self.grad_heads:
            if name not in GRAD_HEADS:
                raise ReverieError(f"`workflow.grad_heads` may name {', '.join(GRAD_HEADS)}, got {name}.")


class DreamerV3(WorldModelWorkflow):
    """One joint update: the world model on replay, actor and critic in imagination, one optimiser step."""

    context_rows: ClassVar[int] = 1
    min_batch_length: ClassVar[int] = 2  # a return needs a step to arrive at

    def __init__(self, config: DreamerV3Config) -> None:
        self._config = config

    def initialize(self, context: WorkflowContext) -> None:
        super().initialize(context)
        components, controllers = context.components, context.controllers
        self._encoder = components.find("encoder", ObservationEncoder)
        self._rssm = components.find("representation_learner", StateSpaceModel)
        self._decoder = components.find("decoder", ObservationDecoder)
        self._reward_head = components.find("reward_head", ScalarHead)
        self._continue_head = components.find("continue_head", ScalarHead)
        self._return_computer = components.find("return_computer", ReturnComputer)
        self._return_scale = components.find("return_scale", ReturnScale)
        self._actor = controllers.find("actor", ActionHead)
        self._critic = controllers.find("critic", Critic)
        self._rng: Generator | None = context.rng.stream("update")
        self._config.exploration.check(context.spaces.action)
        self._policies: dict[str, Policy] = {}
        self._optimizer = context.optimizers["model"](trainable_parameters(self.modules()))

    def optimizers(self) -> Mapping[str, Stateful]:
        return {"model": self._optimizer}

    def policy(self, controller: str | None) -> Policy:
        name = controller or "actor"
        if name not in self._policies:
            actor = self._context.controllers.find(name, ActionHead)
            self._policies[name] = DreamerPolicy(
                self._encoder,
                self._rssm,
                actor,
                rngs=self._acting_rngs(),
                exploration=self._config.exploration,
                precision=self._context.precision,
            )
        return self._policies[name]

    def draw_the_most_likely(self) -> None:
        """From now on an update takes the most likely latents and actions, so that other code can be compared."""
        self._rng = None

    def update(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """Losses of world model, actor and critic, and one step on their weighted sum."""
        carry = self._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
        learned = self.learned(carry, batch)
        metrics = learned.judged.metrics()
        metrics |= {f"loss/{name}": loss.detach().mean() for name, loss in learned.losses.items()}
        metrics |= self.step(learned, progress=phase.progress)
        fresh = self._rssm.stored(learned.modelled.latents.detach())
        return UpdateResult(metrics=metrics, write_back=unless_skipped(fresh, batch, metrics[SKIPPED].bool()))

    def learned(self, carry: Latent, batch: Batch) -> Learned:
        """The losses of ``batch``, whose first row only leads from ``carry`` to the second."""
        seen, precision = without_context(batch), self._context.precision
        with precision.applied():
            modelled = self._modelled(carry, batch, seen)
        with precision.applied():
            dreamed = self.imagine(horizon=self._config.horizon, starts=modelled.latents.detach().flatten())
        with precision.applied():
            judged = self._judged(dreamed)
            replay_returns = self._replay_returns(seen, judged.returns[:, 0].view_as(seen.reward))
            replay_value = self._replay_value_loss(modelled.latents, seen, replay_returns)
        losses = modelled.losses | judged.losses | {"replay_value": replay_value}
        return Learned(modelled=modelled, dreamed=dreamed, judged=judged, replay_returns=replay_returns, losses=losses)

    def step(self, learned: Learned, *, progress: Tensor | None = None) -> Metrics:
        """One step of the optimiser; then the slow critic follows the new one. A skipped step changes nothing."""
        metrics = self._optimizer.step(weighted_sum(learned.losses, self._config.loss_weights), progress=progress)
        is_skipped = metrics[SKIPPED].bool()
        self._critic.update_slow(unless=is_skipped)
        self._return_scale.take_back(where=is_skipped)
        return metrics

    @torch.no_grad()
    def imagine(self, *, horizon: int, starts: Latent) -> Dreamed:
        """Follow the actor for ``horizon`` steps inside the model. A last action is chosen and leads nowhere."""
        latent, features, actions = starts, [], []
        for step in range(horizon + 1):
            if step:
                latent = self._rssm.imagine(latent, self._actor.vector(actions[-1]), self._rng)
            features.append(latent.feature)
            actions.append(self._actor(features[-1]).sample(self._rng))
        return Dreamed(feature=torch.stack(features, 1), action=torch.stack(actions, 1))

    @torch.no_grad()
    def open_loop(self, batch: Batch, *, is_context: Tensor) -> OpenLoop:
        """See ``PredictsOpenLoop``. It starts from the latents that were stored with the context row."""
        carry = self._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
        seen, action = without_context(batch), self._actor.vector(batch.action[:, :-1])
        tokens = self._encoder(seen.obs)
        latents = open_loop_latents(self._rssm, carry, tokens, action, seen.is_first, is_context_BT=is_context)
        discount = 1 - 1 / self._config.discount_horizon
        return OpenLoop(
            obs=predicted_obs(self._decoder(latents.deter, latents.stoch_vector), seen.obs),
            reward=self._reward_head(latents.feature).mean(),
            real_reward=seen.reward,
            # The head's target is discounted: what it predicts beyond the discount is the probability.
            live=(self._continue_head(latents.feature).mean() / discount).clamp(max=1.0),
            discount=discount,
        )

    def _modelled(self, carry: Latent, batch: Batch, seen: Batch) -> Modelled:
        tokens = self._encoder(seen.obs)
        previous_action = self._actor.vector(batch.action[:, :-1])
        latents, posterior = self._rssm.observe(carry, tokens, previous_action, seen.is_first, self._rng)
        prior = self._rssm.prior(latents.deter)
        dynamics, representation = self._rssm.kl(posterior, prior)
        parts = latents.deter, latents.stoch_vector
        predictions = self._decoder(*[self._read("reconstruction", part) for part in parts])
        feature = latents.feature
        reconstruction = {key: one.loss(seen.obs[key]) for key, one in predictions.items()}
        # Free nats clip each state by itself; clipping the mean would let bad states hide behind good ones.
        losses = {
            "reconstruction": torch.stack(list(reconstruction.values())).sum(0),
            "reward": self._reward_head(self._read("reward", feature)).loss(seen.reward),
            "continue": self._continue_head(self._read("continue", feature)).loss(self._live(seen)),
            "dynamics": dynamics.clamp(min=self._config.free_nats),
            "representation": representation.clamp(min=self._config.free_nats),
        }
        return Modelled(
            tokens=tokens,
            latents=latents,
            posterior=posterior,
            prior=prior,
            reconstruction=reconstruction,
            losses=losses,
        )

    def _judged(self, dreamed: Dreamed) -> Judged:
        """Actor and critic losses along imagined sequences."""
        feature = dreamed.feature
        value = self._critic(feature)
        with torch.no_grad():
            reward = self._reward_head(feature).mean()
            live = self._continue_head(feature).mean()  # gamma is inside
            baseline = value.mean()
            returns = self._return_computer(reward, live, baseline)
            scale = self._return_scale.update(returns)
            advantage = (returns - baseline[:, :-1]) / scale
            weight = live.cumprod(1)[:, :-1]
            padded = torch.cat([returns, baseline[:, -1:]], 1)
        policy = self._actor(feature[:, :-1])
        entropy = policy.entropy()
        gain = policy.log_prob(dreamed.action[:, :-1]) * advantage + self._config.entropy_scale * entropy
        losses = {
            "policy": -weight * gain,
            "value": weight * self._value_loss(value, feature, padded)[:, :-1],
        }
        return Judged(
            reward=reward,
            live=live,
            value=baseline,
            returns=returns,
            scale=scale,
            advantage=advantage,
            entropy=entropy,
            losses=losses,
        )

    def _replay_returns(self, seen: Batch, start_return: Tensor) -> Tensor:
        """Along the replayed sequence, with the imagined returns as bootstraps."""
        inside = (~seen.is_last).float()
        return replay_lambda_return(seen.reward, self._live(seen), inside * self._config.replay_lambda, start_return)

    def _replay_value_loss(self, latents: Latent, seen: Batch, returns: Tensor) -> Tensor:
        """The critic on the replayed sequence, with gradients into the model."""
        inside = (~seen.is_last).float()
        feature = self._read("replay_value", latents.feature)[:, :-1]
        return inside[:, :-1] * self._value_loss(self._critic(feature), feature, returns)

    def _value_loss(self, value: TwoHot, feature: Tensor, returns: Tensor) -> Tensor:
        steady = value.loss(self._critic.slow_value(feature))
        return value.loss(returns) + self._config.slow_regularizer * steady

    def _read(self, loss: str, latent: Tensor) -> Tensor:
        """What the head of this loss reads: its gradient goes on into the representation, or ends here."""
        return latent if loss in self._config.grad_heads else latent.detach()

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


def unless_skipped(fresh: Mapping[str, Tensor], batch: Batch, is_skipped: Tensor) -> dict[str, Tensor]:
    """What goes back into replay: the fresh latents, or those that are there when they come from a skipped update."""
    return {
        name: torch.where(is_skipped, batch.stored[name][:, -value.shape[1] :], value) for name, value in fresh.items()
    }


def trainable_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{key}": parameter
        for name, module in modules.items()
        for key, parameter in module.named_parameters()
        if parameter.requires_grad
    }
