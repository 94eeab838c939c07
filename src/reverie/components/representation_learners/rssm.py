"""The recurrent state-space model: a deterministic path of gated blocks beside categorical latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from reverie.components.networks.distributions import OneHot, kl_divergence
from reverie.components.networks.layers import BlockLinear, Mlp, NormSilu, linear
from reverie.types import require


@dataclass(kw_only=True, slots=True)
class Latent:
    """``deter`` [..., D] and one-hot ``stoch`` [..., stoch, classes]."""

    deter: Tensor
    stoch: Tensor

    @property
    def stoch_vector(self) -> Tensor:
        return self.stoch.flatten(-2)

    @property
    def feature(self) -> Tensor:
        """What heads read."""
        return torch.cat([self.deter, self.stoch_vector], -1)

    def detach(self) -> Latent:
        return Latent(deter=self.deter.detach(), stoch=self.stoch.detach())

    def flatten(self) -> Latent:
        """[B, T, ...] -> [B * T, ...], batch-major."""
        return Latent(deter=self.deter.flatten(0, 1), stoch=self.stoch.flatten(0, 1))


class Rssm(nn.Module):
    """Filters observations into latents (``observe``) and predicts latents from actions alone (``imagine``).

    Actions arrive as one-hot or continuous vectors, and an action given at step t is the one that *led to* step t.
    """

    def __init__(
        self,
        *,
        token_dim: int,
        action_dim: int,
        deter: int,
        hidden: int,
        stoch: int,
        classes: int,
        blocks: int = 8,
        dynamics_layers: int = 1,
        prior_layers: int = 2,
        posterior_layers: int = 1,
        unimix: float = 0.01,
    ) -> None:
        super().__init__()
        require("unimix of the latents", unimix, at_least=0, at_most=1)
        self._deter, self._stoch, self.classes = deter, stoch, classes
        self._blocks, self._unimix = blocks, unimix
        self.read_deter = Mlp(deter, layers=1, units=hidden)
        self.read_stoch = Mlp(stoch * classes, layers=1, units=hidden)
        self.read_action = Mlp(action_dim, layers=1, units=hidden)
        inputs = [deter + blocks * 3 * hidden] + [deter] * (dynamics_layers - 1)
        self.dynamics = nn.ModuleList([BlockLinear(dim, deter, blocks=blocks) for dim in inputs])
        self.dynamics_norms = nn.ModuleList([NormSilu(deter) for _ in inputs])
        self.gates = BlockLinear(deter, 3 * deter, blocks=blocks)
        self.prior_mlp = Mlp(deter, layers=prior_layers, units=hidden)
        self.prior_output = linear(hidden, stoch * classes)
        self.posterior_mlp = Mlp(deter + token_dim, layers=posterior_layers, units=hidden)
        self.posterior_output = linear(hidden, stoch * classes)

    def dims(self) -> dict[str, int]:
        stoch_dim = self._stoch * self.classes
        return {"deter_dim": self._deter, "stoch_dim": stoch_dim, "feature_dim": self._deter + stoch_dim}

    def initial(self, batch_size: int, device: torch.device) -> Latent:
        return Latent(
            deter=torch.zeros(batch_size, self._deter, device=device),
            stoch=torch.zeros(batch_size, self._stoch, self.classes, device=device),
        )

    def observe(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> tuple[Latent, Tensor]:
        """Latents and posterior logits of a sequence that begins right after ``carry``."""
        keep_BT1 = (~is_first_BT).unsqueeze(-1).to(carry.deter.dtype)
        # Whatever does not depend on the recurrence is computed for all steps at once.
        action_BTD = self.read_action(_bounded(action_BTA) * keep_BT1)
        deters, stochs, logits = [], [], []
        steps = zip(tokens_BTD.unbind(1), action_BTD.unbind(1), keep_BT1.unbind(1), strict=True)
        for tokens, action, keep in steps:
            deter = self._core(carry.deter * keep, carry.stoch * keep.unsqueeze(-1), action)
            logit = self._posterior(deter, tokens)
            carry = Latent(deter=deter, stoch=self._sample(logit, rng))
            deters.append(deter)
            stochs.append(carry.stoch)
            logits.append(logit)
        return Latent(deter=torch.stack(deters, 1), stoch=torch.stack(stochs, 1)), torch.stack(logits, 1)

    def imagine(self, latent: Latent, action: Tensor, rng: Generator | None) -> Latent:
        """One step without an observation."""
        deter = self._core(latent.deter, latent.stoch, self.read_action(_bounded(action)))
        return Latent(deter=deter, stoch=self._sample(self.prior(deter), rng))

    def prior(self, deter: Tensor) -> Tensor:
        """Logits of the latent before its observation is seen."""
        return self.prior_output(self.prior_mlp(deter)).unflatten(-1, (self._stoch, self.classes))

    def kl(self, posterior_logits: Tensor, prior_logits: Tensor) -> tuple[Tensor, Tensor]:
        """(dynamics, representation): the prior moves towards the posterior, and the posterior towards the prior.

        Summed over the variables; free nats are the caller's.
        """
        to_prior, to_posterior = kl_divergence(self.distribution(posterior_logits), self.distribution(prior_logits))
        return to_prior.sum(-1), to_posterior.sum(-1)

    def distribution(self, logits: Tensor) -> OneHot:
        return OneHot(logits, unimix=self._unimix)

    def _posterior(self, deter: Tensor, tokens: Tensor) -> Tensor:
        hidden = self.posterior_mlp(torch.cat([deter, tokens], -1))
        return self.posterior_output(hidden).unflatten(-1, (self._stoch, self.classes))

    def _core(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([self.read_deter(deter), self.read_stoch(stoch.flatten(-2)), action], -1)
        inputs_NGI = inputs.unsqueeze(-2).expand(-1, self._blocks, -1)
        old_NGD = deter.unflatten(-1, (self._blocks, -1))
        x_NGI = torch.cat([old_NGD.to(inputs.dtype), inputs_NGI], -1)
        for layer, norm in zip(self.dynamics, self.dynamics_norms, strict=True):
            x_NGI = norm(layer(x_NGI).flatten(-2)).unflatten(-1, (self._blocks, -1))
        # Each block has its own three gates: the split is inside the block, not across the whole vector.
        reset, candidate, update = self.gates(x_NGI).to(deter.dtype).chunk(3, -1)
        candidate = torch.tanh(reset.sigmoid() * candidate)
        return torch.lerp(old_NGD, candidate, (update - 1).sigmoid()).flatten(-2)

    def _sample(self, logits: Tensor, rng: Generator | None) -> Tensor:
        distribution = self.distribution(logits)
        return distribution.straight_through(distribution.sample(rng))


def _bounded(action: Tensor) -> Tensor:
    """Unclipped Gaussian samples are brought back to [-1, 1]."""
    return action / action.detach().abs().clamp(min=1.0)
