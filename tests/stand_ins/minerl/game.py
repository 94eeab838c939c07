"""A toy world with Minecraft's recipes, that speaks as MineRL's single-agent environment does.

Attacking with a level view gives logs (of both kinds in turn); looking down, it gives what the pickaxe in hand can
break. A block takes 100 attacks, divided by the break speed. Some seeds tell a story (see the constants).
"""

from __future__ import annotations

from typing import Any

import numpy as np

FALLS = 13
"""With this seed a fall costs a quarter of the health at step 3, half of that comes back at step 5, step 8 kills."""
LOSES_CONNECTION = 99
"""With this seed step 4 is answered as MineRL answers a lost connection."""

sent_actions: list[dict[str, Any]] = []
"""Every action that reached a game of this process."""

_MINED = {"wooden_pickaxe": "cobblestone", "stone_pickaxe": "iron_ore", "iron_pickaxe": "diamond"}
_COSTS: dict[str, dict[str, int]] = {
    "planks": {"log": 1},
    "stick": {"planks": 2},
    "crafting_table": {"planks": 4},
    "wooden_pickaxe": {"planks": 3, "stick": 2},
    "stone_pickaxe": {"cobblestone": 3, "stick": 2},
    "furnace": {"cobblestone": 8},
    "iron_ingot": {"iron_ore": 1, "planks": 1},
    "iron_pickaxe": {"iron_ingot": 3, "stick": 2},
}
_YIELDS = {"planks": 4, "stick": 4}
_LIFE = {3: 15.0, 4: 15.0, 5: 17.5, 6: 17.5, 7: 17.5, 8: 0.0}


class Game:
    def __init__(self, observation_space: Any, action_space: Any, world: dict[str, dict[str, Any]]) -> None:
        self.observation_space, self.action_space, self.world = observation_space, action_space, world
        self._seed: int | None = None
        self._is_done = True

    def seed(self, seed: int | None = None) -> None:
        assert isinstance(seed, int), "Seed must be an int!"
        self._seed = seed

    def reset(self) -> dict[str, Any]:
        self._episode, self._seed = self._seed, None  # MineRL forgets the seed after one reset
        self._steps, self._pitch, self._attacks, self._blocks = 0, 0.0, 0, 0
        self._held = dict.fromkeys(self.observation_space.spaces["inventory"].spaces, 0)
        self._in_hand, self._near, self._is_done = "air", set(), False
        return self._observation()

    def step(self, action: dict[str, Any]) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        if self._is_done:
            raise RuntimeError("Attempted to step an environment server with done=True")
        assert action in self.action_space, action
        sent_actions.append(action)
        self._steps += 1
        if self._episode == LOSES_CONNECTION and self._steps == 4:
            self._is_done = True
            noise = {**self._observation(), "inventory": dict.fromkeys(self._held, 2304)}
            return noise, 0, True, {"error": "Connection timed out!"}
        self._pitch += float(action["camera"][0])
        self._act(action)
        self._is_done = self._life() == 0
        return self._observation(), 0.0, self._is_done, {}

    def close(self) -> None:
        self._is_done = True

    def _act(self, action: dict[str, Any]) -> None:
        if action["attack"]:
            self._attack()
        if action["equip"] != "none" and self._held[action["equip"]]:
            self._in_hand = action["equip"]
        if action["place"] != "none" and self._held[action["place"]]:
            self._held[action["place"]] -= 1
            self._near.add(action["place"])
        if action["craft"] in ("planks", "stick", "crafting_table"):
            self._make(action["craft"])
        if action["nearbyCraft"] != "none" and "crafting_table" in self._near:
            self._make(action["nearbyCraft"])
        if action["nearbySmelt"] != "none" and "furnace" in self._near:
            self._make(action["nearbySmelt"])

    def _attack(self) -> None:
        self._attacks += 1
        if self._attacks * self.world["agent_start_break_speed_multiplier"]["multiplier"] < 100:
            return
        self._attacks = 0
        self._blocks += 1
        item = ("log", "log2")[self._blocks % 2] if self._pitch < 45 else _MINED.get(self._in_hand)
        if item is not None:
            self._held[item] += 1

    def _make(self, item: str) -> None:
        cost = dict(_COSTS[item])
        if "log" in cost and not self._held["log"]:
            cost = {"log2": cost["log"]}
        if all(self._held[part] >= count for part, count in cost.items()):
            for part, count in cost.items():
                self._held[part] -= count
            self._held[item] += _YIELDS.get(item, 1)

    def _life(self) -> float:
        return _LIFE.get(self._steps, 20.0) if self._episode == FALLS else 20.0

    def _observation(self) -> dict[str, Any]:
        shape = self.observation_space.spaces["pov"].shape
        noise = np.random.default_rng([self._episode or 0, self._steps]).integers(256, size=shape, dtype=np.uint8)
        life = {"life": self._life(), "food": 18.0, "air": 150.0, "xp": 0.0, "score": 0.0, "saturation": 5.0}
        seen = {
            "pov": noise,
            "inventory": {item: np.array(count) for item, count in self._held.items()},
            "equipped_items": {"mainhand": {"type": self._in_hand, "damage": np.array(0), "maxDamage": np.array(0)}},
            "life_stats": {**life, "is_alive": float(self._life() > 0)},
        }
        assert seen in self.observation_space
        return seen
