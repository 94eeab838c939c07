"""World Models (2018): a VAE, an MDN-RNN on its latents, and a small controller that evolves, each in its own phase."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from reverie.components.controllers.controller_weights import GivenWeights, OwnWeights, RandomWeights, Weights
from reverie.components.controllers.evolution import Evolution
from reverie.components.controllers.linear_controller import LinearController
from reverie.components.dreams.latent_dream import LatentDream
from reverie.components.dreams.starts import DreamStarts
from reverie.components.dynamics.mdn_rnn import MdnRnn
from reverie.components.representation_learners.conv_vae import ConvVae, sampled
from reverie.runtime.capture import not_capturable
from reverie.types import Batch, Episode, Metrics, Observation, Phase, Policy, ReverieError, State, Stateful
from reverie.workflows.base import CollectResult, UpdateResult, WorldModelWorkflow, weighted_sum
from reverie.workflows.context import WorkflowContext
from reverie.workflows.og_wm_config import POPULATION, VAE_LOSSES, OgWmConfig, check_hooks
from reverie.workflows.og_wm_evolution import EvolutionInDream, EvolutionInTask, digest
from reverie.workflows.og_wm_open_loop import followed
from reverie.workflows.og_wm_policy import BlindPolicy, LatentPolicy
from reverie.workflows.og_wm_showing import dream_film, fitness_history
from reverie.workflows.open_loop import OpenLoop
from reverie.workflows.showing import History

_CPU = torch.device("cpu")


class OgWm(WorldModelWorkflow):
    """Collect with any controller, then ``converge_vae``, ``encode``, ``converge_mdn``, and ``evolve`` the controller
    in the task or ``evolve_in_dream``.
    """

    def __init__(self, config: OgWmConfig) -> None:
        self._config = config

    def initialize(self, context: WorkflowContext) -> None:
        super().initialize(context)
        self._vae = context.components.find("vae", ConvVae)
        self._rnn = context.components.find("dynamics", MdnRnn)
        self._linear = context.controllers.find("linear", LinearController)
        self._check(context)
        for name in ("vae", "dynamics"):
            if name not in context.optimizers:
                raise ReverieError(f"`optimizers.{name}` is missing: it trains `components.{name}`.")
        self._vae_optimizer = context.optimizers["vae"](dict(self._vae.named_parameters()))
        self._model_optimizer = context.optimizers["dynamics"](dict(self._rnn.named_parameters()))
        self._rng = context.rng.stream("update")
        self._starts = DreamStarts(latent_dim=self._vae.latent, capacity=self._config.dream_starts).to(context.device)
        self._has_encoded = False
        self._given = GivenWeights(context.device)
        self._policies: dict[str, Policy] = {}
        self._ended: Mapping[int, Episode] = {}
        """Episodes whose last observation came with the last step, by environment."""
        self._evolved_in: Phase | None = None
        self._make_evolution(context)

    def _check(self, context: WorkflowContext) -> None:
        has_reward, has_termination = self._rnn.has_reward_head, self._rnn.has_termination_head
        self._config.check_losses(has_reward_head=has_reward, has_termination_head=has_termination)
        training, replay = context.config["training"], context.config["buffer"].get("replay") or {}
        check_hooks(
            training["phases"],
            has_heads=has_reward and has_termination,
            capacity=replay.get("capacity", 0),
            batch_size=training["batch_size"],
        )

    def _make_evolution(self, context: WorkflowContext) -> None:
        # CMA-ES is a host's algorithm, whatever device the model is on.
        rng = context.rng.stream("evolution", device=_CPU)
        make: partial[Evolution] = context.controllers.find(POPULATION, partial)
        self._evolution = make(parameter_count=self._linear.parameter_count, rng=rng)
        self._in_task: EvolutionInTask | None = None
        dream_rng = context.rng.stream("dream")
        dream = LatentDream(
            self._rnn,
            vae=None,
            rng=dream_rng,
            temperature=self._config.temperature,
            limit=self._config.dream_limit,
        )
        self._in_dream = EvolutionInDream(self._evolution, dream, self._starts, rng=dream_rng)

    def optimizers(self) -> Mapping[str, Stateful]:
        return {"vae": self._vae_optimizer, "dynamics": self._model_optimizer}

    def policy(self, controller: str | None) -> Policy:
        name = controller or "linear"
        if name not in self._policies:
            self._policies[name] = self._made_policy(name)
        return self._policies[name]

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        if phase.controller == POPULATION:
            self._look_at_model(phase)
            self._prepare_round()
        result = super().collect_step(step, phase=phase)
        if phase.controller == POPULATION:
            self._evolution_in_task().add(self._ended)
        return result

    def converge_vae(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """Reconstruct pictures from samples of their latents, which stay near the standard normal."""
        noise = self._noise(batch)
        with self._context.precision.applied():
            losses = self._vae.losses(batch.obs, noise)
        weights = {name: self._config.loss_weights[name] for name in VAE_LOSSES}
        metrics = self._vae_optimizer.step(weighted_sum(losses, weights), progress=phase.progress)
        return UpdateResult(metrics=_named(losses) | metrics)

    @torch.no_grad()
    def encode(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """Put mean and log variance of the latents beside the rows, and keep first observations as starts of dreams."""
        del phase
        with self._context.precision.applied():
            mean, log_variance = self._vae.encoded(batch.obs)
        self._starts.keep(mean.flatten(0, 1), log_variance.flatten(0, 1), batch.is_first.flatten())
        self._has_encoded = True
        metrics = {
            "latent_deviation": mean.flatten(0, 1).std(0).mean(),
            "latent_noise": (log_variance / 2).exp().mean(),
        }
        return UpdateResult(metrics=metrics, write_back={"mean": mean, "log_variance": log_variance})

    def converge_mdn(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        """Predict what arrives after every row, from latents that are drawn anew each time."""
        if not self._has_encoded:
            raise ReverieError(f"phase '{phase.name}': no row has a latent yet: put a phase with `encode` before it.")
        latent = sampled(batch.stored["mean"], batch.stored["log_variance"], self._noise(batch))
        action = self._linear.vector(batch.action)
        with self._context.precision.applied():
            hidden = self._rnn.sequence(latent[:, :-1], action[:, :-1], batch.is_first[:, :-1])
            found = self._rnn.losses(
                hidden,
                latent[:, 1:],
                reward=batch.reward[:, 1:],
                is_terminal=batch.is_terminal[:, 1:],
                positive_weight=self._config.termination_weight,
            )
        inside = (~batch.is_first[:, 1:]).float()  # what follows a last row is no consequence of it
        losses = {name: (one * inside).sum() / inside.sum().clamp(min=1) for name, one in found.items()}
        weights = {name: one for name, one in self._config.loss_weights.items() if name not in VAE_LOSSES}
        metrics = self._model_optimizer.step(weighted_sum(losses, weights), progress=phase.progress)
        return UpdateResult(metrics=_named(losses) | metrics)

    @not_capturable
    def evolve(self, *, phase: Phase) -> UpdateResult:
        """After a step of the population: draw the next one when all members have played."""
        del phase
        return UpdateResult(metrics=self._evolution_in_task().advance(self._linear))

    @not_capturable
    @torch.no_grad()
    def evolve_in_dream(self, *, phase: Phase) -> UpdateResult:
        """One step of all dreams, and the next population when all of them have ended."""
        if not self._has_encoded:
            raise ReverieError(f"phase '{phase.name}': dreams have no beginning: put a phase with `encode` before it.")
        self._look_at_model(phase)
        return UpdateResult(metrics=self._in_dream.step(self._linear))

    @torch.no_grad()
    def open_loop(self, batch: Batch, *, is_context: Tensor) -> OpenLoop:
        """See ``PredictsOpenLoop``. Pictures that it sees are shown as the VAE reconstructs them."""
        mean, _ = self._vae.encoded(batch.obs)
        return followed(
            self._vae,
            self._rnn,
            mean,
            self._linear.vector(batch.action),
            batch,
            is_context_BT=is_context,
        )

    @torch.no_grad()
    def free_dreams(self, seen: Observation) -> dict[str, Tensor]:
        """See ``DreamsFreely``: the controller acts inside the model, from the first rows of ``seen`` on."""
        device = self._context.device
        mean, _ = self._vae.encoded({self._vae.key: seen.obs[self._vae.key][:, 0].to(device)})
        length = seen.reward.shape[1]
        return {
            f"temperature-{one:g}": dream_film(self._vae, self._rnn, self._linear, mean, temperature=one, length=length)
            for one in self._config.shown_temperatures
        }

    def histories(self) -> dict[str, History]:
        """See ``HasHistory``."""
        return {"fitness": fitness_history(self._evolution)} if self._evolution.generation else {}

    def get_state(self) -> State:
        state = super().get_state()
        state["workflow_custom"]["world_models"] = {
            "starts": {name: value.clone() for name, value in self._starts.state_dict().items()},
            "has_encoded": self._has_encoded,
            "evolution": self._evolution.get_state(),
            "in_task": None if self._in_task is None else self._in_task.get_state(),
            "in_dream": self._in_dream.get_state(),
        }
        return state

    def set_state(self, state: State) -> None:
        super().set_state(state)
        own = state["workflow_custom"]["world_models"]
        self._starts.load_state_dict(own["starts"])
        self._has_encoded = own["has_encoded"]
        self._evolution.set_state(own["evolution"])
        if own["in_task"] is not None and self._context.train_env is not None:  # or it only plays
            self._evolution_in_task().set_state(own["in_task"])
        self._in_dream.set_state(own["in_dream"])

    def _update_episode_stats(self, seen: Observation) -> list[Episode]:
        self._ended = self._episodes.add(seen)
        return list(self._ended.values())

    def _look_at_model(self, phase: Phase) -> None:
        """As a phase begins: the model may have learned since the last one that evolved. What it learns beside
        evolution, in one phase, changes nothing: a resume in the midst of it goes on.
        """
        if phase is self._evolved_in:  # looking takes longer than a step of the population
            return
        self._evolved_in = phase
        if not phase.progress.item():
            self._evolution.know(digest(self._vae, self._rnn))

    def _prepare_round(self) -> None:
        env = self._context.train_env
        assert env is not None, "a phase that collects has environments"
        seed = self._evolution_in_task().enter(is_undisturbed=self._acting == POPULATION)
        if seed is not None:
            env.reset(seed)
            self._carry = None
            self._reset_episode_tracking(env.num_envs)

    def _evolution_in_task(self) -> EvolutionInTask:
        """Made when it is first asked for: agents that only play have no environments to share out."""
        if self._in_task is None:
            env = self._context.train_env
            if env is None:
                raise ReverieError(f"`controller: {POPULATION}` needs training environments, but this run has none.")
            rng = self._context.rng.stream("evolution", device=_CPU)
            self._in_task = EvolutionInTask(self._evolution, self._given, num_envs=env.num_envs, rng=rng)
        return self._in_task

    def _made_policy(self, name: str) -> Policy:
        if name == "linear":
            return self._latent_policy(OwnWeights(self._linear))
        if name == POPULATION:
            self._evolution_in_task()  # numbers that do not fit are found before the first step
            return self._latent_policy(self._given)
        make = self._context.controllers.find(name, partial)
        if make.func is RandomWeights:
            return self._latent_policy(make(self._linear))
        return BlindPolicy(make(rngs=self._acting_rngs()), latent=self._vae.latent)

    def _latent_policy(self, weights: Weights) -> LatentPolicy:
        return LatentPolicy(
            self._vae,
            self._rnn,
            self._linear,
            weights,
            rngs=self._acting_rngs(),
            acts_on=self._config.acts_on,
            precision=self._context.precision,
        )

    def _noise(self, batch: Batch) -> Tensor:
        shape = (*batch.reward.shape, self._vae.latent)
        return torch.randn(shape, device=batch.reward.device, generator=self._rng)


def _named(losses: Mapping[str, Tensor]) -> Metrics:
    return {f"loss/{name}": one.detach().mean() for name, one in losses.items()}
