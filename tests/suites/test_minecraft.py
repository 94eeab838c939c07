"""The diamond task's adapter, against a stand-in that speaks MineRL's interface: the game cannot be had everywhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie import cli
from reverie.build import environments
from reverie.commands.composition import IN_WORKERS, composed
from reverie.environments.isolated import interpreters
from reverie.environments.isolated.minecraft import ACTIONS, MILESTONES, MinecraftEnvironment, ReverieError
from reverie.environments.isolated.recipes import RECIPES
from reverie.environments.minecraft import task_info, task_names

STAND_INS = Path(__file__).resolve().parents[1] / "stand_ins"
TASK = "minecraft_diamond"
INDEX = {name: index for index, (name, _) in enumerate(ACTIONS)}
FALLS, LOSES_CONNECTION = 13, 99

Make = Callable[..., MinecraftEnvironment]

TO_A_DIAMOND = [
    *["attack"] * 14,
    *["craft_planks"] * 14,
    *["craft_stick"] * 4,
    *("craft_crafting_table", "place_crafting_table", "craft_wooden_pickaxe", "equip_wooden_pickaxe"),
    *["turn_down"] * 4,
    *["attack"] * 11,
    *("craft_stone_pickaxe", "equip_stone_pickaxe", "craft_furnace", "place_furnace"),
    *["attack"] * 3,
    *["smelt_iron_ingot"] * 3,
    *("craft_iron_pickaxe", "equip_iron_pickaxe", "attack"),
]
"""What a player does in the stand-in's world, where blocks break at once."""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes environments on the stand-in, in this process."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    made: list[MinecraftEnvironment] = []

    def made_with(**options: Any) -> MinecraftEnvironment:
        made.append(MinecraftEnvironment(task=TASK, **options))
        return made[-1]

    yield made_with
    for env in made:
        env.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "minerl"]:
        del sys.modules[name]


def played(env: MinecraftEnvironment, names: list[str]) -> list[Any]:
    return [env.step(np.array(INDEX[name])) for name in names]


def sent() -> list[dict[str, Any]]:
    """The actions that reached the stand-in."""
    return sys.modules["minerl.game"].sent_actions


def test_there_are_25_actions_and_the_observation_holds_the_inventory(make: Make) -> None:
    env = make()
    assert env.spaces["action"] == {"shape": [], "dtype": "int64", "classes": 25}
    first = env.reset(1)
    assert first.is_first
    assert (first.reward, first.is_last, first.scores) == (0.0, False, {})
    for key, space in env.spaces["obs"].items():
        assert (list(first.obs[key].shape), str(first.obs[key].dtype)) == (space["shape"], space["dtype"]), key
    # Sixteen items: the two kinds of logs count as one. In the hand can also be something unknown.
    assert [len(first.obs[key]) for key in ("inventory", "inventory_max", "equipped")] == [15, 15, 17]
    assert [float(first.obs[key][0]) for key in ("health", "hunger", "breath")] == pytest.approx([1.0, 0.9, 0.5])


def test_every_milestone_pays_once(make: Make) -> None:
    env = make()
    env.reset(1)
    rewards = [step.reward for step in played(env, TO_A_DIAMOND)]
    assert sum(rewards) == len(MILESTONES) == 12
    paying = [name for name, reward in zip(TO_A_DIAMOND, rewards, strict=True) if reward == 1.0]
    assert paying == [
        *("attack", "craft_planks", "craft_stick", "craft_crafting_table", "craft_wooden_pickaxe", "attack"),
        *("craft_stone_pickaxe", "craft_furnace", "attack", "smelt_iron_ingot", "craft_iron_pickaxe", "attack"),
    ]
    assert env.reset(1).reward == 0.0
    assert played(env, ["attack"])[0].reward == 1.0, "a new episode pays again"


