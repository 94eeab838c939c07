"""Dreams whose actor gets its gradients for all steps at once: those that autograd finds step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reverie.commands.composition import composed
from reverie.rehearsal import rehearsal
from reverie.types import Space, Spaces
from reverie.workflows import dreamer_imagination
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_imagination import Imagination

OBS = {"vector": Space(shape=(7,), dtype="float32")}
ACTIONS = {
    "numbers": Space(shape=(2,), dtype="float32"),
    "classes": Space(shape=(2,), dtype="int64", classes=(3, 2)),
}
MIXED = (
    "controller.objective.discrete._target_=reverie.components.controllers.actor_objective.MixedGradient",
    "+controller.objective.discrete.dynamics_share=0.5",
)
CASES = [("dreamer_v1", "numbers", ()), ("dreamer_v3_2023", "numbers", ()), ("dreamer_v3_2023", "classes", MIXED)]


def gradients(form: str, actions: str, precision: str, settings: tuple[str, ...]) -> dict[str, Tensor]:
    """By optimiser, of weights that have moved: the first outputs of fresh networks are all alike."""
    groups = [f"{group}={form}" for group in ("components", "controller", "workflow")]
    words = [
        "experiment=dreamer_cartpole",
        *groups,
        "size=debug",
        "workflow.horizon=3",
        f"runtime.precision={precision}",
    ]
    config = composed("gym_CartPole-v1", [*words, "training.batch_size=2", "training.batch_length=5", *settings])
    spaces = Spaces(obs=OBS, action=ACTIONS[actions])
    run = rehearsal(config, spaces=spaces, device=torch.device("cpu"), streams=2, rows=64)
    workflow, rng = run.workflow, torch.Generator().manual_seed(0)
    assert isinstance(workflow, Dreamer)
    with torch.no_grad():
        for module in workflow.modules().values():
            for parameter in module.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=rng)
    batch = run.update.drawn()
    carry = workflow._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
    found = workflow._optimizers.gradients(workflow.learned(carry, batch).losses).by_optimizer
    return {name: torch.cat([one.flatten().double() for one in part]) for name, part in found.items()}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("form", "actions", "settings"), CASES)
def test_gradients_are_those_of_dreams_that_are_followed_step_by_step(
    form: str, actions: str, settings: tuple[str, ...], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gradients(form, actions, precision, settings)
    dreams = []
    followed = Imagination._followed
    monkeypatch.setattr(dreamer_imagination, "defers_gradients", lambda: True)
    monkeypatch.setattr(Imagination, "_followed", lambda *given: dreams.append(followed(*given)) or dreams[-1])
    ours = gradients(form, actions, precision, settings)
    assert len(dreams) == 1
    for name, value in plain.items():
        assert value.norm() > 1e-4, name
        distance = (ours[name] - value).norm() / value.norm()
        assert distance < (1e-5 if precision == "float32" else 0.03), name
