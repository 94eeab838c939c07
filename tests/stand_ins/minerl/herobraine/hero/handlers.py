"""As in MineRL: what a task observes, what it can do, and how its world begins."""

from __future__ import annotations

from typing import Any

import numpy as np

from minerl.herobraine.hero import spaces


class Handler:
    def __init__(self, name: str, space: Any = None, **given: Any) -> None:
        self.name, self.space, self.given = name, space, given

    def to_string(self) -> str:
        return self.name


def POVObservation(video_resolution: tuple[int, int]) -> Handler:
    width, height = video_resolution
    return Handler("pov", spaces.Box(0, 255, (height, width, 3), np.uint8))


def FlatInventoryObservation(item_list: list[str]) -> Handler:
    return Handler("inventory", spaces.Dict({item: spaces.Box(0, 2304, (), np.int64) for item in sorted(item_list)}))


def EquippedItemObservation(items: list[str], *, _default: str, _other: str) -> Handler:
    names = spaces.Enum(*{*items, _default, _other}, default=_default)
    damage = spaces.Box(-1, 1562, (), np.int64)
    hand = spaces.Dict({"type": names, "damage": damage, "maxDamage": damage})
    return Handler("equipped_items", spaces.Dict({"mainhand": hand}))


def ObservationFromLifeStats() -> Handler:
    highest = {"life": 20, "food": 20, "air": 300, "xp": 1395, "score": 1395, "saturation": 20, "is_alive": 1}
    return Handler("life_stats", spaces.Dict({key: spaces.Box(0, top, (), float) for key, top in highest.items()}))


def KeybasedCommandAction(command: str, key: str) -> Handler:
    return Handler(command, spaces.Discrete(2), key=key)


def CameraAction() -> Handler:
    return Handler("camera", spaces.Box(-180, 180, (2,), np.float32))


def _item_command(name: str, items: list[str], _other: str, _default: str) -> Handler:
    return Handler(name, spaces.Enum(*{*items, _other, _default}, default=_default))


def PlaceBlock(blocks: list[str], _other: str, _default: str) -> Handler:
    return _item_command("place", blocks, _other, _default)


def EquipAction(items: list[str], _default: str, _other: str) -> Handler:
    return _item_command("equip", items, _other, _default)


def CraftAction(items: list[str], _other: str, _default: str) -> Handler:
    return _item_command("craft", items, _other, _default)


def CraftNearbyAction(items: list[str], _other: str, _default: str) -> Handler:
    return _item_command("nearbyCraft", items, _other, _default)


def SmeltItemNearby(items: list[str], _other: str, _default: str) -> Handler:
    return _item_command("nearbySmelt", items, _other, _default)


def AgentStartBreakSpeedMultiplier(multiplier: float) -> Handler:
    return Handler("agent_start_break_speed_multiplier", multiplier=multiplier)


def DefaultWorldGenerator(force_reset: bool) -> Handler:
    return Handler("default_world_generator", force_reset=force_reset)


def ServerQuitWhenAnyAgentFinishes() -> Handler:
    return Handler("server_quit_when_any_agent_finishes")


def TimeInitialCondition(allow_passage_of_time: bool, start_time: int) -> Handler:
    return Handler("time_initial_condition", allow_passage_of_time=allow_passage_of_time, start_time=start_time)


def SpawningInitialCondition(allow_spawning: bool) -> Handler:
    return Handler("spawning_initial_condition", allow_spawning=allow_spawning)
