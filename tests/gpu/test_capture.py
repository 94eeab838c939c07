"""A captured update is the eager update: the same bits in weights, moments, statistics, latents and random streams."""

from __future__ import annotations

import copy

import pytest
import torch
from same_run import unlike

from reverie.commands.composition import composed
from reverie.rehearsal import Rehearsal, rehearsal
from reverie.runtime.capture import Captured
from reverie.types import Metrics, ReverieError, Space, Spaces

DEVICE = torch.device("cuda")
VECTOR = Space(shape=(7,), dtype="float32")
PICTURE = Space(shape=(64, 64, 3), dtype="uint8")
SPACES = {
    "vector": Spaces(obs={"vector": VECTOR}, action=Space(shape=(2,), dtype="float32")),
    "picture": Spaces(obs={"image": PICTURE}, action=Space(shape=(), dtype="int64", classes=4)),
    "mixed": Spaces(obs={"image": PICTURE, "vector": VECTOR}, action=Space(shape=(2,), dtype="int64", classes=(3, 4))),
}


def made(kind: str, *overrides: str) -> Rehearsal:
    settings = ["experiment=dreamer_cartpole", "size=tiny", "runtime=gpu", "size.blocks=8", "size.depth=8"]
    config = composed("gym_CartPole-v1", [*settings, *overrides])
    return rehearsal(config, spaces=SPACES[kind], device=DEVICE, streams=4, rows=512)


def state(run: Rehearsal) -> dict[str, object]:
    """A copy: the latents of a buffer's own state go on changing."""
    buffer = copy.deepcopy(run.buffer.get_state())
    return {"workflow": run.workflow.get_state(), "buffer": buffer, "rng": run.rng.get_state()}


def assert_same_updates(eager: Rehearsal, replayed: Rehearsal, *, count: int) -> None:
    captured = replayed.captured()
    for _ in range(count):
        one = {name: value.item() for name, value in eager.update().items()}
        other = {name: value.item() for name, value in captured().items()}
        assert one == other
    assert unlike(state(eager), state(replayed), "") == []


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", sorted(SPACES))
def test_ten_captured_updates_equal_ten_eager_ones(kind: str, precision: str) -> None:
    eager, replayed = (made(kind, f"runtime.precision={precision}") for _ in range(2))
    assert_same_updates(eager, replayed, count=10)


OLDER = [
    ("dreamer_v3_2023", "vector"),
    ("dreamer_v3_2023", "picture"),
    ("dreamer_v2", "picture"),
    ("dreamer_v1", "vector"),
]


@pytest.mark.parametrize(("form", "kind"), OLDER)
def test_older_forms_are_captured_too(form: str, kind: str) -> None:
    settings = [f"{group}={form}" for group in ("components", "controller", "workflow")]
    eager, replayed = (made(kind, *settings) for _ in range(2))
    assert_same_updates(eager, replayed, count=6)


def test_priorities_and_mixtures_are_captured_too() -> None:
    settings = ["training.sampler={prioritized: 0.5, recent: 0.25, uniform: 0.25}", "training.crosses_episodes=false"]
    eager, replayed = (made("vector", *settings) for _ in range(2))
    captured = replayed.captured()
    for _ in range(10):
        eager.update()
        captured()
    assert unlike(state(eager), state(replayed), "") == []


def test_progress_reaches_a_replay() -> None:
    run = made("vector", "optimizers.model.decay=0.5", "optimizers.model.warmup_updates=0")
    captured = run.captured()
    rates = []
    for progress in (0.0, 0.0, 0.0, 0.5, 1.0):
        run.update.phase.progress.fill_(progress)
        rates.append(captured()["learning_rate"].item())
    assert rates[3] == pytest.approx(0.75 * rates[0])
    assert rates[4] == pytest.approx(0.5 * rates[0])


def test_rows_appended_between_replays_are_sampled() -> None:
    run = made("vector")
    captured = run.captured()
    for _ in range(4):
        captured()
    run.buffer._position.fill_(run.buffer._position.item() + 64)
    captured()
    assert run.buffer.get_state()["selection"]["fresh"]["17"] > 0


def test_a_function_that_asks_the_device_is_refused_with_its_name() -> None:
    total = torch.zeros((), device=DEVICE)

    def asking() -> Metrics:
        total.add_(1)
        return {"total": total} if total.item() > 0 else {}

    captured = Captured(asking, name="asking", generators=list)
    for _ in range(3):
        captured()
    with pytest.raises(ReverieError, match="'asking' cannot be captured"):
        captured()
