"""Suite "minecraft": the diamond task of MineRL, which runs in the isolated interpreter "minecraft"."""

from __future__ import annotations

from reverie.environments.base import TaskInfo
from reverie.environments.isolated.interpreters import interpreter_python
from reverie.environments.isolated.minecraft import ACTIONS, TASK, MinecraftEnvironment
from reverie.environments.task_lines import require_task, unavailable
from reverie.types import ReverieError


def task_names() -> list[str]:
    return [TASK]


def task_info(task: str) -> TaskInfo:
    """Does not start the game, which takes minutes: looks whether its interpreter is there."""
    require_task(task, task_names())
    try:
        interpreter_python(MinecraftEnvironment.interpreter)
    except ReverieError as error:
        return unavailable(task, error)
    return TaskInfo(
        name=task,
        observation="image: uint8 64x64x3, inventory: float32 391, inventory_max: float32 391, equipped: float32 393, "
        "health: float32 1, hunger: float32 1, breath: float32 1",
        action=f"1 of {len(ACTIONS)}",
        episode_steps=36000,
        frames_per_step=1,
    )
