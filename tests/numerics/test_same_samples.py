"""What compares two ways of an update under the same samples does so: the samples count, and nothing else is hidden."""

from __future__ import annotations

import pytest
import torch
from same_samples import classes_of, cosine, distance, flat, given_classes, learned, seasoned

from reverie.commands.composition import composed
from reverie.rehearsal import Rehearsal, rehearsal
from reverie.types import Space, Spaces

SIZES = ("size=debug", "size.bins=255", "training.batch_size=3", "training.batch_length=5", "workflow.horizon=4")
ACTIONS = {
    "classes": Space(shape=(), dtype="int64", classes=3),
    "numbers": Space(shape=(2,), dtype="float32"),
}


def made(action: Space) -> Rehearsal:
    spaces = Spaces(obs={"vector": Space(shape=(7,), dtype="float32")}, action=action)
    config = composed("gym_CartPole-v1", ["experiment=dreamer_cartpole", *SIZES])
    return seasoned(rehearsal(config, spaces=spaces, device=torch.device("cpu"), streams=4, rows=64))


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_same_samples_give_the_same_losses_and_others_do_not(kind: str) -> None:
    one, other, third = (made(ACTIONS[kind]) for _ in range(3))
    batch = one.update.drawn()
    found, gradients = learned(one, batch)
    assert 0.01 < found.judged.advantage.abs().mean() < 10, "or nothing is learned about actions, or only of far bins"
    # The noise of numbers is not given, so it must come from the same place of the same stream.
    if kind == "classes":
        other.rng.stream("update").manual_seed(7)
    third.rng.stream("update").manual_seed(8)
    with given_classes(classes_of(found)):
        same, same_gradients = learned(other, batch)
    different, _ = learned(third, batch)
    for name, loss in found.losses.items():
        assert torch.equal(loss, same.losses[name]), name
    assert {"encoder", "actor", "critic"} < gradients.keys()
    for name, gradient in gradients.items():
        assert distance(flat(same_gradients[name]), flat(gradient)) == 0, name
    assert distance(different.losses["value"], found.losses["value"]) > 1e-3


def test_draws_that_are_not_made_are_noticed() -> None:
    run = made(ACTIONS["classes"])
    batch = run.update.drawn()
    drawn = classes_of(learned(run, batch)[0])
    with pytest.raises(AssertionError, match="1 draws were not made"), given_classes([*drawn, drawn[-1]]):
        learned(run, batch)


def test_directions_of_small_vectors_are_told_apart() -> None:
    one = 1e-10 * torch.arange(1.0, 5.0)
    assert cosine(one, 3 * one) == pytest.approx(1.0)
    assert cosine(one, one.flip(0)) < 0.7
