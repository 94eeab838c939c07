"""The suite gym: what becomes of Gymnasium's spaces, flags and mistakes, in its own tasks and in ours."""

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
from torch import Generator

from reverie.components.controllers.random_policy import random_action
from reverie.environments.gym import GymEnvironment, example_task, task_info, task_names
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, ReverieError, Space, Timestep

STEPS = 200
NUM_ENVS = 2

SMALL = (
    *("gym_CartPole-v1", "gym_MountainCar-v0", "gym_MountainCarContinuous-v0", "gym_Pendulum-v1", "gym_Acrobot-v1"),
    *("gym_Blackjack-v1", "gym_FrozenLake-v1", "gym_CliffWalking-v1", "gym_Taxi-v4"),
    *("gym:own_world:Own-v0", "gym:own_world:Many-v0", "gym:own_world:Bits-v0", "gym:own_world:Nested-v0"),
)
"""Tasks that run with the core alone, and some of our own."""

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



class Bits(Shifted):
    action_space = spaces.MultiBinary(3)
    observation_space = spaces.MultiBinary((2, 2))

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 2), np.int8), {}

    def step(self, action):
        self.action = action
        return np.eye(2, dtype=np.int8), 0.0, False, False, {}


class Many(Shifted):
    """Repeats its action, whose elements begin elsewhere than at 0."""

    action_space = spaces.MultiDiscrete([2, 3], start=[5, -1])
    observation_space = spaces.MultiDiscrete([2, 3], start=[5, -1])

    def reset(self, *, seed=None, options=None):
        return np.array([5, -1]), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action, 0.0, False, False, {}


class Nested(Shifted):
    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)}),
            "eyes": spaces.Tuple((spaces.Box(0, 255, (4, 5), np.uint8), spaces.Box(0, 255, (4, 5, 3), np.uint8))),
        }
    )

    def reset(self, *, seed=None, options=None):
        return self.view(), {}

    def step(self, action):
        return self.view(), 0.0, action == 1, False, {}

    def view(self):
        arm = {"angle": np.ones(2, np.float32), "grip": 1}
        return {"arm": arm, "eyes": (np.full((4, 5), 7, np.uint8), np.full((4, 5, 3), 9, np.uint8))}


class Twice(Shifted):
    observation_space = spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})})


class Mapped(Shifted):
    action_space = spaces.Dict({"arm": spaces.Discrete(2)})


class Worded(Shifted):
    observation_space = spaces.Text(5)


class Whole(Shifted):
    action_space = spaces.Box(0, 5, (2,), np.int64)


class Picture(Shifted):
    """An image whose layout is an option of the constructor."""

    def __init__(self, shape=(10, 12, 3), dtype="uint8", high=255.0):
        self.observation_space = spaces.Box(0, high, tuple(shape), np.dtype(dtype))
        self.pixels = np.linspace(0, high, int(np.prod(shape))).astype(dtype).reshape(shape)

    def reset(self, *, seed=None, options=None):
        return self.pixels, {}

    def step(self, action):
        return self.pixels * 2.0, 0.0, False, False, {}


class Outside(Shifted):
    def step(self, action):
        return 9, 0.0, False, False, {}


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
                    ("Many", 50), ("Bits", 50), ("Nested", 50), ("Twice", 9), ("Mapped", 9), ("Worded", 9),
                    ("Whole", 9), ("Picture", 50), ("Outside", 9), ("Needy", 9), ("Angry", 9), ("Hidden", 9),
                    ("Sticky", 9)):
    version = 1 if limit == 9 else 0
    gymnasium.register(f"{name}-v{version}", entry_point=f"own_world:{name}", max_episode_steps=limit)
