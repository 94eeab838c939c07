"""World Models with eyes closed: latents that are seen or predicted, step by step, and the pictures they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.components.dynamics.mdn_rnn import Expected, MdnRnn, Memory
from reverie.components.representation_learners.conv_vae import ConvVae
from reverie.types import Batch
from reverie.workflows.open_loop import OpenLoop


def followed(
    vae: ConvVae,
    rnn: MdnRnn,
    seen_BTD: Tensor,
    action_BTA: Tensor,
    batch: Batch,
    *,
    is_context_BT: Tensor,
) -> OpenLoop:
    """``seen_BTD`` are the latents of the rows; where they are not context, the most likely prediction stands."""
    latents, expectations = [], []
    memory = rnn.initial(len(seen_BTD))
    for step, is_context in enumerate(is_context_BT.unbind(1)):
        goes_on = (~batch.is_first[:, step]).float().unsqueeze(-1)
        memory = Memory(hidden=memory.hidden * goes_on, cell=memory.cell * goes_on)
        expected = rnn.expected(memory.hidden)
        latent = torch.where(is_context.unsqueeze(-1), seen_BTD[:, step], expected.latent.most_likely())
        memory = rnn.step(memory, latent, action_BTA[:, step])
        latents.append(latent)
        expectations.append(expected)
    return OpenLoop(
        obs={vae.key: vae.decoded(torch.stack(latents, 1))},
        reward=_rewards(expectations) if rnn.has_reward_head else None,
        real_reward=batch.reward,
        live=_live(expectations) if rnn.has_termination_head else None,
        discount=1.0,
    )


def _rewards(expectations: list[Expected]) -> Tensor:
    return torch.stack([one.reward for one in expectations if one.reward is not None], 1)


def _live(expectations: list[Expected]) -> Tensor:
    logits = torch.stack([one.termination for one in expectations if one.termination is not None], 1)
    return 1 - logits.sigmoid()
