"""As in MineRL: a task is a class that names its handlers, and makes a gym environment of the old interface."""

from __future__ import annotations

import abc
from typing import Any

from minerl.game import Game
from minerl.herobraine.hero import spaces


class EnvSpec(abc.ABC):
    def __init__(self, name: str) -> None:
        self.name = name
        self.observation_space = spaces.Dict({one.to_string(): one.space for one in self.create_observables()})
        self.action_space = spaces.Dict({one.to_string(): one.space for one in self.create_actionables()})
        assert self.create_rewardables() == self.create_agent_handlers() == self.create_monitors() == []
        assert self.create_server_decorators() == []
        parts = (
            *self.create_agent_start(),
            *self.create_server_world_generators(),
            *self.create_server_quit_producers(),
            *self.create_server_initial_conditions(),
        )
        self.world = {part.to_string(): part.given for part in parts}

    def make(self) -> Game:
        return Game(self.observation_space, self.action_space, self.world)

    @abc.abstractmethod
    def create_observables(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_actionables(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_rewardables(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_agent_start(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_agent_handlers(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_monitors(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_server_initial_conditions(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_server_decorators(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_server_world_generators(self) -> list[Any]: ...

    @abc.abstractmethod
    def create_server_quit_producers(self) -> list[Any]: ...

    @abc.abstractmethod
    def is_from_folder(self, folder: str) -> bool: ...

    @abc.abstractmethod
    def determine_success_from_rewards(self, rewards: list[float]) -> bool: ...

    @abc.abstractmethod
    def get_docstring(self) -> str: ...