def test_scores_name_the_milestones_of_the_episode(make: Make) -> None:
    env = make(episode_steps=len(TO_A_DIAMOND) - 1)
    env.reset(1)
    last = played(env, TO_A_DIAMOND[:-1])[-1]
    assert (last.is_last, last.is_terminal) == (True, False), "a time limit is not a death"
    assert last.scores == {item: float(item != "diamond") for item in MILESTONES}


def test_inventory_counts_both_kinds_of_logs_and_remembers_the_most(make: Make) -> None:
    env = make()
    env.reset(1)
    items = sorted(set(sys.modules["minerl.herobraine.hero.mc"].ALL_ITEMS) - {"log2"})
    steps = played(env, ["attack", "attack", "craft_planks"])
    assert [step.obs["inventory"][items.index("log")] for step in steps] == [1, 2, 1]
    assert [step.obs["inventory_max"][items.index("log")] for step in steps] == [1, 2, 2]
    assert env.reset(2).obs["inventory_max"].max() == 0, "a new episode remembers nothing"


def test_the_item_in_hand_is_shown(make: Make) -> None:
    env = make()
    names = sorted({*sys.modules["minerl.herobraine.hero.mc"].ALL_ITEMS, "other"})
    first = env.reset(1)
    last = played(env, TO_A_DIAMOND)[-1]
    for seen, item in ((first, "air"), (last, "iron_pickaxe")):
        assert np.flatnonzero(seen.obs["equipped"]).tolist() == [names.index(item)]


def test_health_pays_a_hundredth_of_its_change_and_death_is_terminal(make: Make) -> None:
    env = make()
    env.reset(FALLS)
    steps = played(env, ["noop"] * 8)
    assert [step.reward for step in steps] == pytest.approx([0, 0, -0.0025, 0, 0.00125, 0, 0, -0.00875])
    assert [step.is_last for step in steps] == [False] * 7 + [True]
    assert steps[-1].is_terminal
    assert steps[-1].obs["health"][0] == 0


def test_a_lost_connection_cuts_the_episode_where_it_was_last_seen(make: Make) -> None:
    env = make()
    env.reset(LOSES_CONNECTION)
    steps = played(env, ["attack"] * 4)
    assert (steps[-1].is_last, steps[-1].is_terminal, steps[-1].reward) == (True, False, 0.0)
    for key, value in steps[-1].obs.items():
        np.testing.assert_array_equal(value, steps[-2].obs[key])
    assert env.reset(1).is_first


def test_an_attack_sticks_at_break_speed_1_only(make: Make) -> None:
    plan = ["attack", *["forward"] * 5, "jump"]
    for break_speed, held in ((1.0, [1, 1, 1, 1, 0, 0, 0]), (100.0, [1, 0, 0, 0, 0, 0, 0])):
        env = make(break_speed=break_speed, sticky_attack=4, sticky_jump=0)
        env.reset(1)
        sent().clear()
        played(env, plan)
        assert [action["attack"] for action in sent()] == held
    env = make(break_speed=1.0, sticky_attack=4, sticky_jump=0)
    env.reset(1)
    sent().clear()
    played(env, ["attack", "jump"])
    assert [action["jump"] for action in sent()] == [0, 0], "who attacks does not jump"


def test_a_jump_sticks_with_its_forward(make: Make) -> None:
    env = make(sticky_jump=3)
    env.reset(1)
    sent().clear()
    played(env, ["jump", "noop", "back", "noop"])
    assert [(one["jump"], one["forward"], one["back"]) for one in sent()] == [
        (1, 1, 0),
        (1, 1, 0),
        (1, 1, 1),
        (0, 0, 0),
    ]
    played(env, ["jump"])
    env.reset(1)
    sent().clear()
    played(env, ["noop"])
    assert sent()[0]["jump"] == 0, "a new episode does not go on jumping"


