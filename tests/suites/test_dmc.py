"""The suite dmc, against dm_control itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reverie.environments.dmc import DmcEnvironment, task_info, task_names
from reverie.types import ReverieError, Timestep

PROPRIO_TASKS = (
    "acrobot_swingup ball_in_cup_catch cartpole_balance cartpole_balance_sparse cartpole_swingup "
    "cartpole_swingup_sparse cheetah_run finger_spin finger_turn_easy finger_turn_hard hopper_hop hopper_stand "
    "pendulum_swingup reacher_easy reacher_hard walker_run walker_stand walker_walk"
)
"""The 18 tasks of the DreamerV3 paper."""
VISION_TASKS = f"{PROPRIO_TASKS} quadruped_run quadruped_walk"
"""Its 20 tasks from pixels."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One cache for all tests of this process: the backends are tried once, and the user's memory stays untouched."""
    folder: Path = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return iter([None])


def actions(env: DmcEnvironment, count: int, seed: int = 0) -> np.ndarray:
    dim = env.spaces.action.dim
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, dim)).astype(np.float32)


def bits(timestep: Timestep) -> str:
    digest = hashlib.sha256(repr((timestep.reward, timestep.is_first, timestep.is_last, timestep.is_terminal)).encode())
    for key, value in sorted(timestep.obs.items()):
        digest.update(f"{key} {value.dtype} {value.shape}".encode() + value.tobytes())
    return digest.hexdigest()


def bare(domain: str, task: str, seed: int) -> Any:
    from dm_control import suite

    return suite.load(domain, task, task_kwargs={"random": seed})


def vectors(observation: dict[str, Any]) -> dict[str, list[float]]:
    return {key: np.atleast_1d(value).astype(np.float32).ravel().tolist() for key, value in observation.items()}


def test_the_names_are_those_of_the_simulator() -> None:
    DmcEnvironment(task="dmc_walker_walk").close()  # so that the import below needs no OpenGL
    from dm_control import suite

    assert task_names() == [f"dmc_{domain}_{task}" for domain, task in suite.ALL_TASKS]


def test_an_episode_is_that_of_dm_control_with_each_action_played_twice() -> None:
    env = DmcEnvironment(task="dmc_walker_walk", action_repeat=2)
    native = bare("walker", "walk", seed=7)
    seen, shown = env.reset(7), native.reset()
    assert env.spaces.obs["height"].shape == (1,)
    for index, action in enumerate(actions(env, 500), start=1):
        assert {key: value.tolist() for key, value in seen.obs.items()} == vectors(shown.observation)
        assert all(value.dtype == np.float32 for value in seen.obs.values())
        seen = env.step(action)
        limited = np.clip(action.astype(np.float64), -1, 1)
        reward = native.step(limited).reward
        shown = native.step(limited)
        assert seen.reward == pytest.approx(reward + shown.reward, abs=1e-12)
        assert (seen.is_first, seen.is_last, seen.is_terminal) == (False, index == 500, False)
    assert env.frames_per_step == 2
    assert env.episode_steps == 500
    assert task_info("dmc_walker_walk").episode_steps == 1000
    env.close()


@pytest.mark.parametrize("task", [*PROPRIO_TASKS.split(), "quadruped_run", "humanoid_walk", "dog_walk", "lqr_lqr_2_1"])
def test_the_shortcuts_lead_to_the_bits_of_dm_control(task: str) -> None:
    env = DmcEnvironment(task=f"dmc_{task}")
    from dm_control.suite.wrappers import action_scale

    domain = next(name for name in ("ball_in_cup", task.partition("_")[0]) if task.startswith(name))
    native = bare(domain, task.removeprefix(f"{domain}_"), seed=0)
    assert type(native.physics.named.data.qpos) is not type(env._env.physics.named.data.qpos)
    for one in (native, env._env):
        one.task.random.seed(5)
        one.reset()
    scaled = action_scale.Wrapper(native, minimum=-1.0, maximum=1.0) if "lqr" not in task else native
    for action in actions(env, 30):
        seen, shown = env.step(action), scaled.step(np.clip(action.astype(np.float64), -1, 1))
        assert {key: value.tolist() for key, value in seen.obs.items()} == vectors(shown.observation)
        assert seen.reward == shown.reward
        assert env._env.physics.get_state().tobytes() == native.physics.get_state().tobytes()
    env.close()


