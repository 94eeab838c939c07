"""What every workflow inherits: episode tracking, acting, saving; and how it finds its parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reverie.environments.base import Environment
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.runtime.optimizer import LaProp
from reverie.runtime.rng import RandomStreams
from reverie.types import Carry, Mode, Observation, Phase, Policy, ReverieError, Space, Spaces, Timestep
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager

SPACES = Spaces(obs={"vector": Space(shape=(1,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=2))
CPU = torch.device("cpu")


class Countdown(Environment):
    """Episodes of three steps with rewards 1, 2, 3."""

    def __init__(self) -> None:
        self.task, self.spaces, self.frames_per_step, self.resume = "test_countdown", SPACES, 1, "replay"

    def reset(self, seed: int) -> Timestep:
        self._steps = 0
        return self._timestep()

    def step(self, action: np.ndarray) -> Timestep:
        self._steps += 1
        return self._timestep()

    def close(self) -> None:
        pass

    def _timestep(self) -> Timestep:
        return Timestep(
            obs={"vector": np.array([self._steps], np.float32)},
            reward=float(self._steps),
            is_first=self._steps == 0,
            is_last=self._steps == 3,
            is_terminal=self._steps == 3,
        )


class Counting:
    """A policy whose carry counts its steps and whose action is its kind."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def initial(self, num_envs: int) -> Carry:
        return {"steps": torch.zeros(num_envs, dtype=torch.int64)}

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        steps = carry["steps"] + 1
        return {"steps": steps}, torch.full_like(steps, self.kind), {"steps": steps}


class Smallest(WorldModelWorkflow):
    def policy(self, controller: str | None) -> Policy:
        return Counting(1 if controller == "explorer" else 0)


def context(*, num_envs: int = 2, components: dict[str, Any] | None = None, has_env: bool = True) -> WorkflowContext:
    return WorkflowContext(
        config={},
        device=CPU,
        spaces=SPACES,
        train_env=SeparateEnvironments(Countdown, num_envs=num_envs, seed=0, in_workers=False) if has_env else None,
        components=WorldModelComponents(components or {}),
        controllers=ControllerManager({"actor": nn.Linear(2, 2), "planner": Counting(0)}),
        optimizers={},
        rng=RandomStreams(0, device=CPU),
    )


def workflow(**given: Any) -> Smallest:
    made = Smallest()
    made.initialize(context(**given))
    return made


def phase(controller: str | None = None) -> Phase:
    return Phase(name="learn", type="online", progress=torch.zeros(()), controller=controller)


def seen(reward: list[float], is_first: list[bool], is_last: list[bool]) -> Observation:
    return Observation(
        obs={},
        reward=torch.tensor(reward),
        is_first=torch.tensor(is_first),
        is_last=torch.tensor(is_last),
        is_terminal=torch.tensor(is_last),
    )


# Episodes


def test_scores_and_lengths_of_finished_episodes() -> None:
    tracking = workflow()
    assert tracking._update_episode_stats(seen([0, 0], [True, True], [False, False])) == []
    assert tracking._update_episode_stats(seen([1.5, 2], [False, False], [False, False])) == []
    (episode,) = tracking._update_episode_stats(seen([-3, 4], [False, False], [False, True]))
    assert (episode.score, episode.length) == (6.0, 2)
    (episode,) = tracking._update_episode_stats(seen([10, 0], [False, True], [True, False]))
    assert (episode.score, episode.length) == (8.5, 3)


def test_an_episode_that_was_abandoned_leaves_nothing_in_the_next() -> None:
    tracking = workflow(num_envs=1)
    for reward, is_first, is_last in [(0, True, False), (50, False, False), (0, True, False), (1, False, True)]:
        episodes = tracking._update_episode_stats(seen([reward], [is_first], [is_last]))
    assert [(episode.score, episode.length) for episode in episodes] == [(1.0, 1)]


def test_a_snapshot_is_a_copy_and_restores() -> None:
    tracking = workflow(num_envs=1)
    tracking._update_episode_stats(seen([0], [True], [False]))
    tracking._update_episode_stats(seen([7], [False], [False]))
    snapshot = tracking._snapshot_episode_tracking()
    tracking._update_episode_stats(seen([100], [False], [False]))
    other = workflow(num_envs=1)
    other._restore_episode_tracking(snapshot)
    (episode,) = other._update_episode_stats(seen([1], [False], [True]))
    assert (episode.score, episode.length) == (8.0, 2)
    tracking._reset_episode_tracking(1)
    (episode,) = tracking._update_episode_stats(seen([1], [False], [True]))
    assert (episode.score, episode.length) == (1.0, 1)


# Acting


def test_collect_step_gives_rows_whose_flags_arrive_with_the_observation() -> None:
    acting = workflow()
    results = [acting.collect_step(2 * step, phase=phase()) for step in range(5)]
    assert [result.steps for result in results] == [2] * 5
    assert [result.trajectory.reward.tolist() for result in results] == [[0, 0], [1, 1], [2, 2], [3, 3], [0, 0]]
    assert [bool(result.trajectory.is_last[0]) for result in results] == [False, False, False, True, False]
    assert [bool(result.trajectory.is_first[0]) for result in results] == [True, False, False, False, True]
    assert [[e.score for e in result.episodes] for result in results] == [[], [], [], [6.0, 6.0], []]
    assert results[3].trajectory.stored["steps"].tolist() == [4, 4]


