"""The world models of the older forms of Dreamer, as their YAML composes them at the smallest size."""

from __future__ import annotations

import pytest
import torch
from small_dreamer import CPU, SPACES, modelled, small_dreamer, synthetic_batch

from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.types import Batch, Space, Spaces

FORMS = ["dreamer_v1", "dreamer_v2", "dreamer_v3_2023"]
MIXED = Spaces(
    obs={"image": Space(shape=(64, 64, 1), dtype="uint8"), **SPACES.obs}, action=Space(shape=(2,), dtype="float32")
)
PARTS = ("encoder", "representation_learner", "decoder", "reward_head", "continue_head")


def batch_for(rssm: StateSpaceModel, spaces: Spaces) -> Batch:
    """Synthetic rows, with stored latents of the kind that this model keeps."""
    batch = synthetic_batch(spaces=spaces)
    size, length = batch.reward.shape
    start = rssm.initial(size * length, CPU).detach()
    shaken = Latent(deter=start.deter + 0.1, stoch=start.stoch)
    batch.stored = {key: value.unflatten(0, (size, length)) for key, value in rssm.stored(shaken).items()}
    return batch


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spaces", [SPACES, MIXED])
def test_the_losses_of_a_form_train_every_weight_of_its_world_model(form: str, spaces: Spaces) -> None:
    workflow = small_dreamer(f"components={form}", spaces=spaces)
    modules = workflow.modules()
    rssm = modules["representation_learner"]
    assert isinstance(rssm, StateSpaceModel)
    losses = modelled(workflow, batch_for(rssm, spaces)).losses
    weights = {
        f"{part}.{name}": weight
        for part in PARTS
        for name, weight in modules[part].named_parameters()
        if weight.requires_grad
    }
    total = torch.stack([loss.mean() for loss in losses.values()]).sum()
    grads = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    assert [name for name, grad in zip(weights, grads, strict=True) if grad is None] == []
    assert all(bool(grad.isfinite().all()) for grad in grads if grad is not None)