def test_names_mean_what_they_mean_in_dm_control_at_first_and_when_they_are_remembered() -> None:
    env, native = DmcEnvironment(task="dmc_walker_walk"), bare("walker", "walk", seed=0)
    ours, theirs = env._env.physics.named.data, native.physics.named.data
    keys = [
        "torso", ("torso",), ("torso", "zz"), (slice(1, None), ["xx", "xz"]), (slice(1), ["xx", "xz"]),
        ["torso", "left_leg"], (["torso", "left_leg"], "zz"), (["left_leg", "torso"], ["zz", "xx"]),
        1, True, [1], [True] * 8, (1, "xx"), (True, "xx"), slice(None), np.array([2, 1]), (slice(2, 3), 1),
    ]  # fmt: skip
    for _ in range(2):
        for key in keys:
            assert ours.xmat[key].tolist() == theirs.xmat[key].tolist(), key
    for wrong, error in (("tors", KeyError), (["tors"], KeyError), ("", IndexError), (None, IndexError)):
        for one in (ours, theirs):
            with pytest.raises(error):
                one.xmat[wrong]
    ours.qpos["rootz"] = 3.0
    assert env._env.physics.data.qpos[0] == 3.0
    env.close()


@pytest.mark.parametrize("task", ["walker_walk", "cartpole_swingup"])
def test_a_simulation_that_explodes_is_the_error_of_dm_control(task: str) -> None:
    """With and without a step of our own: the cartpole has an integrator that dm_control steps."""
    env = DmcEnvironment(task=f"dmc_{task}")
    from dm_control.rl.control import PhysicsError

    env.reset(0)
    assert ("step" in vars(env._env.physics)) == (task == "walker_walk")
    env._env.physics.data.qvel[:] = 1e12
    with pytest.raises(PhysicsError, match="mjWARN_BADQ"):
        env.step(actions(env, 1)[0])
    env.reset(0)
    env.step(actions(env, 1)[0])
    env.close()


@pytest.mark.parametrize(("task", "camera"), [("cartpole_swingup", 0), ("quadruped_run", 2)])
def test_the_picture_is_that_of_the_published_camera(task: str, camera: int) -> None:
    env = DmcEnvironment(task=f"dmc_{task}", observation="both", size=48, frame_stack=3)
    from dm_control.suite.wrappers import action_scale

    # The actuators of the quadruped have ranges of their own.
    native = action_scale.Wrapper(bare(*task.split("_", 1), seed=3), minimum=-1.0, maximum=1.0)
    seen, shown = env.reset(3), native.reset()
    frames = [native.physics.render(48, 48, camera_id=camera)] * 3
    assert env.spaces.obs["image"].shape == (48, 48, 9)
    for action in actions(env, 4):
        assert np.array_equal(seen.obs["image"], np.concatenate(frames[-3:], axis=2))
        assert {key: value.tolist() for key, value in seen.obs.items() if key != "image"} == vectors(shown.observation)
        seen, shown = env.step(action), native.step(np.clip(action.astype(np.float64), -1, 1))
        frames.append(native.physics.render(48, 48, camera_id=camera))
    assert not np.array_equal(frames[-1], frames[-2])
    native.close()
    env.close()


def test_shadows_can_be_left_out() -> None:
    images = []
    for shadows in (True, False):
        env = DmcEnvironment(task="dmc_walker_walk", observation="vision", shadows=shadows)
        images.append(env.reset(1).obs["image"])
        env.close()
    assert images[0].shape == images[1].shape == (64, 64, 3)
    assert not np.array_equal(*images)


