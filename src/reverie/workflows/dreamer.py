"""Dreamer: learn a world model from replay, and an actor and a critic inside what it imagines.

One recipe for all its forms (V1, V2, V3 and V3 of 2023): what differs are parts and numbers of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from reverie.components.controllers.actor_objective import ActorObjective
from reverie.components.controllers.credit import CreditRule
from reverie.components.controllers.critic import Critic
from reverie.components.controllers.dreamer import DreamerPolicy
from reverie.components.controllers.random_actor import RandomActor
from reverie.components.controllers.return_scale import Scale
from reverie.components.networks.actions import ActionHead, Actor
from reverie.components.networks.frozen import frozen
from reverie.components.networks.heads import Scalar, ScalarHead
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.components.representation_learners.two_pass_walk import TwoPassWalk
from reverie.components.return_computers.base import ReturnComputer
from reverie.components.return_computers.td_lambda import replay_lambda_return
from reverie.runtime.compilation import compiled_step, eager_steps
from reverie.runtime.finite import SKIPPED
from reverie.types import Batch, Metrics, Phase, Policy, ReverieError, Stateful, require
from reverie.workflows.base import UpdateResult, WorldModelWorkflow
from reverie.workflows.context import WorkflowContext
from reverie.workflows.dreamer_config import DreamerConfig
from reverie.workflows.dreamer_imagination import Imagination
from reverie.workflows.dreamer_open_loop import open_loop_latents, predicted_obs
from reverie.workflows.dreamer_optimizers import DreamerOptimizers, Gradients, trainable_parameters
from reverie.workflows.dreamer_parts import DreamerSteps
from reverie.workflows.dreamer_records import Credited, Dreamed, Judged, Learned, Modelled
from reverie.workflows.dreamer_rows import CONTEXT_ROWS, unless_skipped, without_context
from reverie.workflows.open_loop import OpenLoop
from reverie.workflows.update_parts import Part


class Dreamer(WorldModelWorkflow):
    """One update: the world model on replay, actor and critic in imagination, then all optimisers step."""

    context_rows: ClassVar[int] = CONTEXT_ROWS
    min_batch_length: ClassVar[int] = 2  # a return needs a step to arrive at
    gives_priorities: ClassVar[bool] = True

    def __init__(self, config: DreamerConfig) -> None:
        self._config = config
        self._gamma = 1 - 1 / config.discount_horizon

    def initialize(self, context: WorkflowContext) -> None:
        super().initialize(context)
        components, controllers = context.components, context.controllers
        self._encoder = components.find("encoder", ObservationEncoder)
        self._rssm = components.find("representation_learner", StateSpaceModel)
        self._decoder = components.find("decoder", ObservationDecoder)
        self._reward_head = components.find("reward_head", ScalarHead)
        self._continue_head = components.find("continue_head", ScalarHead)
        self._return_computer = components.find("return_computer", ReturnComputer)
        self._return_scale = components.find("return_scale", Scale)
        self._actor = controllers.find("actor", ActionHead)
        self._critic = controllers.find("critic", Critic)
        self._objective = controllers.find("objective", ActorObjective)
        self._credit = controllers.find("credit", CreditRule)
        self._rng: Generator | None = context.rng.stream("update")
        self._walk = TwoPassWalk(self._rssm, precision=context.precision)
        self._imagination = Imagination(
            self._rssm, self._actor, precision=context.precision, has_graph=self._objective.needs_graph
        )
        self._policies: dict[str, Policy] = {}
        self._check(context)
        self._optimizers = DreamerOptimizers(context.optimizers, self.modules(), self._config.loss_weights)

    def _check(self, context: WorkflowContext) -> None:
        """Parts that do not fit each other."""
        config, weights = self._config, self._config.loss_weights
        config.exploration.check(context.spaces.action)
        require("workflow.horizon", config.horizon, at_least=self._credit.min_horizon)
        learns = any(True for _ in self._continue_head.parameters())
        if learns != ("continue" in weights):
            verb = "learns: give" if learns else "does not learn: remove"
            raise ReverieError(f"`components.continue_head` {verb} `workflow.loss_weights.continue`.")
        if config.has_discount_in_head and config.rounds_continues:
            raise ReverieError(
                "`workflow.rounds_continues` would round gamma away, which `workflow.has_discount_in_head` puts there: "
                "set one of them to false."
            )
        if not learns and not config.has_discount_in_head:
            raise ReverieError(
                "`components.continue_head` is fixed at its own gamma: set `workflow.has_discount_in_head` to true."
            )
        if config.slow_regularizer and self._critic.slow is None:
            raise ReverieError("`workflow.slow_regularizer` must be 0: `controller.critic` has no slow copy.")
        if "replay_value" in weights and self._credit.counts_own_reward:
            raise ReverieError("`workflow.loss_weights.replay_value` needs `controller.credit` to be an ArrivalCredit.")
        if "replay_value" in config.grad_heads and "critic" in context.optimizers:
            raise ReverieError(
                "`workflow.grad_heads` may not name replay_value where `optimizers.critic` trains the critic alone."
            )

    def optimizers(self) -> Mapping[str, Stateful]:
        return self._optimizers.by_name

    def policy(self, controller: str | None) -> Policy:
        name = controller or "actor"
        if name not in self._policies:
            actor = self._context.controllers.find(name, Actor)
            exploration = None if isinstance(actor, RandomActor) else self._config.exploration
            self._policies[name] = DreamerPolicy(
                self._encoder,
                self._rssm,
                actor,
                rngs=self._acting_rngs(),
                exploration=exploration,
                precision=self._context.precision,
            )
        return self._policies[name]

    def draw_the_most_likely(self) -> None:
        """From now on an update takes the most likely latents and actions, so that other code can be compared."""
        self._rng = None

    def update(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """Losses of world model, actor and critic, and one step on their weighted sums."""
        carry = self._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
        learned = self.learned(carry, batch)
        metrics = learned.judged.metrics()
        metrics |= {f"loss/{name}": loss.detach().mean() for name, loss in learned.losses.items()}
        metrics |= self.step(learned, progress=phase.progress)
        result = UpdateResult(metrics=metrics, priorities=learned.modelled.surprise())
        if self._config.replay_start == "stored":
            fresh = self._rssm.stored(learned.modelled.latents.detach())
            result.write_back = unless_skipped(fresh, batch, metrics[SKIPPED].bool())
        return result

    def learned(self, carry: Latent, batch: Batch) -> Learned:
        """The losses of ``batch``, whose first row only leads from ``carry`` to the second."""
        seen, precision = self._trained_rows(batch), self._context.precision
        with precision.applied():
            modelled = self._modelled(carry, batch, seen)
        with precision.applied():
            dreamed = self.imagine(horizon=self._config.horizon, starts=modelled.latents.detach().flatten())
        with precision.applied():
            judged, replay_returns, losses = self._behaved(dreamed, modelled.latents, seen)
        return Learned(
            modelled=modelled,
            dreamed=dreamed,
            judged=judged,
            replay_returns=replay_returns,
            losses=modelled.losses | losses,
        )

    def _behaved(
        self, dreamed: Dreamed, latents: Latent, seen: Batch
    ) -> tuple[Judged, Tensor | None, dict[str, Tensor]]:
        """What dreams are worth, the returns along replay, and all losses of actor and critic."""
        judged = self._judged(dreamed, self._live(seen).flatten())
        if "replay_value" not in self._config.loss_weights:
            return judged, None, judged.losses
        returns = self._replay_returns(seen, judged.returns[:, 0].view_as(seen.reward))
        losses = judged.losses | {"replay_value": self._replay_value_loss(latents, seen.is_last, returns)}
        return judged, returns, losses

    def step(self, learned: Learned, *, progress: Tensor | None = None) -> Metrics:
        """One step of every optimiser; then the slow critic follows the new one. A skipped step changes nothing."""
        return self._moved(self._optimizers.gradients(learned.losses), progress=progress)

    def _moved(self, gradients: Gradients, *, progress: Tensor | None) -> Metrics:
        metrics = self._optimizers.apply(gradients, progress=progress)
        is_skipped = metrics[SKIPPED].bool()
        self._critic.update_slow(unless=is_skipped)
        self._return_scale.take_back(where=is_skipped)
        return metrics

    def imagine(self, *, horizon: int, starts: Latent) -> Dreamed:
        """Follow the actor for ``horizon`` steps inside the model. A last action is chosen and leads nowhere."""
        with self._through_model():
            return self._imagination(starts, horizon=horizon, rng=self._rng)

    def _through_model(self) -> AbstractContextManager[object]:
        """Gradients of dreams go through the model to the actions and leave nothing in it; or there are none."""
        if not self._objective.needs_graph:
            return torch.no_grad()
        return frozen([self._rssm, self._reward_head, self._continue_head, self._critic])

    def _trained_rows(self, batch: Batch) -> Batch:
        seen = without_context(batch)
        if self._config.reward_transform == "tanh":
            seen = replace(seen, reward=seen.reward.tanh())
        if self._config.replay_start == "initial":
            is_start = torch.zeros_like(seen.is_first)
            is_start[:, 0] = True
            seen = replace(seen, is_first=seen.is_first | is_start)
        return seen

    def update_parts(self, batch: Batch, *, phase: Phase) -> dict[str, Part]:
        """See ``HasParts``."""
        carry = self._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
        seen, action, learned = self._trained_rows(batch), batch.action[:, :-1], self.learned(carry, batch)
        gradients, target = self._optimizers.gradients(learned.losses).detached(), self._continue_target(seen)
        steps = DreamerSteps(
            encode=lambda: self._tokens(seen.obs),
            observe=lambda tokens: self._walk.observe(
                carry, tokens, self._actor.vector(action), seen.is_first, self._rng
            ),
            model_losses=lambda latents, posterior: self._model_losses(
                latents, posterior, seen.obs, seen.reward, target
            )[2],
            dream=lambda latents: self.imagine(horizon=self._config.horizon, starts=latents.detach().flatten()),
            behaviour_losses=lambda dreamed, latents: self._behaved(dreamed, latents, seen)[2],
            move=lambda: self._moved(gradients, progress=phase.progress),
        )
        return steps.parts(
            learned,
            parameters=list(trainable_parameters(self.modules()).values()),
            precision=self._context.precision,
            dreams_with_graph=self._objective.needs_graph,
        )

    @torch.no_grad()
    @eager_steps()  # episodes have many lengths
    def open_loop(self, batch: Batch, *, is_context: Tensor) -> OpenLoop:
        """See ``PredictsOpenLoop``. It starts from the latents that were stored with the context row."""
        carry = self._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
        seen, action = self._trained_rows(batch), self._actor.vector(batch.action[:, :-1])
        tokens = self._encoder(seen.obs)
        latents = open_loop_latents(self._rssm, carry, tokens, action, seen.is_first, is_context_BT=is_context)
        live = self._continue_head(latents.feature).mean()
        return OpenLoop(
            obs=predicted_obs(self._decoder(latents.deter, latents.stoch_vector), seen.obs),
            reward=self._reward_head(latents.feature).mean(),
            real_reward=seen.reward,
            # Where the head's target is discounted, what it predicts beyond the discount is the probability.
            live=(live / self._gamma).clamp(max=1.0) if self._config.has_discount_in_head else live,
            discount=self._gamma,
        )

    def _modelled(self, carry: Latent, batch: Batch, seen: Batch) -> Modelled:
        tokens = self._tokens(seen.obs)
        previous_action = self._actor.vector(batch.action[:, :-1])
        latents, posterior = self._walk.observe(carry, tokens, previous_action, seen.is_first, self._rng)
        prior, reconstruction, losses = self._model_losses(
            latents, posterior, seen.obs, seen.reward, self._continue_target(seen)
        )
        return Modelled(
            tokens=tokens,
            latents=latents,
            posterior=posterior,
            prior=prior,
            reconstruction=reconstruction,
            losses=losses,
        )

    @compiled_step
    def _tokens(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self._encoder(obs)

    @compiled_step
    def _model_losses(
        self, latents: Latent, posterior: Tensor, obs: Mapping[str, Tensor], reward: Tensor, live: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """The prior, the loss of each decoded key, and all losses of the model."""
        prior = self._rssm.prior(latents.deter)
        dynamics, representation = self._rssm.kl(posterior, prior)
        parts = latents.deter, latents.stoch_vector
        predictions = self._decoder(*[self._read("reconstruction", part) for part in parts])
        feature = latents.feature
        reconstruction = {key: one.loss(obs[key]) for key, one in predictions.items()}
        losses = {
            "reconstruction": torch.stack(list(reconstruction.values())).sum(0),
            "reward": self._reward_head(self._read("reward", feature)).loss(reward),
            "dynamics": self._beyond_free_nats(dynamics),
            "representation": self._beyond_free_nats(representation),
        }
        if "continue" in self._config.loss_weights:
            losses["continue"] = self._continue_head(self._read("continue", feature)).loss(live)
        return prior, reconstruction, losses

    def _continue_target(self, seen: Batch) -> Tensor:
        return self._live(seen) if self._config.has_discount_in_head else (~seen.is_terminal).float()

    def _beyond_free_nats(self, kl: Tensor) -> Tensor:
        """Clipping the mean lets bad states hide behind good ones; V1 and V2 did so."""
        return (kl if self._config.free_nats_of == "state" else kl.mean()).clamp(min=self._config.free_nats)

    def _judged(self, dreamed: Dreamed, start_live: Tensor) -> Judged:
        """Actor and critic losses along imagined sequences."""
        feature, action = dreamed.feature, dreamed.action
        if not self._objective.needs_graph and not self._optimizers.are_several:
            return self._judged_at_once(feature, action, start_live)
        # Losses of different optimisers have a backward pass each, so they may not come out of one compiled function.
        with self._through_model():
            credited = self._compiled_credit(feature, start_live)
        feature = feature.detach()
        policy_loss, entropy = self._compiled_policy_loss(feature, action, credited)
        return Judged.of(credited, policy_loss, entropy, self._compiled_critic_loss(feature, credited))

    @compiled_step
    def _judged_at_once(self, feature: Tensor, action: Tensor, start_live: Tensor) -> Judged:
        value = self._critic(feature)
        with torch.no_grad():
            credited = self._credited(feature, start_live, value)
        policy_loss, entropy = self._policy_loss(feature, action, credited)
        return Judged.of(credited, policy_loss, entropy, self._critic_loss(feature, credited, value))

    def _credited(self, feature: Tensor, start_live: Tensor, value: Scalar | None = None) -> Credited:
        """What imagined sequences are worth. ``value`` is what the critic has said of them; with it, no gradients."""
        reward = self._reward_head(feature).mean()
        live = self._imagined_live(feature)
        worth = self._critic.worth(feature, value)
        credit = self._credit(reward, live, worth, start_live=start_live, computer=self._return_computer)
        scale = self._return_scale.update(credit.returns)
        # A copy: of two results in one memory, here with the baseline, the compiler loses the gradients.
        value_copy = worth.detach().clone()
        return Credited(reward=reward.detach(), live=live.detach(), value=value_copy, credit=credit, scale=scale)

    def _policy_loss(self, feature: Tensor, action: Tensor, credited: Credited) -> tuple[Tensor, Tensor]:
        """The loss, and the entropy of the policy."""
        credit = credited.credit
        actions = credit.returns.shape[1]
        policy = self._actor(feature[:, :actions])
        entropy = policy.entropy()
        gain = self._objective(policy, action[:, :actions], credit, credited.scale)
        return -credit.weight * (gain + self._config.entropy_scale * entropy), entropy

    def _critic_loss(self, feature: Tensor, credited: Credited, value: Scalar | None = None) -> Tensor:
        credit = credited.credit
        loss = self._value_loss(self._critic(feature) if value is None else value, feature, credit.target)
        return credit.value_weight * loss[:, credit.judged]

    _compiled_credit = compiled_step(_credited)
    _compiled_policy_loss = compiled_step(_policy_loss)
    _compiled_critic_loss = compiled_step(_critic_loss)

    def _imagined_live(self, feature: Tensor) -> Tensor:
        """gamma, times the chance that the episode goes on."""
        live = self._continue_head(feature).mean()
        if self._config.rounds_continues:
            live = (live > 0.5).float()
        return live if self._config.has_discount_in_head else live * self._gamma

    def _replay_returns(self, seen: Batch, start_return: Tensor) -> Tensor:
        """Along the replayed sequence, with the imagined returns as bootstraps."""
        inside = (~seen.is_last).float()
        return replay_lambda_return(seen.reward, self._live(seen), inside * self._config.replay_lambda, start_return)

    @compiled_step
    def _replay_value_loss(self, latents: Latent, is_last: Tensor, returns: Tensor) -> Tensor:
        """The critic on the replayed sequence, with gradients into the model."""
        feature = self._read("replay_value", latents.feature)[:, :-1]
        return (~is_last[:, :-1]).float() * self._value_loss(self._critic(feature), feature, returns)

    def _value_loss(self, value: Scalar, feature: Tensor, returns: Tensor) -> Tensor:
        loss = value.loss(returns)
        if not self._config.slow_regularizer:
            return loss
        return loss + self._config.slow_regularizer * value.loss(self._critic.slow_value(feature))

    def _read(self, loss: str, latent: Tensor) -> Tensor:
        """What the head of this loss reads: its gradient goes on into the representation, or ends here."""
        return latent if loss in self._config.grad_heads else latent.detach()

    def _live(self, seen: Batch) -> Tensor:
        return (~seen.is_terminal).float() * self._gamma