def test_another_controller_begins_with_a_carry_of_its_own() -> None:
    acting = workflow()
    acting.collect_step(0, phase=phase())
    explored = acting.collect_step(2, phase=phase("explorer")).trajectory
    assert explored.action.tolist() == [1, 1]
    assert explored.stored["steps"].tolist() == [1, 1]
    again = acting.collect_step(4, phase=phase("explorer")).trajectory
    assert again.stored["steps"].tolist() == [2, 2]


def test_collecting_without_an_environment_is_refused_with_the_phase_s_name() -> None:
    with pytest.raises(ReverieError, match="'learn' collects"):
        workflow(has_env=False).collect_step(0, phase=phase())


def test_a_restored_workflow_goes_on_where_the_other_stood() -> None:
    one = workflow(components={"model": nn.Linear(3, 1), "formula": abs})
    for step in range(2):
        one.collect_step(2 * step, phase=phase("explorer"))
    state = one.get_state()
    other = workflow(components={"model": nn.Linear(3, 1), "formula": abs})
    other.set_state(state)
    env = other._context.train_env
    assert env is not None
    assert one._context.train_env is not None
    env.set_state(one._context.train_env.get_state())
    for step in range(2, 6):
        ours, theirs = (each.collect_step(2 * step, phase=phase("explorer")) for each in (one, other))
        assert ours.episodes == theirs.episodes
        assert torch.equal(ours.trajectory.stored["steps"], theirs.trajectory.stored["steps"])
    models = [each._context.components.find("model", nn.Linear).weight for each in (one, other)]
    assert torch.equal(models[0], models[1])
    assert state["workflow_custom"]["carry"]["steps"].tolist() == [2, 2], "a state given away stays as it was"
    assert state["components"].keys() == {"model"}


def test_restoring_writes_in_place() -> None:
    one, other = (workflow(components={"model": nn.Linear(3, 1)}) for _ in range(2))
    weight = other._context.components.find("model", nn.Linear).weight
    address = weight.data_ptr()
    other.set_state(one.get_state())
    assert other._context.components.find("model", nn.Linear).weight.data_ptr() == address


def test_training_and_evaluation_act_from_different_streams() -> None:
    rngs = workflow()._acting_rngs()
    assert rngs["train"] is not rngs["eval"]
    assert rngs["train"].initial_seed() != rngs["eval"].initial_seed()


# Finding parts


@pytest.mark.parametrize("section", ["components", "controller"])
def test_a_missing_part_and_one_of_another_kind_are_named(section: str) -> None:
    parts = {"actor": nn.Linear(2, 2), "planner": Counting(0)}
    holder = WorldModelComponents(parts) if section == "components" else ControllerManager(parts)
    assert holder.find("actor", nn.Linear) is parts["actor"]
    with pytest.raises(ReverieError, match=rf"needs `{section}\.critic`.*actor, planner"):
        holder.find("critic", nn.Linear)
    with pytest.raises(ReverieError, match=rf"`{section}\.planner` must be of the kind Linear.*got Counting"):
        holder.find("planner", nn.Linear)


def test_an_empty_section_says_so() -> None:
    with pytest.raises(ReverieError, match="has: none"):
        WorldModelComponents({}).find("encoder", nn.Module)


def test_a_frozen_controller_receives_no_gradient_until_it_is_thawed() -> None:
    actor = nn.Linear(2, 1)
    manager = ControllerManager({"actor": actor})
    manager.freeze("actor")
    assert not actor(torch.ones(1, 2)).requires_grad
    manager.freeze("actor", is_frozen=False)
    assert actor(torch.ones(1, 2)).requires_grad
    with pytest.raises(ReverieError, match=r"controller\.critic"):
        manager.freeze("critic")


def test_the_manager_saves_parameters_and_holds_the_rest() -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    manager = ControllerManager({"actor": one, "planner": Counting(0)})
    state = manager.get_state()
    assert list(manager) == ["actor", "planner"]
    assert state["modules"].keys() == {"actor"}
    one.weight.data.zero_()
    restored = ControllerManager({"actor": other, "planner": Counting(1)})
    restored.set_state(state)
    assert torch.equal(other.weight, state["modules"]["actor"]["weight"])
    assert other.weight.any(), "the state is a copy of what was, not a view of what is"


def test_a_frozen_controller_comes_back_frozen_and_its_slow_copy_never_learns() -> None:
    def manager() -> ControllerManager:
        critic = nn.ModuleDict({"online": nn.Linear(2, 1), "slow": nn.Linear(2, 1).requires_grad_(False)})
        return ControllerManager({"critic": critic})

    def learning(one: ControllerManager) -> list[bool]:
        return [parameter.requires_grad for parameter in one.modules()["critic"].parameters()]

    first, second = manager(), manager()
    first.freeze("critic")
    second.set_state(first.get_state())
    assert learning(second) == [False] * 4
    second.freeze("critic", is_frozen=False)
    assert learning(second) == [True, True, False, False]


def test_the_optimiser_leaves_a_frozen_parameter_where_it_is() -> None:
    moving, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = LaProp({"a": moving, "b": frozen}, learning_rate=0.1, warmup_updates=0)
    optimizer.step((moving.square() + frozen.square()).sum())
    kept = frozen.detach().clone()
    frozen.requires_grad_(False)
    before = moving.detach().clone()
    optimizer.step((moving.square() + frozen.square()).sum())
    assert torch.equal(frozen, kept), "not even by the momentum of the first step"
    assert not torch.equal(moving, before)