def test_the_view_stays_within_the_pitch_limit(make: Make) -> None:
    env = make(pitch_limit=60.0)
    env.reset(1)
    sent().clear()
    played(env, [*["turn_down"] * 6, *["turn_up"] * 10, "turn_left"])
    pitch = np.cumsum([one["camera"][0] for one in sent()])
    assert (pitch.max(), pitch.min()) == (60.0, -60.0)
    assert pitch[3:6].tolist() == [60.0] * 3
    assert sent()[-1]["camera"].tolist() == [0.0, -15.0]


def test_the_break_speed_reaches_the_game(make: Make) -> None:
    for break_speed, attacks in ((100.0, 1), (50.0, 2)):
        env = make(break_speed=break_speed)
        env.reset(1)
        rewards = [step.reward for step in played(env, ["attack"] * 3)]
        assert rewards.index(1.0) == attacks - 1


def test_the_world_follows_the_seed(make: Make) -> None:
    env = make()
    images = [env.reset(seed).obs["image"] for seed in (5, 6, 5)]
    np.testing.assert_array_equal(images[0], images[2])
    assert (images[0] != images[1]).any()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "minecraft_dimond"}, "minecraft_diamond"),
        ({"episode_steps": 0}, "episode_steps"),
        ({"break_speed": float("nan")}, "break_speed"),
        ({"pitch_limit": -1.0}, "pitch_limit"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ReverieError, match=named):
        MinecraftEnvironment(**{"task": TASK, **options})


def test_without_its_interpreter_the_list_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVERIE_HOME", str(tmp_path))
    assert task_names() == [TASK]
    problem = task_info(TASK).problem
    assert problem is not None
    assert "reverie env add minecraft" in problem


@pytest.fixture
def stand_in_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter "minecraft" that is this Python with the stand-in on its path."""
    monkeypatch.setenv("REVERIE_HOME", str(tmp_path))
    folder = interpreters.interpreters_folder() / "minecraft"
    python = folder / "1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    path = os.pathsep.join([str(STAND_INS), *(entry for entry in sys.path if "site-packages" in entry)])
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{path}' exec '{sys.executable}' \"$@\"\n", encoding="utf-8")
    python.chmod(0o755)
    built = {"build": "1", "recipe": asdict(RECIPES["minecraft"])}
    (folder / "built.json").write_text(json.dumps(built), encoding="utf-8")


@pytest.mark.usefixtures("stand_in_interpreter")
def test_the_config_runs_it_in_workers() -> None:
    overrides = ["experiment=random_cartpole", "environment.simulator.episode_steps=3"]
    config = composed(TASK, [*overrides, "environment=minecraft", IN_WORKERS])
    envs = environments(config, num_envs=2, seed=0, allow=None)
    try:
        assert envs.spaces.action.classes == 25
        assert envs.observe().is_first.all()
        rewards = [envs.step(torch.tensor([INDEX["attack"], INDEX["noop"]])).reward.tolist() for _ in range(2)]
        assert rewards == [[1.0, 0.0], [0.0, 0.0]]
        last = envs.step(torch.tensor([INDEX["noop"]] * 2))
        assert (last.is_last.tolist(), last.is_terminal.tolist()) == ([True, True], [False, False])
        assert [last.scores[index]["log"] for index in (0, 1)] == [1.0, 0.0]
        state = envs.get_state()
        assert envs.step(torch.tensor([INDEX["noop"]] * 2)).is_first.all()
        envs.set_state(state)
        assert envs.inexact is None, "between two episodes nothing is lost"
        envs.step(torch.tensor([INDEX["noop"]] * 2))
        envs.step(torch.tensor([INDEX["noop"]] * 2))
        envs.set_state(envs.get_state())
        assert envs.inexact is not None, "an open episode cannot come back"
        assert envs.observe().is_last.all()
    finally:
        envs.close()
    assert task_info(TASK).problem is None


@pytest.mark.usefixtures("stand_in_interpreter")
def test_the_list_of_tasks_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks", "minecraft"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 25" in shown
    assert "36000" in shown
