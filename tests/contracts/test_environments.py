"""What every environment promises, asked of each small task that runs here and of environments of our own."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import warnings
from collections.abc import Iterator
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.environments.gym import GymEnvironment, tasks
from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, ReverieError, Space

STEPS = 300
NUM_ENVS = 2

# Written to a file, because `gym:own_world:...` is about a package that is imported by its name.
OWN_WORLD = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Own(gymnasium.Env):
    """Dict observations and a Box action with a lopsided range; the time limit alone ends it."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1000, 1000, (2, 2), np.float64),
            "level": spaces.Box(0, 1, (), np.float32),
            "room": spaces.Discrete(3, start=5),
            "camera": spaces.Box(0, 255, (4, 6, 3), np.uint8),
        }
    )
    action_space = spaces.Box(np.array([0.0, -4.0], np.float32), np.array([1.0, 2.0], np.float32))
    is_closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros((2, 2))
        return self.view(), {}

    def step(self, action):
        self.action = action
        self.place += self.np_random.normal(size=(2, 2)) + action
        return self.view(), float(self.place.sum()), False, False, {}

    def view(self):
        room = 5 + int(self.np_random.integers(3))
        camera = self.np_random.integers(0, 256, (4, 6, 3)).astype(np.uint8)
        return {"place": self.place, "level": np.float32(0.5), "room": room, "camera": camera}

    def close(self):
        self.is_closed = True


