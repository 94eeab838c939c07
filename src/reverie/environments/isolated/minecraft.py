"""The diamond task in MineRL 0.4.4, in the isolated interpreter "minecraft".

This file stands alone: Reverie reads its signature, and a process of the other interpreter loads and serves it.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

TASK = "minecraft_diamond"

MILESTONES = (
    *("log", "planks", "stick", "crafting_table", "wooden_pickaxe", "cobblestone", "stone_pickaxe", "iron_ore"),
    *("furnace", "iron_ingot", "iron_pickaxe", "diamond"),
)
"""Items on the way to a diamond. The first of each in an episode pays 1."""

ACTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("noop", {}),
    ("attack", {"attack": 1}),
    ("turn_up", {"camera": (-15.0, 0.0)}),
    ("turn_down", {"camera": (15.0, 0.0)}),
    ("turn_left", {"camera": (0.0, -15.0)}),
    ("turn_right", {"camera": (0.0, 15.0)}),
    *((key, {key: 1}) for key in ("forward", "back", "left", "right")),
    ("jump", {"jump": 1, "forward": 1}),
    ("place_dirt", {"place": "dirt"}),
    *(("craft_" + item, {"craft": item}) for item in ("planks", "stick", "crafting_table")),
    ("place_crafting_table", {"place": "crafting_table"}),
    *(("craft_" + item, {"nearbyCraft": item}) for item in ("wooden_pickaxe", "stone_pickaxe", "iron_pickaxe")),
    *(("equip_" + item, {"equip": item}) for item in ("stone_pickaxe", "wooden_pickaxe", "iron_pickaxe")),
    ("craft_furnace", {"nearbyCraft": "furnace"}),
    ("place_furnace", {"place": "furnace"}),
    ("smelt_iron_ingot", {"nearbySmelt": "iron_ingot"}),
)
"""The 25 flat actions, in the published order: what each changes in the action that does nothing."""

_KEYS = ("forward", "back", "left", "right", "jump", "sneak", "attack")
_ITEM_COMMANDS = ("place", "equip", "craft", "nearbyCraft", "nearbySmelt")
_HEALTH_SCALE = 0.01


class ReverieError(Exception):
    """Something the user can mend; Reverie knows it by its name."""


class Timestep:
    """What the game shows at one moment, with the names that Reverie uses. Its arrays belong to the receiver."""

    def __init__(
        self, obs: dict[str, np.ndarray], reward: float, *, is_first: bool, is_last: bool, is_terminal: bool
    ) -> None:
        self.obs = {key: value.copy() for key, value in obs.items()}
        self.reward = reward
        self.is_first = is_first
        self.is_last = is_last
        self.is_terminal = is_terminal
        self.scores: dict[str, float] = {}


class MinecraftEnvironment:
    """Collect a diamond, from nothing, in a new world each episode.

    Reward: 1 for the first of each milestone, and 0.01 times the change of health, which runs from 0 to 1. Death ends
    the episode; ``episode_steps`` and a lost connection cut it. ``break_speed`` multiplies how fast blocks break;
    ``sticky_attack`` holds the attack for so many steps, and only at break speed 1, as published. ``sticky_jump`` holds
    a jump (with forward), ``pitch_limit`` bounds how far the view goes up and down, in degrees. The world follows the
    seed, but the game runs in real threads: an episode cannot be played again exactly.
    """

    interpreter = "minecraft"

    def __init__(
        self,
        *,
        task: str,
        image_size: int = 64,
        episode_steps: int = 36000,
        break_speed: float = 100.0,
        sticky_attack: int = 30,
        sticky_jump: int = 10,
        pitch_limit: float = 60.0,
    ) -> None:
        if task != TASK:
            raise ReverieError(f"There is no task {task}: did you mean {TASK}?")
        _require(1, image_size=image_size, episode_steps=episode_steps, break_speed=break_speed)
        _require(0, sticky_attack=sticky_attack, sticky_jump=sticky_jump, pitch_limit=pitch_limit)
        self.task = task
        self.frames_per_step = 1
        self.resume = "restart"
        self._hands = _Hands(sticky_attack if break_speed == 1.0 else 0, sticky_jump, pitch_limit)
        self._game = _game(image_size, break_speed)
        self._eyes = _Eyes(self._game.observation_space)
        self._milestones = _Milestones()
        self._episode_steps = episode_steps
        self._steps = 0
        self._obs: dict[str, np.ndarray] = {}
        self.spaces: dict[str, Any] = {
            "obs": {key: _space(shape) for key, shape in self._eyes.shapes(image_size).items()},
            "action": {"shape": [], "dtype": "int64", "classes": len(ACTIONS)},
        }

    def reset(self, seed: int) -> Timestep:
        self._game.seed(int(seed))
        seen = self._game.reset()
        self._hands.let_go()
        self._eyes.forget()
        self._steps = 0
        self._obs = self._eyes.obs(seen)
        self._milestones.begin(self._eyes.counts, float(self._obs["health"][0]))
        return Timestep(self._obs, 0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        seen, _, is_done, info = self._game.step(self._hands.action(int(action)))
        self._steps += 1
        # MineRL answers a lost connection with a random observation: show what was last seen instead.
        is_lost = "error" in info
        reward = 0.0
        if not is_lost:
            self._obs = self._eyes.obs(seen)
            reward = self._milestones.reward(self._eyes.counts, float(self._obs["health"][0]))
        is_terminal = bool(is_done) and not is_lost
        is_last = is_terminal or is_lost or self._steps >= self._episode_steps
        now = Timestep(self._obs, reward, is_first=False, is_last=is_last, is_terminal=is_terminal)
        if is_last:
            now.scores = self._milestones.scores()
        return now

    def close(self) -> None:
        self._game.close()


class _Hands:
    """Turns a flat action into MineRL's, with what is held over from earlier ones."""

    def __init__(self, sticky_attack: int, sticky_jump: int, pitch_limit: float) -> None:
        self._attack_steps = sticky_attack
        self._jump_steps = sticky_jump
        self._pitch_limit = pitch_limit
        self.let_go()

    def let_go(self) -> None:
        self._attack_left = 0
        self._jump_left = 0
        self._pitch = 0.0

    def action(self, index: int) -> dict[str, Any]:
        action: dict[str, Any] = dict.fromkeys(_KEYS, 0)
        action.update(dict.fromkeys(_ITEM_COMMANDS, "none"))
        action["camera"] = (0.0, 0.0)
        action.update(ACTIONS[index][1])
        if self._attack_steps and action["attack"]:
            self._attack_left = self._attack_steps
        if self._attack_left:
            self._attack_left -= 1
            action.update(attack=1, jump=0)
        if self._jump_steps and action["jump"]:
            self._jump_left = self._jump_steps
        if self._jump_left:
            self._jump_left -= 1
            action.update(jump=1, forward=1)
        pitch, yaw = action["camera"]
        if abs(self._pitch + pitch) > self._pitch_limit:
            pitch = 0.0
        self._pitch += pitch
        action["camera"] = np.array([pitch, yaw], np.float32)
        return action


