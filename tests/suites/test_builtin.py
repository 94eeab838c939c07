"""The built-in tasks: their best return is reached from what is seen, and chance alone stays far below it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reverie.environments.builtin import BEST_RETURN, BuiltinEnvironment, task_info, task_names
from reverie.types import ReverieError, Space, Timestep

Policy = Callable[[list[Timestep]], np.ndarray]
"""Chooses from all that was seen in the episode so far, and from nothing else."""

RANDOM_RETURN = {
    "builtin_discrete": 3.0,
    "builtin_continuous": 1.0,
    "builtin_image": 3.0,
    "builtin_memory": -0.3,
    "builtin_explore": 0.0,
    "builtin_survival": 16.0,
}
"""What the mean return of random episodes stays below."""


def corridor(seen: list[Timestep]) -> np.ndarray:
    place, target = seen[-1].obs["vector"].reshape(2, 10).argmax(-1)
    return 1 + np.sign(target - place)


def reach(seen: list[Timestep]) -> np.ndarray:
    offset = seen[-1].obs["vector"][2:] - seen[-1].obs["vector"][:2]
    return offset / max(0.1, float(np.linalg.norm(offset)))


def board(seen: list[Timestep], fields: int = 4) -> np.ndarray:
    image = seen[-1].obs["image"]
    agent = np.argwhere(image[..., 0] == 255).mean(0) // (image.shape[0] // fields)
    green = np.argwhere(image[..., 1] == 160).mean(0) // (image.shape[0] // fields)
    down, right = np.sign(green - agent)
    if down:
        return np.array(1 if down < 0 else 2)
    return np.array({-1.0: 3, 0.0: 0, 1.0: 4}[right])


def recall(seen: list[Timestep]) -> np.ndarray:
    return np.array(seen[0].obs["vector"][:4].argmax())


def doors(seen: list[Timestep]) -> np.ndarray:
    return np.array((0, 1, 1, 0, 1, 0, 0, 1, 1, 0)[seen[-1].obs["vector"][:-1].argmax()])


def storm(seen: list[Timestep]) -> np.ndarray:
    """To the middle of the roof."""
    image = seen[-1].obs["image"]
    roof = np.argwhere((image[24:40] == 0).all(-1))[:, 1].mean() // 8
    covered = np.unique(np.argwhere((image[40:] == 255).all(-1))[:, 1] // 8)
    column = (
        covered.mean() if len(covered) == 3 else {0: 0, 6: 7}[covered[0]]
    )  # at a wall, half of the player is hidden
    return 1 + np.sign(roof - column).astype(np.int64)


BEST: dict[str, Policy] = {
    "builtin_discrete": corridor,
    "builtin_continuous": reach,
    "builtin_image": board,
    "builtin_memory": recall,
    "builtin_explore": doors,
    "builtin_survival": storm,
}


def random_policy(space: Space, seed: int) -> Policy:
    rng = np.random.default_rng(seed)
    if space.classes is None:
        return lambda seen: rng.uniform(-1.2, 1.2, space.shape).astype(np.float32)
    return lambda seen: rng.integers(0, space.dim)


def episode(one: BuiltinEnvironment, seed: int, policy: Policy) -> list[Timestep]:
    seen = [one.reset(seed)]
    while not seen[-1].is_last:
        seen.append(one.step(policy(seen)))
    return seen


def total(seen: list[Timestep]) -> float:
    return sum(one.reward for one in seen)


def bits(seen: list[Timestep]) -> list[Any]:
    return [
        (
            {key: value.tobytes() for key, value in one.obs.items()},
            one.reward,
            one.is_first,
            one.is_last,
            one.is_terminal,
        )
        for one in seen
    ]


def test_every_task_has_a_best_return_and_a_best_policy() -> None:
    assert list(BEST_RETURN) == list(BEST) == list(RANDOM_RETURN) == task_names()


@pytest.mark.parametrize("task", task_names())
def test_the_best_policy_reaches_the_best_return_in_every_episode(task: str) -> None:
    one = BuiltinEnvironment(task=task)
    returns = [total(episode(one, seed, BEST[task])) for seed in range(30)]
    assert np.allclose(returns, BEST_RETURN[task], atol=1e-5)


@pytest.mark.parametrize("task", task_names())
def test_chance_alone_stays_far_below(task: str) -> None:
    one = BuiltinEnvironment(task=task)
    policy = random_policy(one.spaces.action, 0)
    mean = np.mean([total(episode(one, seed, policy)) for seed in range(200)])
    assert mean < RANDOM_RETURN[task]


@pytest.mark.parametrize("task", task_names())
def test_rows_are_as_the_spaces_say(task: str) -> None:
    one = BuiltinEnvironment(task=task)
    policy = random_policy(one.spaces.action, 1)
    seen = [timestep for seed in range(5) for timestep in episode(one, seed, policy)]
    for timestep in seen:
        assert timestep.obs.keys() == one.spaces.obs.keys()
        for key, space in one.spaces.obs.items():
            assert (timestep.obs[key].shape, timestep.obs[key].dtype) == (space.shape, np.dtype(space.dtype))
        assert isinstance(timestep.reward, float)
        assert (timestep.is_last, timestep.is_terminal) != (False, True)
    arrays = [array for timestep in seen for array in timestep.obs.values()]
    assert len({id(array) for array in arrays}) == len(arrays)  # all of them are alive, so none was given twice


@pytest.mark.parametrize("task", task_names())
def test_the_seed_decides_the_episode(task: str) -> None:
    one, other = BuiltinEnvironment(task=task), BuiltinEnvironment(task=task)
    episode(other, 4, random_policy(one.spaces.action, 3))
    seen, again = (episode(each, 9, random_policy(one.spaces.action, 2)) for each in (one, other))
    assert bits(seen) == bits(again)
    if task != "builtin_explore":  # the one task whose episodes all begin alike
        assert len({str(bits([one.reset(seed)])) for seed in range(20)}) > 1


@pytest.mark.parametrize("task", task_names())
def test_an_episode_comes_back_from_its_state(task: str) -> None:
    one, other = BuiltinEnvironment(task=task), BuiltinEnvironment(task=task)
    policy = random_policy(one.spaces.action, 5)
    seen = [one.reset(3)]
    seen.extend(one.step(policy(seen)) for _ in range(4))
    state = one.get_state()
    kept = json.dumps(state, default=np.ndarray.tolist)
    other.reset(8)
    other.set_state(state)
    rest = [one.step(policy(seen))]
    while not rest[-1].is_last:
        rest.append(one.step(policy(seen)))
    repeated = random_policy(one.spaces.action, 5)
    for _ in range(4):
        repeated(seen)
    again = [other.step(repeated(seen)) for _ in rest]
    assert bits(again) == bits(rest)  # to the end, which comes at the same step
    assert json.dumps(state, default=np.ndarray.tolist) == kept  # the state is a copy


def test_time_limits_are_not_terminal_and_true_ends_are() -> None:
    ends = {}
    for task in task_names():
        one = BuiltinEnvironment(task=task)
        seen = episode(one, 0, random_policy(one.spaces.action, 0))
        ends[task] = (len(seen) - 1, seen[-1].is_terminal)
        limits = {"builtin_survival": 100}
        assert task_info(task).episode_steps == limits.get(task, None if seen[-1].is_terminal else 20)
    assert ends == {
        "builtin_discrete": (20, False),
        "builtin_continuous": (20, False),
        "builtin_image": (20, False),
        "builtin_memory": (6, True),
        "builtin_explore": (10, True),
        "builtin_survival": (23, True),
    }


def test_memory_shows_the_cue_once() -> None:
    one = BuiltinEnvironment(task="builtin_memory")
    seen = episode(one, 3, recall)
    vectors = np.array([timestep.obs["vector"] for timestep in seen])
    assert vectors[0].sum() == 1.0
    assert not vectors[1:5].any()
    assert vectors[5].tolist() == [0, 0, 0, 0, 1]
    wrong = episode(one, 3, lambda seen: (recall(seen) + 1) % 4)
    assert total(wrong) == -1.0


def test_continuous_actions_are_clipped_and_the_diagonal_is_no_shortcut() -> None:
    one = BuiltinEnvironment(task="builtin_continuous")
    start = one.reset(0).obs["vector"]
    far = one.step(np.array([5.0, 0.0], np.float32)).obs["vector"]
    assert np.allclose(far - start, [0.1, 0, 0, 0], atol=1e-6)
    diagonal = one.step(np.array([1.0, 1.0], np.float32)).obs["vector"]
    assert np.isclose(np.linalg.norm(diagonal - far), 0.1, atol=1e-6)
    half = one.step(np.array([0.0, -0.5], np.float32)).obs["vector"]
    assert np.allclose(half - diagonal, [0, -0.05, 0, 0], atol=1e-6)
    for _ in range(17):
        edge = one.step(np.array([-1.0, 0.0], np.float32))
    assert edge.obs["vector"][0] == -1.0


def learned_return(task: str, *, start_value: float, episodes: int) -> float:
    """The return of a greedy episode after tabular Q-learning: an agent that explores by hope alone."""
    one, rng = BuiltinEnvironment(task=task), np.random.default_rng(0)
    values: dict[bytes, np.ndarray] = {}

    def value(timestep: Timestep) -> np.ndarray:
        return values.setdefault(timestep.obs["vector"].tobytes(), np.full(one.spaces.action.dim, start_value))

    for seed in range(episodes):
        now = one.reset(seed)
        while not now.is_last:
            here = value(now)
            greedy = int(rng.choice(np.flatnonzero(here == here.max())))
            action = int(rng.integers(one.spaces.action.dim)) if rng.random() < 0.1 else greedy
            now = one.step(np.array(action))
            target = now.reward + (0.0 if now.is_terminal else 0.9 * value(now).max())
            here[action] += 0.5 * (target - here[action])
    return float(np.mean([total(episode(one, seed, lambda seen: value(seen[-1]).argmax())) for seed in range(20)]))


def test_a_small_agent_learns_the_discrete_task() -> None:
    assert learned_return("builtin_discrete", start_value=0.0, episodes=1500) > 0.9 * BEST_RETURN["builtin_discrete"]


def test_the_exploration_task_needs_exploration() -> None:
    best = BEST_RETURN["builtin_explore"]
    assert learned_return("builtin_explore", start_value=1.0, episodes=600) == pytest.approx(best)
    assert learned_return("builtin_explore", start_value=0.0, episodes=600) <= 0.0


def test_an_image_of_another_size() -> None:
    one = BuiltinEnvironment(task="builtin_image", size=32)
    assert one.spaces.obs["image"] == Space(shape=(32, 32, 3), dtype="uint8")
    assert total(episode(one, 0, board)) == BEST_RETURN["builtin_image"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "builtin_images"}, "did you mean builtin_image"),
        ({"task": "builtin_image", "size": 8}, "`size` must be at least 16"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        BuiltinEnvironment(**arguments)


def test_an_action_outside_is_refused() -> None:
    discrete, continuous = (BuiltinEnvironment(task=f"builtin_{name}") for name in ("image", "continuous"))
    discrete.reset(0)
    continuous.reset(0)
    with pytest.raises(ValueError, match="outside 0 to 4"):
        discrete.step(np.array(5))
    with pytest.raises(ValueError, match="not finite"):
        continuous.step(np.array([np.nan, 0.0], np.float32))


@pytest.mark.parametrize("delay", [0, 1, 7])
def test_the_delay_is_the_number_of_blank_observations(delay: int) -> None:
    one = BuiltinEnvironment(task="builtin_memory", delay=delay)
    seen = episode(one, 3, recall)
    shown = [step.obs["vector"].sum() for step in seen]
    assert shown == [1.0, *[0.0] * delay, 1.0, 0.0]
    assert total(seen) == BEST_RETURN["builtin_memory"]


@pytest.mark.parametrize("fields", [2, 3, 4])
def test_a_smaller_board_has_a_nearer_target(fields: int) -> None:
    one = BuiltinEnvironment(task="builtin_image", size=48, fields=fields)

    def walk(seen: list[Timestep]) -> np.ndarray:
        return board(seen, fields=fields)

    for seed in range(20):
        assert total(episode(one, seed, walk)) == BEST_RETURN["builtin_image"] + 4 - fields


def test_more_fields_than_can_be_drawn_are_refused() -> None:
    with pytest.raises(ReverieError, match="`fields` must be from 2 to 4, got 5"):
        BuiltinEnvironment(task="builtin_image", size=16, fields=5)