class Shifted(gymnasium.Env):
    """Discrete spaces that do not begin at 0: the observation repeats the action."""

    observation_space = spaces.Discrete(4, start=-2)
    action_space = spaces.Discrete(4, start=-2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return -2, {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action, 1.0, action == 1, False, {}


class Moody(Shifted):
    """Draws from the global generator, which no seed of ours reaches."""

    observation_space = spaces.Box(0, 1, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.random.random(1), {}

    def step(self, action):
        return np.random.random(1), 0.0, False, False, {}


class OldStep(Shifted):
    def step(self, action):
        return action, 1.0, False, {}


class OldReset(Shifted):
    def reset(self):
        return -2


class BareReset(Shifted):
    def reset(self, *, seed=None, options=None):
        return -2


class WrongShape(Own):
    def view(self):
        return {**super().view(), "place": np.zeros(3)}


class MissingKey(Own):
    def view(self):
        return {"place": self.place}


class Nameless(gymnasium.Env):
    pass


class Endless(Shifted):
    action_space = spaces.Box(-np.inf, np.inf, (2,))


class Many(Shifted):
    action_space = spaces.MultiDiscrete([2, 3])


class Needy(Shifted):
    def __init__(self):
        import package_that_nobody_has.part


class Angry(Shifted):
    def __init__(self):
        raise OSError("no such display\\nline two.")


class Hidden(Shifted):
    @property
    def observation_space(self):
        raise KeyError("sensors")


class Sticky(Shifted):
    def close(self):
        raise RuntimeError("the door is stuck")


for name, limit in (("Own", 50), ("Shifted", None), ("Moody", 50), ("OldStep", None), ("OldStep", 9), ("OldReset", 9),
                    ("BareReset", 9), ("WrongShape", 9), ("MissingKey", 9), ("Nameless", 9), ("Endless", 9),
                    ("Many", 9), ("Needy", 9), ("Angry", 9), ("Hidden", 9), ("Sticky", 9)):
    version = 1 if limit == 9 else 0
    gymnasium.register(f"{name}-v{version}", entry_point=f"own_world:{name}", max_episode_steps=limit)
gymnasium.register("Confessed-v0", entry_point="own_world:Own", max_episode_steps=50, nondeterministic=True)
'''


@pytest.fixture(scope="module", autouse=True)
def own_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "own_world.py").write_text(OWN_WORLD)
    (folder / "torn_world.py").write_text("1 / 0")
    registered = dict(gymnasium.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("own_world", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)


def small_tasks() -> list[str]:
    """Every registered task that runs with the core installed, and one of our own."""
    return [info.name for info in tasks() if info.problem is None] + ["gym:own_world:Own-v0"]


def vector(task: str, seed: int = 0, num_envs: int = NUM_ENVS) -> VectorEnvironment:
    return VectorEnvironment(lambda: GymEnvironment(task=task), num_envs=num_envs, seed=seed)


def random_action(space: Space, rng: np.random.Generator, num_envs: int = NUM_ENVS) -> Tensor:
    if space.classes is not None:
        return torch.from_numpy(rng.integers(0, space.classes, num_envs))
    # Wider than [-1, 1], so that clipping is part of the walk.
    return torch.from_numpy(rng.uniform(-1.5, 1.5, (num_envs, *space.shape)).astype(np.float32))


def walk(envs: VectorEnvironment, steps: int, rng: np.random.Generator) -> list[Observation]:
    return [envs.observe()] + [envs.step(random_action(envs.spaces.action, rng)) for _ in range(steps)]


def bits(seen: list[Observation]) -> list[bytes]:
    tensors = [t for one in seen for t in (*one.obs.values(), one.reward, one.is_first, one.is_last, one.is_terminal)]
    return [t.numpy().tobytes() for t in tensors]


def test_the_small_tasks_are_those_we_mean_to_walk() -> None:
    names = small_tasks()
    assert {"gym_CartPole-v1", "gym_Pendulum-v1", "gym_Acrobot-v1", "gym_FrozenLake-v1", "gym_Taxi-v4"} <= set(names)
    assert "gym_CartPole-v0" not in names  # only the latest version
    assert len(names) == len(set(names))


@pytest.mark.parametrize("task", small_tasks())
def test_rows_flags_and_spaces(task: str) -> None:
    envs = vector(task)
    seen = walk(envs, STEPS, np.random.default_rng(1))
    for now, after in pairwise(seen):
        assert torch.equal(after.is_first, now.is_last)  # an episode begins exactly after a last observation
    for one in seen:
        assert not (one.is_terminal & ~one.is_last).any()
        assert not (one.is_first & one.is_last).any()
        assert not one.reward[one.is_first].any()
        assert one.obs.keys() == envs.spaces.obs.keys()
        for key, space in envs.spaces.obs.items():
            assert_in_space(one.obs[key], space, native_space(envs, key))
    assert seen[0].is_first.all()
    envs.close()


def native_space(envs: VectorEnvironment, key: str) -> object:
    simulator = envs._slots[0].environment
    assert isinstance(simulator, GymEnvironment)
    native = simulator._env.observation_space
    return native[key] if isinstance(native, gymnasium.spaces.Dict) else native


def assert_in_space(value: Tensor, space: Space, native: object) -> None:
    assert value.shape == (NUM_ENVS, *space.shape)
    assert str(value.dtype) == f"torch.{space.dtype}"
    if space.classes is not None:
        assert 0 <= int(value.min()) <= int(value.max()) < space.classes
        return
    assert torch.isfinite(value.double()).all()
    # A hair of room: bounds and values are rounded to float32 separately.
    assert isinstance(native, gymnasium.spaces.Box)
    values = value.double().numpy().reshape(NUM_ENVS, *native.shape)
    assert (values >= native.low - 1e-4).all()
    assert (values <= native.high + 1e-4).all()


@pytest.mark.parametrize("task", small_tasks())
def test_the_seed_decides_everything(task: str) -> None:
    first, second = (walk(vector(task), STEPS, np.random.default_rng(1)) for _ in range(2))
    assert bits(first) == bits(second)


def test_another_seed_gives_another_walk_and_so_does_another_index() -> None:
    first, second = (walk(vector("gym_CartPole-v1", seed), 5, np.random.default_rng(1)) for seed in (0, 1))
    assert bits(first) != bits(second)
    assert not torch.equal(first[0].obs["vector"][0], first[0].obs["vector"][1])


@pytest.mark.parametrize("task", small_tasks())
def test_a_saved_walk_goes_on_bit_for_bit(task: str) -> None:
    envs, other = vector(task), vector(task)
    rng = np.random.default_rng(2)
    walk(envs, 37, rng)
    while envs.observe().is_last.any() or envs.observe().is_first.any():
        envs.step(random_action(envs.spaces.action, rng))  # so that every environment is inside an episode
    other.set_state(envs.get_state())
    assert other.inexact is None
    assert bits(walk(envs, 60, np.random.default_rng(3))) == bits(walk(other, 60, np.random.default_rng(3)))


@pytest.mark.parametrize("task", ["gym_CartPole-v1", "gym_Pendulum-v1", "gym_CliffWalking-v1", "gym:own_world:Own-v0"])
def test_without_the_actions_the_walk_is_another(task: str) -> None:
    """The negative control of the test above: the comparison is able to notice."""
    envs, other = vector(task, num_envs=1), vector(task, num_envs=1)
    envs.observe()
    for _ in range(3):
        envs.step(torch.zeros((1, *envs.spaces.action.shape), dtype=getattr(torch, envs.spaces.action.dtype)))
    state = envs.get_state()
    state["envs"]["0"]["actions"] = state["envs"]["0"]["actions"][:0]
    other.set_state(state)
    assert other.inexact is not None
    assert "not exact" in other.inexact


def test_an_own_environment_with_a_dict_and_a_box() -> None:
    env = GymEnvironment(task="gym:own_world:Own-v0")
    assert env.spaces.obs == {
        "place": Space(shape=(4,), dtype="float32"),
        "level": Space(shape=(1,), dtype="float32"),
        "room": Space(shape=(), dtype="int64", classes=3),
        "camera": Space(shape=(4, 6, 3), dtype="uint8"),
    }
    assert env.spaces.action == Space(shape=(2,), dtype="float32")
    kept = env.reset(0).obs["place"]
    native = []
    for value in (-1.0, 0.0, 1.0, 7.0):
        env.step(np.full(2, value, np.float32))
        native.append(vars(env._env.unwrapped)["action"].tolist())
    assert native == [[0.0, -4.0], [0.5, -1.0], [1.0, 2.0], [1.0, 2.0]]
    assert not kept.any()  # the simulator writes into its own array, not into ours
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.array([0.0, np.nan], np.float32))


def test_a_time_limit_is_last_but_not_terminal() -> None:
    seen = walk(vector("gym:own_world:Own-v0"), 120, np.random.default_rng(0))
    assert [index for index, one in enumerate(seen) if one.is_last.all()] == [50, 101]
    assert not any(one.is_terminal.any() for one in seen)


def test_a_true_end_is_last_and_terminal_and_discrete_values_count_from_zero() -> None:
    env = GymEnvironment(task="gym:own_world:Shifted-v0")
    assert env.spaces.obs == {"discrete": Space(shape=(), dtype="int64", classes=4)}
    assert env.reset(0).obs["discrete"] == 0
    steps = [env.step(np.array(index)) for index in range(4)]
    assert [int(one.obs["discrete"]) for one in steps] == [0, 1, 2, 3]
    assert [one.is_terminal for one in steps] == [one.is_last for one in steps] == [False, False, False, True]
    with pytest.raises(ValueError, match="outside 0 to 3"):
        env.step(np.array(4))


def test_action_repeat_adds_rewards_and_stops_at_the_end() -> None:
    env = GymEnvironment(task="gym_CartPole-v1", action_repeat=4)
    assert env.frames_per_step == 4
    env.reset(0)
    steps = [env.step(np.array(1))]
    while not steps[-1].is_last:
        steps.append(env.step(np.array(1)))
    single = GymEnvironment(task="gym_CartPole-v1")
    single.reset(0)
    frames = 1
    while not single.step(np.array(1)).is_last:
        frames += 1
    assert sum(one.reward for one in steps) == frames
    assert steps[0].reward == 4.0
    assert len(steps) == -(-frames // 4)


def test_a_simulator_that_no_seed_reaches_restarts_and_says_so() -> None:
    envs, other = vector("gym:own_world:Moody-v0"), vector("gym:own_world:Moody-v0")
    walk(envs, 5, np.random.default_rng(0))
    other.set_state(envs.get_state())
    assert other.inexact is not None
    assert "gym:own_world:Moody-v0 did not repeat" in other.inexact
    assert other.observe().is_last.all()
    assert other.step(torch.zeros(NUM_ENVS, dtype=torch.int64)).is_first.all()


def test_an_environment_registered_as_nondeterministic_is_not_replayed() -> None:
    assert GymEnvironment(task="gym:own_world:Confessed-v0").resume == "restart"
    assert GymEnvironment(task="gym:own_world:Own-v0").resume == "replay"
    assert GymEnvironment(task="gym:own_world:Own-v0", resume="restart").resume == "restart"


def test_options_reach_the_environment() -> None:
    env = GymEnvironment(task="gym_FrozenLake-v1", options={"map_name": "8x8"})
    assert env.spaces.obs["discrete"].classes == 64


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("gym_CartPol-v1", "did you mean gym_CartPole-v1"),
        ("gym_cartpole-v1", "did you mean gym_CartPole-v1"),
        ("gym_CartPole-v9", "did you mean gym_CartPole-v"),
        ("gym_LunarLander-v2", "did you mean gym_LunarLander-v3"),
        ("gym_qqqqzzzz", "`reverie tasks` lists"),
        ("CartPole-v1", "is no task of the suite gym"),
        ("gym:no_such_world:X-v0", "needs the package no_such_world"),
        ("gym:own_world:Onw-v0", "did you mean gym:own_world:Own-v0"),
        ("gym:own_world:Needy-v1", 'pip install "package_that_nobody_has"'),
        ("gym_Blackjack-v1", r"observation space that is not supported \(Tuple"),
        ("gym:own_world:Many-v1", r"action space that is not supported \(MultiDiscrete"),
        ("gym:own_world:Endless-v1", "without finite bounds"),
        ("gym:own_world:Nameless-v1", r"observation space that is not supported \(None"),
        ("gym:own_world:OldReset-v1", r"reset\(\) must accept seed="),
        ("gym:own_world:Angry-v1", r"could not be made \(OSError: no such display line two\): mend"),
        ("gym:own_world:Hidden-v1", r"could not be made \(KeyError: 'sensors'\): mend"),
        ("gym:torn_world:X-v0", r"needs the package torn_world, which fails on import \(ZeroDivisionError: "),
    ],
)
def test_a_task_that_cannot_be_made_ends_in_one_sentence(task: str, sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence) as caught:
        GymEnvironment(task=task)
    assert task in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_dependency_names_the_extra() -> None:
    problems = {info.name: info.problem for info in tasks() if info.problem is not None}
    box2d = problems.get("gym_LunarLander-v3")
    if box2d is None:  # the extra is installed here, so the environment itself must run
        assert GymEnvironment(task="gym_LunarLander-v3").reset(0).is_first
    else:
        assert box2d == 'pip install "gymnasium[box2d]"'


def test_a_registered_task_that_breaks_stays_in_the_list_with_its_problem() -> None:
    importlib.import_module("own_world")
    problems = {info.name: info.problem for info in tasks()}
    assert problems["gym_Angry-v1"] == "could not be made (OSError: no such display line two)"
    assert problems["gym_Sticky-v1"] == "RuntimeError: the door is stuck"
    assert problems["gym_Needy-v1"] == 'pip install "package_that_nobody_has"'
    assert (problems["gym_Blackjack-v1"] or "").startswith("has an observation space that is not supported (Tuple")
    assert problems["gym_Shifted-v0"] is problems["gym_CartPole-v1"] is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("BareReset-v1", r"reset\(\) must return \(observation, info\)"),
        ("OldStep-v0", r"step\(\) must return \(observation, reward, terminated"),
        ("OldStep-v1", r"step\(\) must return \(observation, reward, terminated"),
        ("WrongShape-v1", r"at 'place' does not .* shape \(3,\) instead of \(2, 2\)"),
        ("MissingKey-v1", "must have the keys camera, level, place, room"),
    ],
)
def test_a_broken_environment_ends_in_one_sentence(name: str, sentence: str) -> None:
    env = GymEnvironment(task=f"gym:own_world:{name}")
    with pytest.raises(ReverieError, match=sentence):
        begin_and_step(env)


def begin_and_step(env: GymEnvironment) -> None:
    env.reset(0)
    env.step(np.array(0))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"resume": "state"}, "cannot resume by 'state'"),
        ({"action_repeat": 0}, "action_repeat is 0"),
        ({"options": {"nope": 1}}, "nope"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        GymEnvironment(**{"task": "gym_CartPole-v1", **arguments})


def test_close_leaves_nothing() -> None:
    threads = threading.active_count()
    envs = vector("gym:own_world:Own-v0")
    walk(envs, 5, np.random.default_rng(0))
    simulators = [slot.environment for slot in envs._slots]
    envs.close()
    envs.close()
    assert all(isinstance(one, GymEnvironment) and vars(one._env.unwrapped).get("is_closed") for one in simulators)
    gc.collect()
    assert threading.active_count() == threads


def test_a_walk_prints_nothing_warns_of_nothing_and_opens_no_window(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks()
        env = GymEnvironment(task="gym_CartPole-v0")  # Gymnasium itself would say here that it is out of date
        begin_and_step(env)
        env.close()
    assert not caught
    assert tuple(capfd.readouterr()) == ("", "")
    assert env._env.render_mode is None
