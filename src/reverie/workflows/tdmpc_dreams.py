"""TD-MPC with its eyes closed: what its model expects of recorded actions, and of the actions that it plans."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from reverie.components.controllers.latent_model import LatentModel
from reverie.components.controllers.mppi import Mppi, Plan, PlanStep, actions_at
from reverie.components.networks.latent_encoder import Discount, LatentEncoder
from reverie.components.networks.probe_decoder import ProbeDecoder
from reverie.types import Batch
from reverie.workflows.dreamer_open_loop import predicted_obs
from reverie.workflows.open_loop import OpenLoop
from reverie.workflows.plans import Plans

_NOISE_SEED = 0
"""Plans to look at are drawn with the same noise each time: they may not touch the streams of the run."""
_WHY_BLIND = "nothing decodes its latents, because `components.probe` is null: give that to a new run"


class TdmpcDreams:
    """Nothing here is trained, drawn from the run's streams or remembered."""

    def __init__(self, encoder: LatentEncoder, model: LatentModel, planner: Mppi, probe: ProbeDecoder | None) -> None:
        self._encoder, self._model, self._planner, self._probe = encoder, model, planner, probe

    def open_loop(self, batch: Batch, *, is_context: Tensor) -> OpenLoop:
        """Encoded rows where ``is_context``, else the dynamics along the recorded actions."""
        encoded, action = self._latents(batch), self._model.prior.vector(batch.action)
        if (mask := self._encoder.action_mask(batch.obs)) is not None:
            action = action * mask
        latents, rewards = [encoded[:, 0]], [batch.reward[:, 0]]
        for step in range(1, encoded.shape[1]):
            before, taken = latents[-1], action[:, step - 1]
            reward = self._model.reward_head(before, taken).mean()
            # Nothing leads to the first row of an episode: what stands there is no prediction.
            rewards.append(torch.where(batch.is_first[:, step], batch.reward[:, step], reward))
            known = is_context[:, step, None]
            latents.append(torch.where(known, encoded[:, step], self._model.dynamics(before, taken)))
        led_to = torch.stack(latents, 1)
        return OpenLoop(
            obs=predicted_obs(self._probe(led_to), batch.obs) if self._probe else {},
            reward=torch.stack(rewards, 1),
            real_reward=batch.reward,
            live=self._live(led_to),
            discount=_number(self._encoder.discount(self._model.discount, batch.obs)),
            latent_error=(led_to - encoded).square().mean(-1),
            why_blind=None if self._probe else _WHY_BLIND,
        )

    def plans(self, episode: Batch, *, moments: int, shown: int) -> Plans | None:
        """The best plan of each moment and others of those that were kept, evenly spread."""
        last = episode.reward.shape[1] - 1 - self._planner.horizon
        if last < 0:
            return None
        encoded = self._latents(episode)[0]
        row = torch.linspace(0, last, min(moments, last + 1), device=encoded.device).round().long()
        model = self._model.about(self._encoder, {key: value[0, :1] for key, value in episode.obs.items()})
        found = self._planned(model, encoded, row)
        rank = torch.linspace(0, found.elite_index.shape[1] - 1, shown, device=row.device).round().long().unique()
        latents, reward = self._led_to(encoded[row], actions_at(found.actions, found.elite_index[:, rank]))
        return Plans(
            row=row,
            rank=rank,
            obs=self._seen(latents, episode.obs),
            reward=reward,
            real_reward=episode.reward[0],
            worth=found.elite_returns[:, rank],
            discount=_number(model.discount),
        )

    def _planned(self, model: LatentModel, encoded_TD: Tensor, row_M: Tensor) -> PlanStep:
        """The last round of planning. As in acting, a plan begins with that of the row before: here from as many rows
        back as a plan is long.
        """
        rng = Generator(encoded_TD.device).manual_seed(_NOISE_SEED)
        mean = torch.zeros(self._planner.horizon, len(row_M), self._model.prior.action_dim, device=encoded_TD.device)
        for back in range(self._planner.horizon, 0, -1):
            mean = self._plan(model, encoded_TD, row_M - back, mean, rng).mean
        return self._plan(model, encoded_TD, row_M, mean, rng).steps[-1]

    def _plan(
        self, model: LatentModel, encoded_TD: Tensor, row_M: Tensor, previous_mean: Tensor, rng: Generator
    ) -> Plan:
        """For all rows at once. Where the episode begins there was no plan before."""
        previous = previous_mean.masked_fill((row_M <= 0).view(1, -1, 1), 0.0)
        noise = self._planner.noise(len(row_M), model, rng, is_greedy=True)
        return self._planner(model, encoded_TD[row_M.clamp(min=0)], previous, noise)

    def _latents(self, batch: Batch) -> Tensor:
        shape = batch.reward.shape
        return self._encoder(batch.obs, self._encoder.no_shift(shape, batch.reward.device))

    def _led_to(self, latent_MD: Tensor, action_HMPA: Tensor) -> tuple[Tensor, Tensor]:
        """Latents [M, P, H + 1, D] along the actions, and the rewards [M, P, H] that a planner counts."""
        latents, rewards = [latent_MD.unsqueeze(1).expand(-1, action_HMPA.shape[2], -1)], []
        live = torch.ones(latents[0].shape[:-1], device=latent_MD.device)
        counted = self._planner.counted(self._model.updates)
        for step, action in enumerate(action_HMPA):
            if counted is not None and not counted[step]:  # beyond the end of a plan that is still short
                rewards.append(torch.zeros_like(live))
                latents.append(latents[-1])
                continue
            rewards.append(self._model.reward_head(latents[-1], action).mean() * live)
            latents.append(self._model.dynamics(latents[-1], action))
            live = live * (self._live(latents[-1]) >= 0.5)
        return torch.stack(latents, 2), torch.stack(rewards, 2)

    def _live(self, latent: Tensor) -> Tensor:
        """The probability that no episode ended on the way here."""
        head = self._model.termination_head
        return 1 - head(latent).mean() if head.is_learned else torch.ones(latent.shape[:-1], device=latent.device)

    def _seen(self, latents: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._probe is None:
            return {}
        lead = latents.shape[:-1]
        # Shaped as rows are: a single number has an axis of its own in the decoder alone.
        rows = {key: value[0, :1].expand(lead.numel(), *value.shape[2:]) for key, value in like.items()}
        found = predicted_obs(self._probe(latents.flatten(0, -2)), rows)
        return {key: value.unflatten(0, lead) for key, value in found.items()}


def _number(discount: Discount) -> float:
    """Where tasks differ, their mean."""
    return float(discount.mean()) if isinstance(discount, Tensor) else discount
