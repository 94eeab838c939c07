"""Several values of an action at once, of which two at a time are believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from reverie.components.networks.normed import Ensemble
from reverie.components.networks.numbers import NumberForm, PredictedNumber


class QEnsemble(nn.Module):
    """``network`` makes an ensemble of (inputs, outputs); each member predicts a number in the given ``form``.

    Plans and the policy go by the mean of two members, or, where ``is_cautious``, by the smaller value, as targets do.
    """

    def __init__(
        self,
        *,
        latent_dim: int,
        action_dim: int,
        form: NumberForm,
        network: Callable[..., Ensemble],
        is_cautious: bool = False,
    ) -> None:
        super().__init__()
        self.form, self.is_cautious = form, is_cautious
        self.network = network(latent_dim + action_dim, form.width)

    @property
    def members(self) -> int:
        return self.network.members

    def pairs(self, shape: Sequence[int], rng: Generator) -> Tensor:
        """[..., 2]: two different members each, drawn on the device."""
        return torch.rand(*shape, self.members, device=rng.device, generator=rng).topk(2).indices

    def believed(self, values: Tensor) -> Tensor:
        """What plans and the policy make of the values [2, ...] of two members."""
        return values.amin(0) if self.is_cautious else values.mean(0)

    def drawn_dropout(self, inputs: int, rng: Generator, *, members: int) -> Tensor | None:
        return self.network.drawn_dropout(inputs, rng, members=members)

    def output(
        self,
        latent: Tensor,
        action: Tensor,
        *,
        members: Tensor | None = None,
        is_frozen: bool = False,
        keep: Tensor | None = None,
    ) -> Tensor:
        """What the networks say before anybody reads numbers in it: [members, ..., width]."""
        inputs = torch.cat([latent, action], -1)
        return self.network(inputs, members=members, is_frozen=is_frozen, keep=keep)

    def forward(
        self,
        latent: Tensor,
        action: Tensor,
        *,
        members: Tensor | None = None,
        is_frozen: bool = False,
        keep: Tensor | None = None,
    ) -> PredictedNumber:
        """Numbers [members, ...]. ``members`` asks those only; ``is_frozen`` leaves no gradient in the parameters."""
        return self.form(self.output(latent, action, members=members, is_frozen=is_frozen, keep=keep))
