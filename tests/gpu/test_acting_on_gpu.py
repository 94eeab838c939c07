"""Recorded acting is eager acting: the same bits, beside a running update or not, with either weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from killer import Killer
from same_run import SMALL_RUN, differences
from torch import Tensor

from reverie.commands.composition import composed
from reverie.rehearsal import Rehearsal, made_up, rehearsal
from reverie.runtime.acting import Acting
from reverie.runtime.capture import Captured
from reverie.types import Observation, Space, Spaces

DEVICE = torch.device("cuda")
PICTURE = Spaces(
    obs={"image": Space(shape=(64, 64, 3), dtype="uint8"), "vector": Space(shape=(7,), dtype="float32")},
    action=Space(shape=(), dtype="int64", classes=4),
)
STEPS = 24
ON_GPU = (*SMALL_RUN, "runtime=gpu", "runtime.compiles_steps=false")


def made(precision: str) -> Rehearsal:
    settings = ["experiment=dreamer_cartpole", "size=tiny", "runtime=gpu", "size.blocks=8", "size.depth=8"]
    config = composed("gym_CartPole-v1", [*settings, f"runtime.precision={precision}", "runtime.compiles_steps=false"])
    return rehearsal(config, spaces=PICTURE, device=DEVICE, streams=4, rows=512)


def seen(step: int, num_envs: int) -> Observation:
    rng = torch.Generator().manual_seed(step)
    no = torch.zeros(num_envs, dtype=torch.bool)
    return Observation(
        obs={key: made_up(space, num_envs, rng) for key, space in PICTURE.obs.items()},
        reward=torch.rand(num_envs, generator=rng),
        is_first=no if step % 7 else ~no,
        is_last=no,
        is_terminal=no,
    )


def walked(*, captures: bool, lags: bool, precision: str, num_envs: int) -> tuple[list[Tensor], Rehearsal]:
    """Acts and learns in turns: four steps, an update. Every row goes to replay on the device."""
    run = made(precision)
    acting = Acting(run.rng, DEVICE, lags=lags, captures=captures)
    acting.follow(run.workflow.modules)
    update = Captured(run.update, name="update", generators=run.rng.learning_streams) if captures else run.update
    policy = run.workflow.policy(None)
    carry, rows = policy.initial(num_envs), []
    for step in range(STEPS):
        acted = acting.step(policy, carry, seen(step, num_envs), mode="train")
        carry, row = acted.carry, acted.row
        rows.append([acted.action.clone(), row.action, row.is_first, *row.obs.values(), *row.stored.values()])
        if num_envs == 4:
            run.buffer.append(row)
        if step % 4 == 3:
            acting.before_update()
            update()
    torch.cuda.synchronize()
    return [value.cpu() for row in rows for value in row], run


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("lags", [False, True])
def test_recorded_steps_beside_updates_are_the_eager_ones(lags: bool, precision: str, num_envs: int) -> None:
    eager, one = walked(captures=False, lags=lags, precision=precision, num_envs=num_envs)
    recorded, other = walked(captures=True, lags=lags, precision=precision, num_envs=num_envs)
    assert all(torch.equal(a, b) for a, b in zip(eager, recorded, strict=True))
    for name, generator in one.rng.get_state().items():
        assert torch.equal(generator, other.rng.get_state()[name]), name
    for a, b in zip(one.workflow.modules().values(), other.workflow.modules().values(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_lagged_acting_does_not_wait_for_the_update() -> None:
    """The device is kept busy on the main stream; an action comes while it still is."""
    run = made("bfloat16")
    acting = Acting(run.rng, DEVICE, lags=True, captures=True)
    acting.follow(run.workflow.modules)
    policy = run.workflow.policy(None)
    carry = policy.initial(1)
    for step in range(5):
        carry = acting.step(policy, carry, seen(step, 1), mode="train").carry
    acting.before_update()
    acting.step(policy, carry, seen(5, 1), mode="train")
    torch.cuda._sleep(4_000_000_000)  # two seconds and more
    busy = torch.cuda.Event()
    busy.record()
    acting.step(policy, carry, seen(6, 1), mode="train")
    assert not busy.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("weights", ["current", "lagged"])
def test_whole_runs_are_the_same_with_recorded_and_eager_acting(weights: str, killer: Killer, tmp_path: Path) -> None:
    runs = {value: tmp_path / value for value in ("true", "false")}
    for value, run in runs.items():
        settings = [f"runtime.captures_acting={value}", f"runtime.acting_weights={weights}", f"logdir={run}"]
        ended = killer.run("train", *ON_GPU, *settings)
        assert ended.code == 0, ended.output
    assert differences(*runs.values()) == []


def test_the_shares_are_those_of_the_device(killer: Killer, tmp_path: Path) -> None:
    ended = killer.run("train", *ON_GPU, f"logdir={tmp_path / 'run'}")
    assert ended.code == 0, ended.output
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    shares = [line for line in lines if "time/learning" in line]
    assert len(shares) >= 2
    for line in shares:
        parts = (line[f"time/{kind}"] for kind in ("update", "evaluate", "checkpoint", "idle"))
        assert sum(parts) == pytest.approx(1.0)
        assert 0.0 <= line["time/learning"] < 1.5  # an update may end in the interval after its own
