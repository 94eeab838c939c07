"""`reverie env check`: a good environment passes, and each broken one gets the sentence that mends it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from reverie.cli import main
from reverie.commands.env_check import run
from reverie.environments.gym import GymEnvironment
from reverie.environments.gym_check import native_problems
from reverie.types import ReverieError

# Written to a file, because `gym:zoo:...` is about a package that is imported by its name.
ZOO = '''
import itertools
import os

import gymnasium
import numpy as np
from gymnasium import spaces

DRAWN = itertools.count(1)


class Good(gymnasium.Env):
    observation_space = spaces.Dict(
        {"place": spaces.Box(-100, 100, (2,), np.float32), "room": spaces.MultiDiscrete([2, 3])}
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.view(), {}

    def step(self, action):
        self.count += 1
        return self.view(), self.reward(), self.terminated(), self.truncated(), self.info()

    def view(self):
        return {"place": self.place(), "room": np.array([self.count % 2, self.count % 3])}

    def place(self):
        return self.np_random.normal(size=2).astype(np.float32)

    def reward(self):
        return 1.0

    def terminated(self):
        return bool(self.np_random.random() < 0.05)

    def truncated(self):
        return False

    def info(self):
        return {}


class Nan(Good):
    def place(self):
        return np.array([0.0, np.nan if self.count > 3 else 1.0], np.float32)


class Wide(Good):
    def place(self):
        return np.array([0.0, 50.0 * self.count], np.float32)


class Late(Good):
    """Declares bytes and gives floats."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def view(self):
        return self.np_random.random((8, 8, 3))


class Narrow(Good):
    def place(self):
        return np.zeros(3, np.float32)


class Extra(Good):
    def view(self):
        return {**super().view(), "secret": 1}


class Less(Good):
    def view(self):
        return {"place": self.place()}


class Off(Good):
    def view(self):
        return {**super().view(), "room": np.array([self.count, 0])}


class Global(Good):
    def place(self):
        return np.random.random(2).astype(np.float32)


class ArrayReward(Good):
    def reward(self):
        return np.array([1.0])


class TextReward(Good):
    def reward(self):
        return "1"


class EndlessReward(Good):
    def reward(self):
        return float("inf")


class NoneFlag(Good):
    def truncated(self):
        return None


class ListInfo(Good):
    def info(self):
        return []


class FourValues(Good):
    def step(self, action):
        return super().step(action)[:4]


class Raises(Good):
    def reward(self):
        raise RuntimeError("the wheel\\ncame off")


class RaisesFirst(Good):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no map")