class _Eyes:
    """Turns MineRL's nested observation into flat arrays."""

    def __init__(self, space: Any) -> None:
        # The two kinds of logs differ only in the tree that they come from: they count as one.
        self._items = sorted(item for item in space.spaces["inventory"].spaces if item != "log2")
        in_hand = space.spaces["equipped_items"].spaces["mainhand"].spaces["type"]
        self._equipment = [str(value) for value in in_hand.values]
        self.forget()

    def forget(self) -> None:
        self.counts: dict[str, int] = {}
        self._most = np.zeros(len(self._items), np.float32)

    def shapes(self, image_size: int) -> dict[str, tuple[int, ...]]:
        items, one = (len(self._items),), (1,)
        image, equipped = (image_size, image_size, 3), (len(self._equipment),)
        named = {"image": image, "inventory": items, "inventory_max": items, "equipped": equipped}
        return {**named, "health": one, "hunger": one, "breath": one}

    def obs(self, seen: dict[str, Any]) -> dict[str, np.ndarray]:
        held = {item: int(count) for item, count in seen["inventory"].items()}
        held["log"] += held.pop("log2", 0)
        self.counts = held
        inventory = np.array([held[item] for item in self._items], np.float32)
        self._most = np.maximum(self._most, inventory)
        equipped = np.zeros(len(self._equipment), np.float32)
        equipped[self._equipment.index(str(seen["equipped_items"]["mainhand"]["type"]))] = 1.0
        life = seen["life_stats"]
        return {
            "image": np.array(seen["pov"], np.uint8),
            "inventory": inventory,
            "inventory_max": self._most,
            "equipped": equipped,
            "health": _fraction(life["life"], 20.0),
            "hunger": _fraction(life["food"], 20.0),
            "breath": _fraction(life["air"], 300.0),
        }


