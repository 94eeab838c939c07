"""The suite metaworld, against metaworld itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reverie.environments.metaworld import MetaworldEnvironment, task_info, task_names
from reverie.types import ReverieError, Timestep


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def reach() -> Iterator[MetaworldEnvironment]:
    env = MetaworldEnvironment(task="metaworld_reach-v3")
    yield env
    env.close()


def actions(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, 4)).astype(np.float32)


def bits(timestep: Timestep) -> list[Any]:
    flags = [timestep.reward, timestep.is_first, timestep.is_last, timestep.is_terminal, dict(timestep.scores)]
    return flags + [(key, value.dtype, value.tobytes()) for key, value in sorted(timestep.obs.items())]


def official(name: str, seed: int) -> Any:
    """The task as metaworld's own benchmark MT1 sets it up, at the goal that the seed draws."""
    import metaworld
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE

    goals = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-goal-observable"](seed=0)
    goals._freeze_rand_vec, goals.seeded_rand_vec = False, True
    goals.seed(seed)
    goals.reset_model()
    env = metaworld.ALL_V3_ENVIRONMENTS[name]()
    data = {"rand_vec": goals._last_rand_vec, "env_cls": type(env), "partially_observable": False}
    env.set_task(metaworld._encode_task(name, data))
    goals.close()
    return env


def test_the_names_are_those_of_the_simulator(reach: MetaworldEnvironment) -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert task_names() == [f"metaworld_{name}" for name in ALL_V3_ENVIRONMENTS]
    assert len(task_names()) == 50


@pytest.mark.parametrize("name", ["reach-v3", "drawer-open-v3", "box-close-v3"])
def test_an_episode_is_that_of_the_benchmark_with_each_action_played_twice(name: str) -> None:
    env = MetaworldEnvironment(task=f"metaworld_{name}")
    native = official(name, seed=4)
    seen, (state, _) = env.reset(4), native.reset()
    for index, action in enumerate(actions(100), start=1):
        assert np.array_equal(seen.obs["vector"], state.astype(np.float32))
        limited = np.clip(action, -1, 1)
        _, one, *_ = native.step(limited)
        state, two, *_ = native.step(limited)
        seen = env.step(action)
        assert seen.reward == float(one) + float(two)
        assert (seen.is_last, seen.is_terminal, bool(seen.scores)) == (index == 100, False, index == 100)
    assert seen.obs["vector"][-3:].any()  # the goal is part of the state
    native.close()
    env.close()


def test_success_counts_at_any_frame_and_at_the_last(reach: MetaworldEnvironment) -> None:
    first = reach.reset(1)
    state = first.obs["vector"]
    goal = state[-3:]
    scores = []
    for moves in (60, 40):  # reach the goal, then leave it
        for _ in range(moves):
            toward = np.clip((goal - state[:3]) * 10, -1, 1) if moves == 60 else np.array([0.0, -1.0, 1.0])
            timestep = reach.step(np.append(toward, 0.0).astype(np.float32))
            state = timestep.obs["vector"]
        scores.append(dict(timestep.scores))
    assert scores == [{}, {"success": 1.0, "final_success": 0.0}]
    reach.reset(1)
    for _ in range(100):
        timestep = reach.step(np.zeros(4, np.float32))
    assert timestep.scores == {"success": 0.0, "final_success": 0.0}


def played(task: str, seed: int) -> list[list[Any]]:
    env = MetaworldEnvironment(task=task)
    rows = [bits(env.reset(seed))] + [bits(env.step(action)) for action in actions(8)]
    env.close()
    return rows


@pytest.mark.parametrize("task", ["metaworld_shelf-place-v3", "metaworld_stick-pull-v3", "metaworld_soccer-v3"])
def test_the_seed_alone_decides_an_episode(task: str) -> None:
    env = MetaworldEnvironment(task=task)
    for seed in (5, 6):
        env.reset(seed)
        for action in actions(20, seed):
            env.step(action)
    again = [bits(env.reset(8))] + [bits(env.step(action)) for action in actions(8)]
    env.close()
    assert again == played(task, 8)
    assert again != played(task, 9)


def test_another_process_plays_the_same_episode() -> None:
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]}; from test_metaworld import played"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}; print(played('metaworld_push-v3', 4))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == str(played("metaworld_push-v3", 4))


def test_drawing_changes_no_state_and_a_replay_draws_once() -> None:
    drawn = MetaworldEnvironment(task="metaworld_push-v3", observation="both")
    plain = MetaworldEnvironment(task="metaworld_push-v3")
    seen, felt = drawn.reset(3), plain.reset(3)
    first = seen.obs["image"]
    for action in actions(5):
        assert np.array_equal(seen.obs["vector"], felt.obs["vector"])
        seen, felt = drawn.step(action), plain.step(action)
    assert seen.obs["image"].shape == (64, 64, 3)
    assert not np.array_equal(seen.obs["image"], first)
    other = MetaworldEnvironment(task="metaworld_push-v3", observation="both")
    other.reset(1)
    draw, count = other._picture, []
    other._picture = lambda: count.append(1) or draw()
    assert bits(other.replay(3, actions(5))) == bits(seen)
    assert len(count) == 1
    for env in (drawn, plain, other):
        env.close()
        env.close()


def test_the_picture_is_the_right_way_up() -> None:
    """The wooden table fills the lower part of the view, the grey floor lies behind the arm."""
    env = MetaworldEnvironment(task="metaworld_drawer-open-v3", observation="vision")
    image = env.reset(1).obs["image"].astype(int)
    is_wood = (image[..., 0] - image[..., 2]) > 30
    assert is_wood[32:].mean() > is_wood[:32].mean()
    env.close()


def test_what_cannot_be_made_is_refused_in_one_sentence(reach: MetaworldEnvironment) -> None:
    for options, sentence in (
        ({"task": "metaworld_reach-v2"}, "There is no task metaworld_reach-v2: did you mean metaworld_reach-v3?"),
        ({"observation": "pixels"}, "`observation` must be state, vision or both, got pixels."),
        ({"episode_steps": 251}, "`episode_steps` must be from 1 to 250, got 251."),
        ({"size": 481}, "`size` must be from 1 to 480, got 481."),
        (
            {"camera": "front"},
            "`camera` must be one of topview, corner, corner2, corner3, corner4, behindGripper, gripperPOV, got front.",
        ),
    ):
        arguments: dict[str, Any] = {"task": "metaworld_reach-v3", **options}
        with pytest.raises(ReverieError) as caught:
            MetaworldEnvironment(**arguments)
        assert str(caught.value) == sentence
    with pytest.raises(ValueError, match="not finite"):
        reach.step(np.full(4, np.inf, np.float32))
    info = task_info("metaworld_reach-v3")
    assert (info.episode_steps, info.frames_per_step, info.problem) == (100, 2, None)