class BareReset(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class ListReset(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], []


class Unbounded(Good):
    action_space = spaces.Box(-np.inf, np.inf, (2,))


class Crashes(Good):
    def step(self, action):
        os.abort()


class Forgets(Good):
    """The same seed repeats only for the first two steps, which a check of resets alone does not see."""

    def place(self):
        return np.full(2, 1 / next(DRAWN) if self.count > 2 else 0, np.float32)


class Timed(Good):
    """Calls its time limit a termination."""

    def terminated(self):
        return self.count >= 20


class Never(Good):
    def terminated(self):
        return False

    def place(self):
        return np.zeros(2, np.float32)


for name, thing in list(globals().items()):
    if isinstance(thing, type) and issubclass(thing, gymnasium.Env):
        gymnasium.register(f"{name}-v0", entry_point=f"zoo:{name}")
'''


@pytest.fixture(scope="module", autouse=True)
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "zoo.py").write_text(ZOO)
    registered = dict(gymnasium.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("zoo", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nan", "the observation 'place' holds NaN or infinity: find the division"),
        ("Wide", "the observation 'place' has values outside the bounds of its space (-100 to 100): widen the bounds"),
        ("Late", "the observation has dtype float64, but its space says uint8: return it with .astype(np.uint8)"),
        ("Narrow", "the observation 'place' has shape (3,), but its space says (2,): make them agree"),
        ("Extra", "the observation has the entry 'secret', which its space does not name: add it there or drop it"),
        ("Less", "the observation 'room' is missing, but its space names it: give it at every step"),
        ("Off", "the observation 'room' has values that are not in its space MultiDiscrete([2 3]): make them agree"),
        ("Global", "two resets with the same seed give different observations: call super().reset(seed=seed) first"),
        ("ArrayReward", "step() gives its reward as an array of shape (1,): return float(reward)"),
        ("TextReward", "step() gives its reward as str: return a float"),
        ("EndlessReward", "step() gives a reward that is NaN or infinite: return a finite number"),
        ("NoneFlag", "step() gives `truncated` as NoneType: return a bool"),
        ("ListInfo", "step() gives list as its info: return a dict"),
        ("FourValues", "step() gives 4 values: return (observation, reward, terminated, truncated, info)"),
        ("Raises", "step() raises RuntimeError: the wheel came off"),
        ("RaisesFirst", "reset() raises RuntimeError: no map"),
        ("BareReset", "reset() does not give two values: return (observation, info)"),
        ("ListReset", "reset() gives list as its info: return a dict"),
    ],
)
def test_each_mistake_has_its_sentence(name: str, sentence: str) -> None:
    found = native_problems(GymEnvironment(task=f"gym:zoo:{name}-v0"), steps=60, rng=np.random.default_rng(0))
    assert len(found) == 1, found  # and no other
    assert found[0].startswith(sentence)


def test_a_good_environment_has_no_problem() -> None:
    assert native_problems(GymEnvironment(task="gym:zoo:Good-v0"), steps=60, rng=np.random.default_rng(0)) == []


def test_a_good_environment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", "gym:zoo:Good-v0", "--steps", "200"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["place"].split()[1:6] == ["float32", "2", "-100", "to", "100"]
    assert lines["place"].endswith("MLP")
    assert "2 times 1 of 2 to 3" in lines["room"]
    assert lines["room"].endswith("MLP, as one-hots")
    assert lines["action"].split()[1:] == ["1", "of", "3"]
    assert " terminal, 0 at a time limit" in lines["episodes"]
    assert "bit for bit" in lines["seeding"]
    assert lines["resume"].split()[1:] == ["by", "replay", "of", "the", "open", "episode"]
    assert "steps/s" in lines["speed"]
    assert "problem" not in out
    assert out.splitlines()[-1] == "Train on it: reverie train task=gym:zoo:Good-v0"


def test_settings_may_follow_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gym:zoo:Good-v0", "--steps", "20", "environment.simulator.resume=restart"]) == 0
    out = capsys.readouterr().out
    assert "resume    by restart" in out
    assert " in 20 steps" in out
    with pytest.raises(ReverieError, match="unrecognized arguments: --stpes"):
        run(["gym:zoo:Good-v0", "--stpes"])


def test_settings_change_what_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["gym:zoo:Never-v0", "environment.simulator.resume=restart", "environment.in_workers=false"])
    out = capsys.readouterr().out
    assert code == 0
    assert "resume    by restart" in out
    assert "note: no episode ended in 500 steps" in out
    assert "note: two seeds gave the same episode" in out
    assert "can neither save its state nor repeat an episode" in out


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Forgets", "problem 1: the same seed and actions give another episode (observation 'place' differs after 3"),
        ("Crashes", "problem 1: the environment ends its process with code -6 (Fatal Python error: Aborted)"),
        ("ArrayReward", "problem 1: step() gives its reward as an array"),
    ],
)
def test_a_broken_environment_fails(name: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([f"gym:zoo:{name}-v0", "environment.in_workers=false"]) == 1
    out = capsys.readouterr().out
    assert sentence in out
    assert out.splitlines()[-1].endswith("to mend.")


def test_a_time_limit_called_termination_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gym:zoo:Timed-v0", "environment.in_workers=false"]) == 0
    assert "every episode ended as terminated after 20 steps: if that is a time limit" in capsys.readouterr().out


def test_what_this_experiment_cannot_train_on_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["builtin_image", "environment.simulator.size=60"]) == 0
    out = capsys.readouterr().out
    assert "the experiment dreamer_cartpole cannot train on it: pictures of 60x60 must be resized" in out
    assert out.splitlines()[-1] == "Nothing is wrong with it."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["gym:zoo:Unbounded-v0"], "without finite bounds"),
        (["gym:zoo:Godo-v0"], "did you mean gym:zoo:Good-v0"),
        (["gym_CartPol-v1"], "did you mean gym_CartPole-v1"),
        (["gmy_CartPole-v1"], "did you mean the suite gym"),
        (["gym_CartPole-v1", "environment.simulator.repeat=2"], "unknown key `environment.simulator.repeat`"),
        (["gym_CartPole-v1", "environment.simulator.action_repeat=x"], "must be an integer, got 'x'"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        run(arguments)


def test_the_environment_of_the_guide_passes(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (repo_root / "docs/guides/own_environment.md").read_text(encoding="utf-8")
    shown = re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```", guide, flags=re.M | re.S)
    assert [name for name, _ in shown] == ["my_package.py"]
    (tmp_path / "my_package.py").write_text(shown[0][1])
    monkeypatch.chdir(tmp_path)  # where a person would have it
    assert run(["gym:my_package:MyEnv-v0", "--steps", "300"]) == 0
    assert "at a time limit" in capsys.readouterr().out


def test_a_missing_task_is_all_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check"]) == 2
    said = capsys.readouterr().err
    assert "TASK is missing" in said
    assert "KEY=VALUE" not in said