class _Milestones:
    """Pays for what an episode reaches for the first time, and for health."""

    def begin(self, counts: dict[str, int], health: float) -> None:
        self._reached = {item for item in MILESTONES if counts[item] > 0}
        self._collected: set[str] = set()
        self._health = health

    def reward(self, counts: dict[str, int], health: float) -> float:
        new = {item for item in MILESTONES if counts[item] > 0} - self._reached
        self._reached |= new
        self._collected |= new
        gained, self._health = health - self._health, health
        return len(new) + _HEALTH_SCALE * gained

    def scores(self) -> dict[str, float]:
        return {item: float(item in self._collected) for item in MILESTONES}


def _require(least: int, **numbers: float) -> None:
    for name, value in numbers.items():
        if not value >= least:
            raise ReverieError(f"{name} is {value}, but at least {least} is needed.")


def _fraction(value: Any, full: float) -> np.ndarray:
    return np.array([float(value) / full], np.float32)


def _space(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": "uint8" if len(shape) == 3 else "float32", "classes": None}


def _game(image_size: int, break_speed: float) -> Any:
    """MineRL's environment of this task. The game itself starts with the first reset, which takes minutes."""
    if not os.environ.get("DISPLAY"):
        os.environ.setdefault("MINERL_HEADLESS", "1")  # MineRL then draws through xvfb-run
    spec: Any = importlib.import_module("minerl.herobraine.env_spec").EnvSpec
    handlers: Any = importlib.import_module("minerl.herobraine.hero.handlers")
    mc: Any = importlib.import_module("minerl.herobraine.hero.mc")

    class DiamondSpec(spec):
        """A plain survival world: no reward, no goal and no time limit of MineRL's own."""

        def create_observables(self) -> list[Any]:
            return _observables(handlers, mc, image_size)

        def create_actionables(self) -> list[Any]:
            return _actionables(handlers, mc)

        def create_agent_start(self) -> list[Any]:
            return [handlers.AgentStartBreakSpeedMultiplier(break_speed)]

        def create_server_world_generators(self) -> list[Any]:
            return [handlers.DefaultWorldGenerator(force_reset=True)]

        def create_server_quit_producers(self) -> list[Any]:
            return [handlers.ServerQuitWhenAnyAgentFinishes()]

        def create_server_initial_conditions(self) -> list[Any]:
            day = handlers.TimeInitialCondition(allow_passage_of_time=True, start_time=0)
            return [day, handlers.SpawningInitialCondition(allow_spawning=True)]

        def _none(self, *_: Any) -> list[Any]:
            return []

        create_rewardables = create_agent_handlers = create_monitors = create_server_decorators = _none
        is_from_folder = determine_success_from_rewards = get_docstring = _none  # for its data set, which is not used

    return DiamondSpec(name="ReverieDiamond-v0").make()


def _observables(handlers: Any, mc: Any, image_size: int) -> list[Any]:
    return [
        handlers.POVObservation((image_size, image_size)),
        handlers.FlatInventoryObservation(mc.ALL_ITEMS),
        handlers.EquippedItemObservation(mc.ALL_ITEMS, _default="air", _other="other"),
        handlers.ObservationFromLifeStats(),
    ]


def _actionables(handlers: Any, mc: Any) -> list[Any]:
    items, none = ["none", *mc.ALL_ITEMS], {"_other": "none", "_default": "none"}
    keys = [handlers.KeybasedCommandAction(key, mc.INVERSE_KEYMAP[key]) for key in _KEYS]
    crafting = (handlers.CraftAction, handlers.CraftNearbyAction, handlers.SmeltItemNearby)
    commands = [kind(items, **none) for kind in (handlers.PlaceBlock, handlers.EquipAction, *crafting)]
    return [*keys, handlers.CameraAction(), *commands]