@pytest.mark.parametrize(("observation", "names"), [("proprio", PROPRIO_TASKS), ("vision", VISION_TASKS)])
def test_the_published_tasks_reset_and_step(observation: Any, names: str) -> None:
    for name in names.split():
        env = DmcEnvironment(task=f"dmc_{name}", observation=observation, action_repeat=2, shadows=False)
        first = env.reset(1)
        second = env.step(actions(env, 1)[0])
        for timestep in (first, second):
            assert {key: value.shape for key, value in timestep.obs.items()} == {
                key: space.shape for key, space in env.spaces.obs.items()
            }
        assert bits(first) != bits(second)
        assert env.episode_steps == 500
        env.close()


def played(task: str, seed: int, count: int = 12) -> list[str]:
    env = DmcEnvironment(task=task)
    rows = [bits(env.reset(seed))] + [bits(env.step(action)) for action in actions(env, count)]
    env.close()
    return rows


@pytest.mark.parametrize(
    "task", ["dmc_quadruped_fetch", "dmc_point_mass_hard", "dmc_lqr_lqr_6_2", "dmc_stacker_stack_2", "dmc_fish_swim"]
)
def test_the_seed_alone_decides_an_episode(task: str) -> None:
    env = DmcEnvironment(task=task)
    for seed, count in ((5, 30), (6, 3)):
        env.reset(seed)
        for action in actions(env, count, seed):
            env.step(action)
    again = [bits(env.reset(8))] + [bits(env.step(action)) for action in actions(env, 12)]
    env.close()
    assert again == played(task, 8)
    assert again != played(task, 9)


def test_another_process_plays_the_same_episode() -> None:
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]}; from test_dmc import played; print(*played"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}('dmc_reacher_easy', 4))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == played("dmc_reacher_easy", 4)


@pytest.mark.parametrize("count", [0, 2, 3, 9])
def test_a_replay_arrives_at_the_same_bits_and_draws_what_is_seen(count: int) -> None:
    env = DmcEnvironment(task="dmc_ball_in_cup_catch", observation="both", frame_stack=3, action_repeat=2)
    timestep = env.reset(11)
    for action in actions(env, count):
        timestep = env.step(action)
    other = DmcEnvironment(task="dmc_ball_in_cup_catch", observation="both", frame_stack=3, action_repeat=2)
    other.reset(1)
    draw, drawn = other._picture, []
    other._picture = lambda: drawn.append(1) or draw()
    assert bits(other.replay(11, actions(env, count))) == bits(timestep)
    assert len(drawn) == min(count + 1, 3)
    following = actions(env, 1, seed=99)[0]
    assert bits(other.step(following)) == bits(env.step(following))
    env.close()
    other.close()


def test_only_discount_zero_is_terminal() -> None:
    env = DmcEnvironment(task="dmc_lqr_lqr_2_1", action_repeat=4)
    assert env.episode_steps is None
    env.reset(2)
    assert not env.step(np.ones(1, np.float32)).is_last
    physics = env._env.physics
    assert physics.data.ctrl.tolist() == [1.0]  # an actuator without limits takes the action as it is
    with physics.reset_context():
        physics.data.qpos[:] = 0.0
    timestep = env.step(np.zeros(1, np.float32))
    assert (timestep.is_last, timestep.is_terminal) == (True, True)
    env.close()
    env.close()


def test_what_cannot_be_made_is_refused_in_one_sentence() -> None:
    for options, sentence in (
        ({"task": "dmc_walker_wolk"}, "There is no task dmc_walker_wolk: did you mean dmc_walker_walk?"),
        ({"observation": "pixels"}, "`observation` must be one of proprio, vision, both, got pixels."),
        ({"camera": 9}, "`camera` must be from 0 to 1, got 9."),
        ({"action_repeat": 0}, "`action_repeat` must be at least 1, got 0."),
        ({"frame_stack": 0}, "`frame_stack` must be at least 1, got 0."),
        ({"size": 0}, "`size` must be from 1 to 480, got 0."),
        ({"size": 500, "observation": "vision"}, "`size` must be from 1 to 480, got 500."),
    ):
        arguments: dict[str, Any] = {"task": "dmc_walker_walk", **options}
        with pytest.raises(ReverieError) as caught:
            DmcEnvironment(**arguments)
        assert str(caught.value) == sentence
    env = DmcEnvironment(task="dmc_walker_walk")
    env.reset(1)
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full(6, np.nan, np.float32))
    env.close()
