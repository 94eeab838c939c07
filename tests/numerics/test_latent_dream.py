"""A dream keeps to the rules of an environment, ends where the model says so, and copies live the same chances."""

from __future__ import annotations

import pytest
import torch

from reverie.components.dreams.latent_dream import LatentDream
from reverie.components.dreams.starts import DreamStarts
from reverie.components.dynamics.mdn_rnn import MdnRnn, Memory
from reverie.components.representation_learners.conv_vae import ConvVae
from reverie.types import ReverieError, Space


def model(*, end: float = -5.0, reward: float = 1.0) -> MdnRnn:
    """Always the same reward and the same chance to end."""
    torch.manual_seed(0)
    rnn = MdnRnn(latent_dim=3, action_dim=2, units=8, mixtures=4, has_reward_head=True, has_termination_head=True)
    with torch.no_grad():
        rnn.output.weight[-2:] = 0
        rnn.output.bias[-2:] = torch.tensor([reward, end])
    return rnn


def dream_of(rnn: MdnRnn, *, temperature: float = 1.0, limit: int = 10, seed: int = 0) -> LatentDream:
    rng = torch.Generator().manual_seed(seed)
    return LatentDream(rnn, vae=None, rng=rng, temperature=temperature, limit=limit)


STARTS = torch.arange(12.0).view(4, 3) / 10
ACTION = torch.ones(4, 2)


def test_it_begins_at_its_starts_and_ends_at_its_limit() -> None:
    dream = dream_of(model(), limit=3)
    row = dream.reset(STARTS)
    assert row.is_first.all()
    assert torch.equal(row.stored["latent"], STARTS)
    assert not row.stored["hidden"].any()
    rows = [dream.step(ACTION) for _ in range(4)]
    assert [bool(row.is_last.all()) for row in rows] == [False, False, True, True]
    assert not any(bool(row.is_terminal.any() or row.is_first.any()) for row in rows)
    assert [row.reward.tolist() for row in rows] == [[1.0] * 4] * 3 + [[0.0] * 4]
    assert torch.equal(rows[2].stored["latent"], rows[3].stored["latent"]), "an ended dream stays where it is"


def test_it_ends_where_the_model_expects_the_end() -> None:
    dream = dream_of(model(end=0.1))
    dream.reset(STARTS)
    row = dream.step(ACTION)
    assert row.is_terminal.all()
    assert row.is_last.all()
    assert row.reward.tolist() == [1.0] * 4, "the reward that arrives with the end counts"


def test_the_memory_is_what_was_known_before_the_action() -> None:
    rnn = model()
    dream = dream_of(rnn)
    row = dream.reset(STARTS)
    before = Memory(hidden=row.stored["hidden"], cell=row.stored["cell"])
    after = rnn.step(before, row.stored["latent"], ACTION)
    found = dream.step(ACTION)
    assert torch.equal(found.stored["hidden"], after.hidden)
    assert torch.equal(found.stored["cell"], after.cell)


def test_copies_live_through_the_same_chances() -> None:
    dream = dream_of(model())
    dream.reset(STARTS[:2].repeat(2, 1), copies=2)
    for _ in range(3):
        latent = dream.step(ACTION).stored["latent"]
        assert torch.equal(latent[:2], latent[2:])
    assert not torch.equal(latent[0], latent[1])
    with pytest.raises(ReverieError, match="cannot be 3 times"):
        dream.reset(STARTS, copies=3)


def test_a_warmer_dream_strays_further() -> None:
    spreads = []
    for temperature in (0.1, 1.0, 2.0):
        dream = dream_of(model(), temperature=temperature)
        dream.reset(torch.zeros(500, 3))
        spreads.append(float(dream.step(torch.zeros(500, 2)).stored["latent"].std(0).mean()))
    assert spreads[0] < 0.6 * spreads[1] < 0.6 * spreads[2]


def test_a_saved_dream_goes_on_as_the_same() -> None:
    one, other = dream_of(model()), dream_of(model(), seed=1)
    one.reset(STARTS.clone())
    one.step(ACTION)
    other.set_state(one.get_state())
    other._rng.set_state(one._rng.get_state())
    for _ in range(3):
        first, second = one.step(ACTION), other.step(ACTION)
        assert torch.equal(first.stored["latent"], second.stored["latent"])
        assert torch.equal(first.is_last, second.is_last)


def test_it_shows_pictures_to_whoever_wants_some() -> None:
    vae = ConvVae(spaces={"image": Space(shape=(64, 64, 3), dtype="uint8")}, latent=3, depth=1)
    dream = LatentDream(model(), vae=vae, rng=torch.Generator(), temperature=1.0, limit=5)
    assert dream.reset(STARTS).obs["image"].shape == (4, 64, 64, 3)
    assert not dream.step(ACTION).obs["image"].requires_grad


def test_dreams_start_where_episodes_began() -> None:
    starts = DreamStarts(latent_dim=2, capacity=3)
    number = torch.arange(8.0)
    mean, log_variance = torch.stack([number, number], -1), torch.full((8, 2), -50.0)
    is_first = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0]).bool()
    rng = torch.Generator().manual_seed(0)
    starts.keep(mean, log_variance, torch.zeros(8, dtype=torch.bool))
    assert starts.drawn(50, rng).unique().numel() > 1, "before there is a first observation, others stand in"
    starts.keep(mean, log_variance, is_first)
    assert sorted(starts.drawn(100, rng).round().unique().tolist()) == [1.0, 4.0]
    starts.keep(mean + 10, log_variance, is_first)
    assert sorted(starts.drawn(200, rng).round().unique().tolist()) == [4.0, 11.0, 14.0], "the oldest had to go"
