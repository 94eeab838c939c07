"""TD-MPC in both forms: learn a latent model without a decoder, values and a policy in it, and act by planning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from reverie.components.controllers.latent_model import LatentModel
from reverie.components.controllers.mppi import Mppi
from reverie.components.controllers.policy_prior import PolicyPrior
from reverie.components.controllers.q_ensemble import QEnsemble
from reverie.components.controllers.random_policy import RandomPolicy
from reverie.components.controllers.return_scale import Scale
from reverie.components.controllers.target_networks import TargetNetworks
from reverie.components.controllers.tdmpc import PlanningPolicy, PriorPolicy
from reverie.components.networks.distributions import Binary
from reverie.components.networks.latent_encoder import Discount, LatentEncoder
from reverie.components.networks.latent_heads import LatentDynamics, RewardHead, TerminationHead
from reverie.components.networks.probe_decoder import ProbeDecoder
from reverie.runtime.compilation import compiled_step, eager_steps
from reverie.runtime.finite import SKIPPED
from reverie.types import Batch, Metrics, Phase, Policy, ReverieError, State, Stateful
from reverie.workflows.base import UpdateResult, WorldModelWorkflow, weighted_sum
from reverie.workflows.context import WorkflowContext
from reverie.workflows.open_loop import OpenLoop
from reverie.workflows.plans import Plans
from reverie.workflows.tdmpc_config import TdmpcConfig, refuse_crossing
from reverie.workflows.tdmpc_dreams import TdmpcDreams
from reverie.workflows.tdmpc_metrics import update_metrics
from reverie.workflows.tdmpc_optimizers import TdmpcOptimizers
from reverie.workflows.tdmpc_parts import TdmpcSteps
from reverie.workflows.tdmpc_probe import ProbeTraining
from reverie.workflows.tdmpc_records import Improved, Modelled, Transitions, UpdateNoise
from reverie.workflows.update_parts import Part


class Tdmpc(WorldModelWorkflow):
    """One update: the model and its values on short sequences of replay, then the policy on the latents they led
    through, then the target networks follow. A sequence lies inside one episode; one of H + 1 rows has H transitions.
    """

    min_batch_length: ClassVar[int] = 2
    gives_priorities: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True

    def __init__(self, config: TdmpcConfig) -> None:
        self._config = config

    def initialize(self, context: WorkflowContext) -> None:
        super().initialize(context)
        components, controllers = context.components, context.controllers
        self._encoder = components.find("encoder", LatentEncoder)
        self._dynamics = components.find("dynamics", LatentDynamics)
        self._reward_head = components.find("reward_head", RewardHead)
        self._termination_head = components.find("termination_head", TerminationHead)
        self._return_scale = components.find("return_scale", Scale)
        self._target = components.find("target", TargetNetworks)
        self._prior = controllers.find("policy", PolicyPrior)
        self._critic = controllers.find("critic", QEnsemble)
        self._planner = controllers.find("planner", Mppi)
        self._target.copy({name: one for name, one in self.modules().items() if name != "target"})
        self._optimizers = TdmpcOptimizers(context.optimizers, self.modules())
        self._rng: Generator = context.rng.stream("update")
        self._policies: dict[str, Policy] = {}
        self._discount = self._config.gamma(tasks=self._encoder.tasks, device=context.device)
        self._updates = torch.zeros((), dtype=torch.int64, device=context.device)
        if self._termination_head.is_learned != self._config.episodic:
            raise ReverieError("`components.termination_head.is_learned` must be what `workflow.episodic` is.")
        refuse_crossing(context.config)
        probe = components.find_if_any("probe", ProbeDecoder)
        self._probe = None if probe is None else ProbeTraining(probe, self._optimizers, precision=context.precision)
        self._dreams = TdmpcDreams(self._encoder, self.model, self._planner, probe)

    @property
    def model(self) -> LatentModel:
        """What plans are made with."""
        return LatentModel(
            dynamics=self._dynamics,
            reward_head=self._reward_head,
            termination_head=self._termination_head,
            prior=self._prior,
            critic=self._critic,
            discount=self._discount,
            updates=self._updates,
        )

    @property
    def target_critic(self) -> QEnsemble:
        """Whose values the critic learns from."""
        return self._target.slow("critic", self._critic)

    def optimizers(self) -> Mapping[str, Stateful]:
        return self._optimizers.by_name

    def get_state(self) -> State:
        state = super().get_state()
        state["workflow_custom"]["updates"] = self._updates.clone()
        return state

    def set_state(self, state: State) -> None:
        super().set_state(state)
        self._updates.copy_(state["workflow_custom"]["updates"])

    def policy(self, controller: str | None) -> Policy:
        name = controller or ("planner" if self._config.plans else "policy")
        if name not in self._policies:
            self._policies[name] = self._made_policy(name)
        return self._policies[name]

    def _made_policy(self, name: str) -> Policy:
        part = self._context.controllers.find(name, object)
        rngs, precision = self._acting_rngs(), self._context.precision
        if isinstance(part, Mppi):
            return PlanningPolicy(self._encoder, self.model, part, rngs=rngs, precision=precision)
        if isinstance(part, PolicyPrior):
            return PriorPolicy(self._encoder, self.model, rngs=rngs, precision=precision)
        if name == "random":
            return RandomPolicy(space=self._context.spaces.action, rngs=rngs)
        raise ReverieError(f"`controller.{name}` cannot act: choose planner, policy or random.")

    def update(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """One step of everything that learns."""
        seen = Transitions.of(batch, self._prior.vector, self._encoder.action_mask)
        metrics, modelled, _ = self.learn(seen, self._drawn(seen), progress=phase.progress)
        return UpdateResult(metrics=metrics, priorities=modelled.surprise)

    def learn(
        self, seen: Transitions, noise: UpdateNoise, *, progress: Tensor | None = None
    ) -> tuple[Metrics, Modelled, Improved]:
        """The update on given noise. Where any part of it is not finite, all of it is as if it had not been."""
        with self._context.precision.applied():
            next_latents, targets = self._targets(seen, noise)
        with self._context.precision.applied():
            modelled = self.modelled(seen, next_latents, targets, noise)
        total = weighted_sum(modelled.losses, self._config.loss_weights)
        memory = self._optimizers.model.memory()
        moved = self._optimizers.step_model(total, progress=progress)
        stood = moved.pop(SKIPPED)
        self._encoder.settle(unless=stood.bool())
        latents = self._encoder.retold(modelled.latents.detach(), _rows(seen.obs, 0))
        with self._context.precision.applied():  # anew: the critic has moved
            improved = self.improved(latents, noise, seen.mask)
        moved |= self._optimizers.step_policy(improved.loss, unless=stood, progress=progress)
        is_skipped = moved[SKIPPED].bool()
        self._updates += ~is_skipped
        self._optimizers.model.take_back(memory, where=is_skipped)
        self._return_scale.take_back(where=is_skipped)
        self._target.follow(unless=is_skipped)
        if self._probe is not None:
            moved |= self._probe.step(seen.obs, modelled, unless=is_skipped, progress=progress)
        return update_metrics(seen, modelled, improved, total) | moved, modelled, improved

    def update_parts(self, batch: Batch, *, phase: Phase) -> dict[str, Part]:
        """See ``HasParts``."""
        seen = Transitions.of(batch, self._prior.vector, self._encoder.action_mask)
        noise, precision = self._drawn(seen), self._context.precision
        with precision.applied():
            next_latents, targets = self._targets(seen, noise)
        with precision.applied():
            modelled = self.modelled(seen, next_latents, targets, noise)
        steps = TdmpcSteps(
            targets=lambda: self._targets(seen, noise),
            model=lambda: weighted_sum(
                self.modelled(seen, next_latents, targets, noise).losses, self._config.loss_weights
            ),
            policy=lambda: self.improved(modelled.latents.detach(), noise, seen.mask).loss,
            probe=None if (probe := self._probe) is None else lambda: probe.loss(seen.obs, modelled),
            follow=lambda: self._target.follow(unless=torch.zeros((), dtype=torch.bool, device=targets.device)),
        )
        return steps.parts(self._optimizers, precision=precision, progress=phase.progress)

    def _drawn(self, seen: Transitions) -> UpdateNoise:
        steps, sequences = seen.reward.shape
        longer, rng, critic = (steps + 1, sequences), self._rng, self._critic
        return UpdateNoise(
            shift=self._encoder.shift(longer, rng),
            target_action=self._prior.noise((steps, sequences), rng),
            target_pair=critic.pairs((), rng),
            policy_action=self._prior.noise(longer, rng),
            policy_pair=critic.pairs((), rng),
            model_keep=critic.drawn_dropout(steps * sequences, rng, members=critic.members),
            policy_keep=critic.drawn_dropout((steps + 1) * sequences, rng, members=2),
        )

    @torch.no_grad()
    def _targets(self, seen: Transitions, noise: UpdateNoise) -> tuple[Tensor, Tensor]:
        """Latents of what came next, and one-step returns with the smaller value of two target critics behind them."""
        obs, shift = _rows(seen.obs, slice(1, None)), _rows(noise.shift, slice(1, None))
        discount = self._encoder.discount(self._discount, _rows(seen.obs, 0))
        drawn = noise.target_action, noise.target_pair
        return self._compiled_targets(obs, shift, seen.reward, seen.is_terminal, *drawn, discount, seen.mask)

    @compiled_step
    def _compiled_targets(
        self,
        obs: dict[str, Tensor],
        shift: dict[str, Tensor],
        reward: Tensor,
        is_terminal: Tensor,
        noise: Tensor,
        pair: Tensor,
        discount: Discount,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        slow = self._target.slow("encoder", self._encoder)
        latents = slow(obs, shift)
        known = latents if slow is self._encoder else self._encoder(obs, shift)
        critic = self.target_critic
        worth = self._prior.worth(
            known,
            self._prior(known, noise, mask),
            lambda latent, action: critic(latent, action, members=pair).mean().amin(0),
        )
        return latents, reward + discount * (1 - is_terminal) * worth.mean

    @torch.no_grad()
    @eager_steps()  # episodes have many lengths
    def open_loop(self, batch: Batch, *, is_context: Tensor) -> OpenLoop:
        """See ``PredictsOpenLoop``."""
        return self._dreams.open_loop(batch, is_context=is_context)

    @torch.no_grad()
    @eager_steps()
    def plans(self, episode: Batch, *, moments: int, shown: int) -> Plans | None:
        """See ``ShowsPlans``. None for an agent that does not plan."""
        return self._dreams.plans(episode, moments=moments, shown=shown) if self._config.plans else None

    def modelled(self, seen: Transitions, next_latents: Tensor, targets: Tensor, noise: UpdateNoise) -> Modelled:
        """A rollout from the first observation along the actions, and all losses of the model."""
        obs, shift = _rows(seen.obs, 0), _rows(noise.shift, 0)
        fields = self._rolled_out(
            *(obs, shift, seen.action, seen.reward, seen.is_terminal, next_latents, targets),
            *(noise.model_keep, seen.weight),
        )
        return Modelled(next_latents=next_latents, targets=targets, **fields)

    @compiled_step
    def _rolled_out(
        self,
        obs: dict[str, Tensor],
        shift: dict[str, Tensor],
        action: Tensor,
        reward: Tensor,
        is_terminal: Tensor,
        next_latents: Tensor,
        targets: Tensor,
        keep: Tensor | None,
        weight: Tensor | None,
    ) -> dict[str, Any]:
        latents = [self._encoder(obs, shift)]
        for step in action:
            latents.append(self._dynamics(latents[-1], step))
        led_to = torch.stack(latents)
        starts, arrived = led_to[:-1], led_to[1:]
        missed = (arrived - next_latents)[..., : self._encoder.latent_dim]
        rewards = self._reward_head(starts, action).loss(reward)
        predicted = self._critic(starts, action, keep=keep)
        values = predicted.loss(targets.expand(self._critic.members, -1, -1))
        logit = self._termination_head.logit(arrived) if self._config.episodic else None
        losses = {
            "consistency": self._discounted(missed.square().mean(2)),
            "reward": self._discounted(rewards),
            "value": self._discounted(values.mean(0)),
            "termination": torch.zeros_like(reward[0]) if logit is None else Binary(logit).loss(is_terminal).mean(0),
        }
        losses = {name: _mean(one, weight) for name, one in losses.items()}
        if self._config.priority == "value_errors":
            errors = (predicted.mean().detach() - targets).abs().sum(0)
            surprise = len(errors) * self._discounted(errors)
        else:
            surprise = rewards.detach().mean(0) + values.detach().mean((0, 1))
        return {"latents": led_to, "losses": losses, "surprise": surprise, "end_logit": logit}

    def improved(self, latents: Tensor, noise: UpdateNoise, mask: Tensor | None = None) -> Improved:
        """The policy's loss on latents that have no gradient."""
        drawn = noise.policy_action, noise.policy_pair, noise.policy_keep
        return Improved(**self._compiled_improvement(latents, *drawn, mask))

    @compiled_step
    def _compiled_improvement(
        self, latents: Tensor, drawn: Tensor, pair: Tensor, keep: Tensor | None, mask: Tensor | None
    ) -> dict[str, Tensor]:
        draw, critic = self._prior(latents, drawn, mask), self._critic

        def believed(latent: Tensor, action: Tensor) -> Tensor:
            return critic.believed(critic(latent, action, members=pair, is_frozen=True, keep=keep).mean())

        worth = self._prior.worth(latents, draw, believed)
        value = worth.mean
        scale = self._return_scale.update(value[0].detach())
        gain = self._prior.gain(draw, worth, scale=scale, entropy_scale=self._config.entropy_scale)
        return {
            "loss": -self._discounted(gain.mean(1)),
            "entropy": draw.entropy.detach().mean(),
            "bonus": draw.bonus.detach().mean(),
            "value": value.detach().mean(),
            "scale": scale,
        }

    def _discounted(self, per_step: Tensor) -> Tensor:
        """Later steps of a rollout count less, because errors add up along it."""
        powers = [self._config.rho**step for step in range(len(per_step))]
        return sum(
            (one * power for one, power in zip(per_step, powers, strict=True)), torch.zeros_like(per_step[0])
        ) / len(powers)


def _mean(per_sequence: Tensor, weight: Tensor | None) -> Tensor:
    return (per_sequence if weight is None else per_sequence * weight).mean()


def _rows(tensors: Mapping[str, Tensor], rows: slice | int) -> dict[str, Tensor]:
    return {key: value[rows] for key, value in tensors.items()}
