"""CarRacing: Gymnasium's own screen and rewards, and drives that repeat bit for bit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from reverie.environments.carracing import CarracingEnvironment, task_info, task_names
from reverie.types import ReverieError, Space, Timestep

DIGEST = "from test_carracing import digest; print(digest())"


def env(task: str = "carracing_continuous", **options: Any) -> CarracingEnvironment:
    return CarracingEnvironment(task=task, **options)


def bits(seen: list[Timestep]) -> list[tuple[bytes, float, bool, bool, bool]]:
    return [(one.obs["image"].tobytes(), one.reward, one.is_first, one.is_last, one.is_terminal) for one in seen]


def controls(steps: int, seed: int = 0) -> np.ndarray:
    """Mostly gas, so that the car gets somewhere; a little outside [-1, 1], so that clipping is part of the drive."""
    rng = np.random.default_rng(seed)
    low, high = np.array([-0.3, 0.5, -1.2]), np.array([0.3, 1.2, -0.9])
    return rng.uniform(low, high, (steps, 3)).astype(np.float32)


def digest() -> str:
    one = env()
    seen = [one.reset(3), *(one.step(action) for action in controls(10))]
    return hashlib.sha256(repr(bits(seen)).encode()).hexdigest()


def test_images_rewards_and_actions_are_those_of_gymnasium() -> None:
    one, bare = env(action_repeat=2), gymnasium.make("CarRacing-v3", max_episode_steps=-1)
    screen, _ = bare.reset(seed=5)
    assert np.array_equal(one.reset(5).obs["image"], road(screen))
    total = 0.0
    for action in controls(25):
        steering, gas, brake = np.clip(action, -1, 1)
        pedals = np.array([steering, (gas + 1) / 2, (brake + 1) / 2], np.float32)
        pairs = [bare.step(pedals) for _ in range(2)]
        step = one.step(action)
        assert np.array_equal(step.obs["image"], road(pairs[-1][0]))
        assert step.reward == sum(float(pair[1]) for pair in pairs)
        total += step.reward
    assert total > 0  # it drove over tiles
    bare.close()


def road(screen: np.ndarray) -> np.ndarray:
    image = Image.fromarray(np.ascontiguousarray(screen[:84]))
    return np.array(image.resize((64, 64), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_road_is_that_of_gymnasium_wherever_the_car_is(seed: int) -> None:
    """On the road, beside it, at each border of the field and beyond it, turned and zoomed in any way."""
    car_racing = env()._env
    car_racing.reset(seed=seed)
    rng = np.random.default_rng(seed)
    border = [(sign * 333.0, other) for sign in (-1, 1) for other in (-333.0, 0.0, 333.0)]
    places = [*border, *(place[::-1] for place in border), (400.0, 10.0), (0.0, 0.0), *rng.uniform(-330, 330, (8, 2))]
    on_road = [corners[0] for corners, _ in car_racing.road_poly[:: len(car_racing.road_poly) // 12]]
    for number, place in enumerate([*places, *on_road]):
        car_racing.t = (0.0, 0.4, 5.0)[number % 3]
        car_racing.car.hull.position = tuple(map(float, place))
        car_racing.car.hull.angle = rng.uniform(-np.pi, np.pi)
        car_racing.step(np.array([0.0, 1.0, 0.0]))
        quick = car_racing.draw_road()
        assert np.array_equal(quick, super(type(car_racing), car_racing)._render("state_pixels")[:84]), place


def test_the_whole_screen_on_request() -> None:
    one, bare = env(size=96, has_dashboard=True), gymnasium.make("CarRacing-v3")
    assert np.array_equal(one.reset(2).obs["image"], bare.reset(seed=2)[0])
    assert one.spaces.obs == {"image": Space(shape=(96, 96, 3), dtype="uint8")}
    bare.close()


def test_the_buttons_of_the_discrete_car() -> None:
    one = env("carracing_discrete")
    assert one.spaces.action == Space(shape=(), dtype="int64", classes=5)
    one.reset(0)
    for _ in range(10):
        one.step(np.array(3))
    assert one._env.car.hull.linearVelocity.length > 1.0
    with pytest.raises(ValueError, match="outside 0 to 4"):
        one.step(np.array(5))


def test_an_open_drive_is_replayed_in_another_object_without_drawing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = env(), env()
    assert one.resume == "replay"
    one.reset(0)
    one.step(controls(1)[0])
    one.reset(3)  # not the first drive of this object
    seen = [one.step(action) for action in controls(15)]
    drawn = []
    draw = type(other._env).draw_road
    monkeypatch.setattr(type(other._env), "draw_road", lambda self: drawn.append(self) or draw(self))
    assert bits([other.replay(3, controls(15))]) == bits(seen[-1:])
    assert len(drawn) == 1
    after = controls(5, seed=1)
    assert bits([one.step(action) for action in after]) == bits([other.step(action) for action in after])
    assert bits([other.replay(3, controls(0))]) == bits([one.reset(3)])


def test_another_seed_is_another_track() -> None:
    one = env()
    assert bits([one.reset(0)]) != bits([one.reset(1)])


def test_a_drive_is_the_same_in_another_process() -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout.split()[-1] == digest()


def test_the_time_limit_counts_frames_and_is_not_terminal() -> None:
    one = env(action_repeat=4, episode_frames=10)
    assert one.episode_steps == 3
    one.reset(0)
    seen = [one.step(action) for action in controls(3)]
    assert [step.is_last for step in seen] == [False, False, True]
    assert not any(step.is_terminal for step in seen)
    assert seen[-1].scores == {"lap_finished": 0.0}
    assert seen[0].scores == {}


def test_leaving_the_field_and_finishing_a_lap_are_terminal() -> None:
    one = env()
    one.reset(0)
    one._env.car.hull.position = (1e4, 0.0)
    away = one.step(controls(1)[0])
    assert away.is_last
    assert away.is_terminal
    assert (away.reward, away.scores) == (-100.0, {"lap_finished": 0.0})
    one.reset(0)
    one._env.new_lap = True
    home = one.step(controls(1)[0])
    assert home.is_terminal
    assert home.scores == {"lap_finished": 1.0}


def test_tasks_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [task_info(task).action for task in task_names()] == ["float32 3", "1 of 5"]
    with pytest.raises(ReverieError, match="did you mean carracing_discrete"):
        env("carracing_discret")
    with pytest.raises(ReverieError, match="size` must be at least 8"):
        env(size=0)
    with pytest.raises(ReverieError, match="action_repeat` must be at least 1"):
        env(action_repeat=0)
    with pytest.raises(ReverieError, match="episode_frames` must be at least 1"):
        env(episode_frames=0)
    with pytest.raises(ValueError, match="not finite"):
        env().step(np.full(3, np.nan, np.float32))
    monkeypatch.setitem(sys.modules, "Box2D", None)
    problem = task_info("carracing_continuous").problem
    assert problem is not None
    assert "pip install 'reverie[carracing]'" in problem


def test_closing_one_twice_does_not_disturb_another() -> None:
    one, other = env(), env()
    one.reset(0)
    first = other.reset(0)
    one.close()
    one.close()
    assert np.array_equal(other.reset(0).obs["image"], first.obs["image"])
    other.close()