gymnasium.register("Confessed-v0", entry_point="own_world:Own", max_episode_steps=50, nondeterministic=True)
'''


@pytest.fixture(scope="module", autouse=True)
def own_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("world")
    (folder / "own_world.py").write_text(OWN_WORLD)
    (folder / "torn_world.py").write_text("1 / 0")
    (folder / "mute_world.py").write_text("")
    registered = dict(gymnasium.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("own_world", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)


def vector(task: str, seed: int = 0, num_envs: int = NUM_ENVS, *, in_workers: bool = False) -> VectorEnvironment:
    make = Maker(module="reverie.environments.gym", name="GymEnvironment", arguments={"task": task})
    return SeparateEnvironments(make, num_envs=num_envs, seed=seed, in_workers=in_workers)


def walk(envs: VectorEnvironment, steps: int, seed: int) -> list[Observation]:
    rng = Generator().manual_seed(seed)
    action = envs.spaces.action
    return [envs.observe()] + [envs.step(random_action(action, envs.num_envs, rng)) for _ in range(steps)]


def bits(seen: list[Observation]) -> list[bytes]:
    tensors = [t for one in seen for t in (*one.obs.values(), one.reward, one.is_first, one.is_last, one.is_terminal)]
    return [t.numpy().tobytes() for t in tensors]


def own(name: str, **arguments: object) -> GymEnvironment:
    return GymEnvironment(**{"task": f"gym:own_world:{name}", **arguments})


def begin_and_step(env: GymEnvironment) -> Timestep:
    env.reset(0)
    space = env.spaces.action
    return env.step(np.zeros(space.shape, space.dtype))


def test_the_list_holds_each_task_once_in_its_latest_version() -> None:
    importlib.import_module("own_world")
    names = task_names()
    assert "gym_Own-v0" not in names  # what others register does not change the list
    assert {name for name in SMALL if ":" not in name} <= set(names)
    assert "gym_CartPole-v0" not in names
    assert len(names) == len(set(names))
    assert example_task() in names


@pytest.mark.parametrize("task", SMALL)
def test_rows_flags_and_spaces(task: str) -> None:
    envs = vector(task)
    seen = walk(envs, STEPS, seed=1)
    for now, after in pairwise(seen):
        assert torch.equal(after.is_first, now.is_last)  # an episode begins exactly after a last observation
    for one in seen:
        assert not (one.is_terminal & ~one.is_last).any()
        assert not one.reward[one.is_first].any()
        for key, space in envs.spaces.obs.items():
            assert one.obs[key].shape == (NUM_ENVS, *space.shape)
            assert str(one.obs[key].dtype) == f"torch.{space.dtype}"
            if space.classes is not None:
                assert ((one.obs[key] >= 0) & (one.obs[key] < torch.tensor(space.classes))).all()
    assert seen[0].is_first.all()
    envs.close()


def test_observations_and_rewards_are_those_of_the_bare_library() -> None:
    env, bare = GymEnvironment(task="gym_Pendulum-v1"), gymnasium.make("Pendulum-v1")
    assert np.array_equal(env.reset(7).obs["vector"], bare.reset(seed=7)[0])
    for value in (-1.0, -0.25, 0.5, 1.0):
        ours = env.step(np.array([value], np.float32))
        obs, reward, *_ = bare.step(np.array([2.0 * value], np.float32))
        assert np.array_equal(ours.obs["vector"], obs)
        assert ours.reward == float(reward)


@pytest.mark.parametrize("task", SMALL)
def test_the_seed_decides_everything(task: str) -> None:
    first, second = (walk(vector(task), STEPS, seed=1) for _ in range(2))
    assert bits(first) == bits(second)


def test_another_seed_gives_another_walk_and_so_does_another_index() -> None:
    first, second = (walk(vector("gym_CartPole-v1", seed), 5, seed=1) for seed in (0, 1))
    assert bits(first) != bits(second)
    assert not torch.equal(first[0].obs["vector"][0], first[0].obs["vector"][1])


@pytest.mark.parametrize("task", SMALL)
def test_a_saved_walk_goes_on_bit_for_bit(task: str) -> None:
    envs, other = vector(task), vector(task)
    walk(envs, 37, seed=2)
    other.set_state(envs.get_state())
    assert other.inexact is None
    assert bits(walk(envs, 60, seed=3)) == bits(walk(other, 60, seed=3))


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


def test_an_own_package_gives_the_same_walk_in_worker_processes() -> None:
    here, there = vector("gym:own_world:Own-v0"), vector("gym:own_world:Own-v0", in_workers=True)
    try:
        assert bits(walk(here, 60, seed=4)) == bits(walk(there, 60, seed=4))
    finally:
        there.close()


def test_a_package_in_the_working_directory_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("here")
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    (folder / "near_world.py").write_text(f"import gymnasium\ngymnasium.register('Near-v0', entry_point='{entry}')\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(folder)
    assert GymEnvironment(task="gym:near_world:Near-v0").reset(0).is_first
    sys.modules.pop("near_world")


def test_an_own_environment_with_a_dict_and_a_box() -> None:
    env = own("Own-v0")
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
        native.append(vars(env.native.unwrapped)["action"].tolist())
    assert native == [[0.0, -4.0], [0.5, -1.0], [1.0, 2.0], [1.0, 2.0]]
    assert not kept.any()  # the simulator writes into its own array, not into ours
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.array([0.0, np.nan], np.float32))


def test_vectors_of_classes_count_from_zero_in_both_directions() -> None:
    env = own("Many-v0")
    space = Space(shape=(2,), dtype="int64", classes=(2, 3))
    assert env.spaces.obs == {"discrete": space}
    assert env.spaces.action == space
    assert env.reset(0).obs["discrete"].tolist() == [0, 0]
    for action in ([0, 0], [1, 2], [0, 1]):
        assert env.step(np.array(action)).obs["discrete"].tolist() == action
    with pytest.raises(ValueError, match=r"outside its classes \[2, 3\]"):
        env.step(np.array([2, 0]))


def test_bits_are_vectors_of_two_classes() -> None:
    env = own("Bits-v0")
    assert env.spaces.action == Space(shape=(3,), dtype="int64", classes=(2, 2, 2))
    assert env.spaces.obs == {"discrete": Space(shape=(4,), dtype="int64", classes=(2, 2, 2, 2))}
    env.reset(0)
    assert env.step(np.array([1, 0, 1])).obs["discrete"].tolist() == [1, 0, 0, 1]
    action = vars(env.native.unwrapped)["action"]
    assert env.native.action_space.contains(action)
    assert action.tolist() == [1, 0, 1]


def test_nested_entries_are_flattened_by_name_and_number() -> None:
    env = own("Nested-v0")
    assert env.spaces.obs == {
        "arm/angle": Space(shape=(2,), dtype="float32"),
        "arm/grip": Space(shape=(), dtype="int64", classes=2),
        "eyes/0": Space(shape=(4, 5, 1), dtype="uint8"),
        "eyes/1": Space(shape=(4, 5, 3), dtype="uint8"),
    }
    obs = env.reset(0).obs
    assert obs["arm/angle"].tolist() == [1.0, 1.0]
    assert int(obs["arm/grip"]) == 1
    assert (obs["eyes/0"] == 7).all()
    assert (obs["eyes/1"] == 9).all()


@pytest.mark.parametrize(
    ("options", "shape", "axes"),
    [
        ({"shape": [10, 12, 3]}, (10, 12, 3), (0, 1, 2)),
        ({"shape": [10, 12]}, (10, 12, 1), (0, 1)),
        ({"shape": [3, 10, 12]}, (10, 12, 3), (1, 2, 0)),
        ({"shape": [4, 10, 12, 3]}, (10, 12, 12), (1, 2, 0, 3)),
        ({"shape": [3, 10, 12], "dtype": "float32", "high": 1.0}, (10, 12, 3), (1, 2, 0)),
        ({"shape": [10, 12, 1], "dtype": "float64", "high": 255.0}, (10, 12, 1), (0, 1, 2)),
    ],
)
def test_images_become_bytes_with_channels_last(
    options: dict[str, object], shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    env = own("Picture-v0", options=options)
    assert env.spaces.obs == {"image": Space(shape=shape, dtype="uint8")}
    pixels = vars(env.native.unwrapped)["pixels"]
    expected = np.rint(pixels.astype(np.float32) * np.float32(255 / pixels.max())).transpose(axes).reshape(shape)
    image = env.reset(0).obs["image"]
    assert np.array_equal(image, expected)
    assert image.max() == 255
    assert image.flags.c_contiguous
    pixels[...] = 0
    assert image.max() == 255  # a copy


@pytest.mark.parametrize(
    "options",
    [
        {"shape": [10, 12], "dtype": "float32", "high": 1.0},  # a matrix
        {"shape": [3, 10, 12], "dtype": "float32", "high": 2.0},  # no range of a picture
        {"shape": [3, 3, 3], "dtype": "float32", "high": 1.0},  # too small
        {"shape": [10, 12, 5], "dtype": "float32", "high": 1.0},  # no number of channels
        {"shape": [7], "dtype": "uint8"},
    ],
)
def test_other_boxes_are_flat_vectors(options: dict[str, list[int]]) -> None:
    env = own("Picture-v0", options=options)
    assert env.spaces.obs == {"vector": Space(shape=(int(np.prod(options["shape"])),), dtype="float32")}
    assert np.array_equal(env.reset(0).obs["vector"], vars(env.native.unwrapped)["pixels"].flatten())


def test_a_time_limit_is_last_but_not_terminal() -> None:
    seen = walk(vector("gym:own_world:Own-v0"), 120, seed=0)
    assert [index for index, one in enumerate(seen) if one.is_last.all()] == [50, 101]
    assert not any(one.is_terminal.any() for one in seen)


def test_a_true_end_is_last_and_terminal_and_discrete_values_count_from_zero() -> None:
    env = own("Shifted-v0")
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
    walk(envs, 5, seed=0)
    other.set_state(envs.get_state())
    assert other.inexact is not None
    assert "gym:own_world:Moody-v0 did not repeat" in other.inexact
    assert other.observe().is_last.all()
    assert other.step(torch.zeros(NUM_ENVS, dtype=torch.int64)).is_first.all()


def test_an_environment_registered_as_nondeterministic_is_not_replayed() -> None:
    assert own("Confessed-v0").resume == "restart"
    assert own("Own-v0").resume == "replay"
    assert own("Own-v0", resume="restart").resume == "restart"


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
        ("gym_qqqqzzzz", "`tasks gym` lists"),
        ("CartPole-v1", "is no task of the suite gym"),
        ("gym:no_such_world:X-v0", "needs the package no_such_world"),
        ("gym:own_world:Onw-v0", "did you mean gym:own_world:Own-v0"),
        ("gym:own_world:Zzzzzzzz-v7", "own_world registers Own-v0, Shifted-v0"),
        ("gym:mute_world:X-v0", r"importing mute_world registers no environment; call gymnasium.register\("),
        ("gym:own_world:Needy-v1", 'pip install "package_that_nobody_has"'),
        ("gym:own_world:Worded-v1", r"observation space that is not supported \(Text"),
        ("gym:own_world:Twice-v1", "two observations that are both called 'a/b'"),
        ("gym:own_world:Mapped-v1", r"action space that is not supported \(Dict"),
        ("gym:own_world:Whole-v1", r"action space that is not supported \(Box"),
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


def test_a_task_that_breaks_is_described_with_its_problem() -> None:
    importlib.import_module("own_world")
    assert task_info("gym_Angry-v1").problem == "could not be made (OSError: no such display line two)"
    assert task_info("gym_Sticky-v1").problem == "RuntimeError: the door is stuck"
    assert task_info("gym_Needy-v1").problem == 'pip install "package_that_nobody_has"'
    assert (task_info("gym:nowhere:X-v0").problem or "").startswith("needs the package nowhere")
    assert (task_info("gym_Worded-v1").problem or "").startswith("has an observation space that is not supported (Text")


def test_a_task_that_runs_is_described_with_its_spaces() -> None:
    info = task_info("gym:own_world:Own-v0")
    assert info.problem is None
    assert info.episode_steps == 50
    assert info.action == "float32 2"
    assert info.observation == "camera: uint8 4x6x3, level: float32 1, place: float32 4, room: 1 of 3"
    assert task_info("gym:own_world:Many-v0").action == "2 times 1 of 2 to 3"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("BareReset-v1", r"reset\(\) must return \(observation, info\)"),
        ("OldStep-v0", r"step\(\) must return \(observation, reward, terminated"),
        ("OldStep-v1", r"step\(\) must return \(observation, reward, terminated"),
        ("WrongShape-v1", r"at 'place' does not .* shape \(3,\) instead of \(2, 2\)"),
        ("MissingKey-v1", "must have the entry 'camera'"),
        ("Outside-v1", "its observation 9 is not in its own space"),
        ("Picture-v0", "its image has dtype float64 instead of uint8"),
    ],
)
def test_a_broken_environment_ends_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        begin_and_step(own(name))


def test_a_float_image_outside_its_bounds_is_refused() -> None:
    env = own("Picture-v0", options={"shape": [3, 10, 12], "dtype": "float32", "high": 1.0})
    with pytest.raises(ReverieError, match="values outside the bounds of its space"):
        begin_and_step(env)  # its step doubles the values


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
    env = own("Own-v0")
    begin_and_step(env)
    env.close()
    env.close()
    assert vars(env.native.unwrapped)["is_closed"]
    gc.collect()
    assert threading.active_count() == threads


def test_making_a_task_prints_nothing_and_warns_of_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = GymEnvironment(task="gym_CartPole-v0")  # Gymnasium itself would say here that it is out of date
        begin_and_step(env)
        env.close()
    assert not caught
    assert tuple(capfd.readouterr()) == ("", "")
    assert env.native.render_mode is None
