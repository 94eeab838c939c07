"""Every workflow of the package: it runs, and a second instance with its state goes on bit-equally."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pkgutil
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import reverie.workflows
from reverie.buffers.base import Sampler
from reverie.build import assemble, phases_of
from reverie.commands.catalogue import CONFIGS, options
from reverie.orchestration.parts import Parts
from reverie.types import Phase, ReverieError, Stateful
from reverie.workflows.base import UpdateResult, WorldModelWorkflow

CPU = torch.device("cpu")
STEPS = 20
OG_WM = "reverie.workflows.og_wm.OgWm"
_BATCH = "{batch: {size: 4, length: 5, sampler: sweep}}"
_HOOKS = f"collect, {{converge_vae: {_BATCH}}}, {{encode: {_BATCH}}}, {{converge_mdn: {_BATCH}}}, evolve"
OF_PICTURES = {
    OG_WM: (
        "og_wm_dream",
        "environment.num_envs=4",
        "training.phases=[{name: all, type: online, buffer: replay, controller: population, duration_steps: 80, "
        f"workflow_hooks: [{_HOOKS}]}}]",
        "controller.population={population: 8, episodes: 1, mean_every: 1, mean_episodes: 4}",
    )
}
"""Workflows that read pictures: an experiment, and one phase in which they do all that they can at once."""
TASKS = ("gym_CartPole-v1", "gym_Pendulum-v1")


def concrete_workflows() -> dict[str, type[WorldModelWorkflow]]:
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(reverie.workflows.__path__, "reverie.workflows.")
    ]
    classes = [value for module in modules for value in vars(module).values() if inspect.isclass(value)]
    return {
        f"{cls.__module__}.{cls.__name__}": cls
        for cls in classes
        if issubclass(cls, WorldModelWorkflow) and not inspect.isabstract(cls)
    }


WORKFLOWS = concrete_workflows()


def composed(experiment: str, *more: str) -> Any:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        overrides = [f"experiment={experiment}", "size=debug", "evaluation.episodes=1", *more]
        config = compose("config", overrides=overrides)
    OmegaConf.set_struct(config, False)
    return config


@functools.cache
def experiment_of(target: str) -> str:
    """The packaged experiment on a small task that runs this workflow; a workflow without one fails here."""
    if target in OF_PICTURES:
        return OF_PICTURES[target][0]
    names = [name for name in options("experiment") if name.endswith(("_cartpole", "_pendulum"))]
    return next(name for name in names if composed(name).workflow._target_ == target)


MIDST = 0.5
"""Progress of a phase after its first step, and where a state was taken."""


class Run:
    """A workflow driven by hand through the phase of its experiment in which it collects and learns, if there is one,
    with small batches.
    """

    def __init__(
        self, target: str, *overrides: str, sampler: Sampler | None = None, experiment: str | None = None
    ) -> None:
        config = composed(experiment or experiment_of(target), *OF_PICTURES.get(target, ())[1:], *overrides)
        self.parts: Parts = assemble(config, device=CPU, allow=None)
        self.workflow = self.parts.workflow
        collecting = [spec for spec in phases_of(config) if spec.has_hook("collect")]
        self.spec = next((spec for spec in collecting if spec.has_hook("update")), collecting[0])
        batches = [hook.batch for hook in self.spec.hooks if hook.batch is not None]
        self.sampler = sampler or (batches[0].sampler if batches else "uniform")
        self.crosses = sampler is None and all(batch.crosses_episodes for batch in batches)
        self.phase = Phase(
            name=self.spec.name, type=self.spec.type, progress=torch.zeros(()), controller=self.spec.controller
        )
        assert self.spec.buffer is not None
        self.buffer = self.parts.buffers[self.spec.buffer]
        self.results: list[UpdateResult] = []

    def go(self, steps: int) -> None:
        for step in range(steps):
            self.buffer.append(self.workflow.collect_step(step, phase=self.phase).trajectory)
            for hook in self.spec.hooks:
                if hook.kind == "update" and hook.batch is None:
                    self.results.append(getattr(self.workflow, hook.name)(phase=self.phase))
                elif hook.kind == "update":
                    self._update(hook.name)
            self.phase.progress.fill_(MIDST)

    def _update(self, name: str) -> None:
        size, length = 4, 5 + self.workflow.context_rows
        if self.buffer.can_sample(size, length, crosses_episodes=self.crosses):
            batch = self.buffer.sample(size, length, sampler=self.sampler, crosses_episodes=self.crosses)
            result = getattr(self.workflow, name)(batch, phase=self.phase)
            self.results.append(result)
            if result.write_back is not None:
                self.buffer.write_back(batch.index, result.write_back)
            if "prioritized" in self.sampler:
                assert result.priorities is not None
                self.buffer.prioritize(batch.index, result.priorities, crosses_episodes=self.crosses)

    def owners(self) -> dict[str, Stateful]:
        return {
            "rng": self.parts.rng,
            "env": self.parts.train_env,
            "workflow": self.workflow,
            "buffer": self.buffer,
        }

    def get_state(self) -> dict[str, Any]:
        return {name: copy.deepcopy(owner.get_state()) for name, owner in self.owners().items()}

    def set_state(self, state: dict[str, Any], *, without: str | None = None) -> None:
        for name, owner in self.owners().items():
            if name != without:
                owner.set_state(copy.deepcopy(state[name]))
        self.phase.progress.fill_(MIDST)

    def close(self) -> None:
        self.parts.train_env.close()
        self.parts.evaluator.close()


def leaves(tree: Any, path: str = "") -> dict[str, bytes]:
    """Every array and number of a state, as bytes."""
    if isinstance(tree, dict):
        return {key: value for name, part in tree.items() for key, value in leaves(part, f"{path}/{name}").items()}
    if isinstance(tree, list):
        return leaves(dict(enumerate(tree)), path)
    if isinstance(tree, torch.Tensor):
        return {path: tree.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()}
    return {path: tree.tobytes() if isinstance(tree, np.ndarray) else repr(tree).encode()}


def test_the_walk_finds_the_workflows() -> None:
    known = ("dreamer.Dreamer", "random_policy.RandomPolicyWorkflow", "tdmpc.Tdmpc")
    assert {f"reverie.workflows.{name}" for name in known} <= set(WORKFLOWS)


CASES = [(one, task) for one in WORKFLOWS for task in (("builtin_survival",) if one in OF_PICTURES else TASKS)]


@pytest.mark.parametrize(("target", "task"), CASES)
def test_twenty_steps_and_the_same_twenty_in_a_second_instance(target: str, task: str) -> None:
    """With discrete and with continuous actions."""
    expect_the_same(Run(target, f"task={task}"), Run(target, f"task={task}"))


@pytest.mark.parametrize("form", ["v1", "v2", "v3_2023"])
def test_every_form_of_dreamer_goes_on_bit_equally(form: str) -> None:
    """With several optimisers, a counted target critic, and gradients through the dynamics."""
    chosen = [f"{group}=dreamer_{form}" for group in ("components", "controller", "workflow")]
    runs = [Run("reverie.workflows.dreamer.Dreamer", *chosen, "task=gym_Pendulum-v1") for _ in range(2)]
    expect_the_same(*runs)


_TWO = "environment.simulator.tasks=[gym_Pendulum-v1,gym_MountainCarContinuous-v0]"
FORMS_OF_TDMPC = {
    "the first": ("components=tdmpc1", "controller=tdmpc1", "workflow=tdmpc1", "training.sampler=prioritized"),
    "several tasks": ("components=tdmpc2_multitask", "environment=multitask", "task=multitask_small", _TWO),
}


@pytest.mark.parametrize("form", FORMS_OF_TDMPC)
def test_every_form_of_tdmpc_goes_on_bit_equally(form: str) -> None:
    """With counted schedules and weights of prioritised draws; with embeddings, masks and another task each episode."""
    small = ("buffer.replay.importance_exponent=0.4", "controller.planner.iterations=2", *FORMS_OF_TDMPC[form])
    sampler = "prioritized" if form == "the first" else None
    target, experiment = "reverie.workflows.tdmpc.Tdmpc", "tdmpc_pendulum"
    expect_the_same(*(Run(target, *small, sampler=sampler, experiment=experiment) for _ in range(2)))


@pytest.mark.parametrize("target", [name for name, one in WORKFLOWS.items() if one.gives_priorities])
def test_priorities_go_on_bit_equally(target: str) -> None:
    runs = [Run(target, sampler="prioritized") for _ in range(2)]
    expect_the_same(*runs)


def test_sequences_that_a_workflow_cannot_learn_from_are_refused_in_a_sentence() -> None:
    target = "reverie.workflows.tdmpc.Tdmpc"
    with pytest.raises(ReverieError, match=r"training\.crosses_episodes=false"):
        Run(target, "training.crosses_episodes=true")


def expect_the_same(one: Run, other: Run) -> None:
    one.go(STEPS)
    assert len(one.buffer) == STEPS * one.parts.train_env.num_envs
    other.set_state(one.get_state())
    assert leaves(one.get_state()) == leaves(other.get_state())
    one.results.clear()
    one.go(STEPS)
    other.go(STEPS)
    assert leaves(one.get_state()) == leaves(other.get_state())
    for ours, theirs in zip(one.results, other.results, strict=True):
        assert leaves(ours.metrics) == leaves(theirs.metrics)
    one.close()
    other.close()


@pytest.mark.parametrize("target", WORKFLOWS)
@pytest.mark.parametrize("forgotten", ["rng", "env"])
def test_a_part_that_is_not_restored_shows(target: str, forgotten: str) -> None:
    one, other = Run(target), Run(target)
    one.go(STEPS)
    other.set_state(one.get_state(), without=forgotten)
    one.go(STEPS)
    other.go(STEPS)
    assert leaves(one.get_state()["buffer"]) != leaves(other.get_state()["buffer"])
    one.close()
    other.close()


@pytest.mark.parametrize("target", WORKFLOWS)
def test_updates_leave_finite_metrics_without_gradients(target: str) -> None:
    run = Run(target)
    run.go(STEPS)
    has_updates = any(hook.kind == "update" for hook in run.spec.hooks)
    assert bool(run.results) == has_updates
    for result in run.results:
        assert all(value.dim() == 0 and not value.requires_grad for value in result.metrics.values())
        assert all(bool(value.isfinite()) for value in result.metrics.values())
    run.close()


@pytest.mark.parametrize("target", WORKFLOWS)
def test_the_global_generator_is_left_alone(target: str) -> None:
    run = Run(target)
    before = torch.get_rng_state()
    run.go(STEPS)
    assert torch.equal(torch.get_rng_state(), before)
    run.close()


@pytest.mark.parametrize("target", WORKFLOWS)
def test_an_unknown_controller_is_refused_before_anything_acts(target: str) -> None:
    run = Run(target)
    with pytest.raises(ReverieError, match=r"`controller\.nobody`"):
        run.workflow.policy("nobody")
    run.close()
