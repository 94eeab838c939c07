"""The grammar of ``training.phases``: what is read, and what every mistake is told."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from reverie.orchestration.phases import BatchSpec, HookSpec, PhaseSpec, parse_phases
from reverie.types import ReverieError


def update(size: int = 2, length: int = 4, name: str = "update") -> dict[str, Any]:
    return {name: {"batch": {"size": size, "length": length}}}


def online(**keys: Any) -> dict[str, Any]:
    phase = {"name": "learn", "type": "online", "buffer": "replay", "workflow_hooks": ["collect", update()]}
    return phase | ({} if any(key.startswith("duration") for key in keys) else {"duration_steps": 10}) | keys


def test_a_full_phase_is_parsed() -> None:
    hooks = ["collect", {"update": {"batch": {"size": 8, "length": 16, "sampler": "fresh_first"}}}, "evaluate"]
    (phase,) = parse_phases([online(duration_steps=1e4, train_ratio=0.1, controller="actor", workflow_hooks=hooks)])
    assert phase == PhaseSpec(
        name="learn",
        type="online",
        buffer="replay",
        duration_steps=10_000,
        train_ratio=Fraction(1, 10),
        controller="actor",
        hooks=(HookSpec("collect"), HookSpec("update", BatchSpec(8, 16, "fresh_first")), HookSpec("evaluate")),
    )
    assert [hook.kind for hook in phase.hooks] == ["collect", "update", "evaluate"]


def test_repeats_are_unrolled_with_the_outer_number_first() -> None:
    inner = {"repeat": 2, "phases": [online(name="b")]}
    phases = parse_phases([online(name="start"), {"repeat": 2, "phases": [online(name="a"), inner]}])
    assert [phase.name for phase in phases] == ["start", "a#1", "b#1#1", "b#1#2", "a#2", "b#2#1", "b#2#2"]


def test_a_null_takes_a_key_back() -> None:
    (phase,) = parse_phases([online(duration_steps=None, duration_updates=3, train_ratio=None)])
    assert (phase.duration_steps, phase.duration_updates, phase.train_ratio) == (None, 3, None)


OFFLINE = {"name": "fit", "type": "offline", "buffer": "replay", "workflow_hooks": [update()], "duration_updates": 1}
EVAL = {"name": "test", "type": "eval_only", "workflow_hooks": ["evaluate"], "duration_cycles": 1}
ROOT = "training.phases"

MISTAKES = {
    "unknown key": ([online(train_ration=4)], f"{ROOT}[0].train_ration", "'train_ratio'"),
    "no duration": ([online(duration_steps=None)], f"{ROOT}[0]", "found none"),
    "two durations": (
        [online(duration_steps=1, duration_cycles=1)],
        f"{ROOT}[0]",
        "duration_steps and duration_cycles",
    ),
    "duration below zero": ([online(duration_steps=-1)], f"{ROOT}[0].duration_steps", "at least 0"),
    "duration text": ([online(duration_steps="9")], f"{ROOT}[0].duration_steps", "whole number"),
    "duration bool": ([online(duration_steps=True)], f"{ROOT}[0].duration_steps", "whole number"),
    "duration part": ([online(duration_steps=1.5)], f"{ROOT}[0].duration_steps", "whole number"),
    "unknown type": ([online(type="onlin")], f"{ROOT}[0].type", "'online'"),
    "no type": ([online(type=None)], f"{ROOT}[0].type", "missing"),
    "no name": ([online(name=None)], f"{ROOT}[0].name", "missing"),
    "number as name": ([online(name=3)], f"{ROOT}[0].name", "expected a name"),
    "no hooks": ([online(workflow_hooks=[])], f"{ROOT}[0].workflow_hooks", "list"),
    "online without collect": ([online(workflow_hooks=["colect"])], f"{ROOT}[0].workflow_hooks", "'colect'"),
    "collect twice": ([online(workflow_hooks=["collect", "collect"])], f"{ROOT}[0].workflow_hooks", "2 times"),
    "offline collects": ([OFFLINE | {"workflow_hooks": ["collect", update()]}], f"{ROOT}[0].workflow_hooks", "offline"),
    "eval_only updates": ([EVAL | {"workflow_hooks": ["evaluate", "fit"]}], f"{ROOT}[0].workflow_hooks", "'fit'"),
    "eval_only collects": ([EVAL | {"workflow_hooks": ["collect"]}], f"{ROOT}[0].workflow_hooks", "'collect'"),
    "steps without collect": (
        [OFFLINE | {"duration_updates": None, "duration_steps": 5}],
        f"{ROOT}[0].duration_steps",
        "never collects",
    ),
    "updates without update": (
        [online(duration_updates=5, workflow_hooks=["collect", "evaluate"])],
        f"{ROOT}[0].duration_updates",
        "no hook",
    ),
    "ratio zero": ([online(train_ratio=0)], f"{ROOT}[0].train_ratio", "above 0"),
    "ratio infinite": ([online(train_ratio=float("inf"))], f"{ROOT}[0].train_ratio", "above 0"),
    "ratio text": ([online(train_ratio="64")], f"{ROOT}[0].train_ratio", "a number"),
    "ratio without batch": (
        [online(train_ratio=4, workflow_hooks=["collect", "update"])],
        f"{ROOT}[0].train_ratio",
        "with a batch",
    ),
    "ratio without collect": ([OFFLINE | {"train_ratio": 4}], f"{ROOT}[0].train_ratio", "'collect'"),
    "batch without length": (
        [online(workflow_hooks=["collect", {"update": {"batch": {"size": 4}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.batch.length",
        "missing",
    ),
    "batch without size": (
        [online(workflow_hooks=["collect", {"update": {"batch": {"length": 4}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.batch.size",
        "missing",
    ),
    "batch key": (
        [online(workflow_hooks=["collect", {"update": {"batch": {"size": 4, "length": 2, "samplr": "x"}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.batch.samplr",
        "'sampler'",
    ),
    "fraction above one": (
        [online(workflow_hooks=["collect", {"update": {"batch": {"size": 4, "length": 2, "sampler": {"recent": 2}}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.batch.sampler.recent",
        "fraction",
    ),
    "fractions that do not fill a batch": (
        [online(workflow_hooks=["collect", {"update": {"batch": {"size": 4, "length": 2, "sampler": {"a": 0.4}}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.batch.sampler",
        "add up to 1, found 0.4",
    ),
    "crossing by a word": (
        [online(workflow_hooks=["collect", {"update": {"batch": {"size": 4, "length": 2, "crosses_episodes": "no"}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.batch.crosses_episodes",
        "true or false",
    ),
    "start of a ratio": ([online(train_ratio=4, ratio_from="now")], f"{ROOT}[0].ratio_from", "one of start, ready"),
    "start of no ratio": ([online(ratio_from="ready")], f"{ROOT}[0].ratio_from", "no train_ratio"),
    "hook option": (
        [online(workflow_hooks=["collect", {"update": {"bach": {}}}])],
        f"{ROOT}[0].workflow_hooks[1].update.bach",
        "'batch'",
    ),
    "hook empty": (
        [online(workflow_hooks=["collect", {"update": None}])],
        f"{ROOT}[0].workflow_hooks[1].update",
        "keys",
    ),
    "two hooks in one": ([online(workflow_hooks=[{"a": {}, "b": {}}])], f"{ROOT}[0].workflow_hooks[0]", "2 keys"),
    "collect with batch": (
        [online(workflow_hooks=[update(name="collect")])],
        f"{ROOT}[0].workflow_hooks[0]",
        "takes no options",
    ),
    "private hook": ([online(workflow_hooks=["collect", "_step"])], f"{ROOT}[0].workflow_hooks[1]", "'_step'"),
    "batch without buffer": ([online(buffer=None)], f"{ROOT}[0].buffer", "name the buffer"),
    "offline batch without buffer": ([OFFLINE | {"buffer": None}], f"{ROOT}[0].buffer", "name the buffer"),
    "same name": ([online(), online()], ROOT, "two phases are called 'learn'"),
    "empty": ([], ROOT, "at least one"),
    "no list": ({"name": "x"}, ROOT, "list"),
    "no mapping": (["collect"], f"{ROOT}[0]", "keys with values"),
    "repeat zero": ([{"repeat": 0, "phases": [online()]}], f"{ROOT}[0].repeat", "at least 1"),
    "repeat of nothing": ([{"repeat": 2}], f"{ROOT}[0].phases", "missing"),
    "repeat of an empty list": ([{"repeat": 2, "phases": []}], f"{ROOT}[0].phases", "at least one"),
    "phases without repeat": ([{"phases": [online()]}], f"{ROOT}[0].repeat", "missing"),
    "repeat key": ([{"repeat": 2, "phases": [online()], "name": "x"}], f"{ROOT}[0].name", "unknown key"),
    "inside a repeat": ([{"repeat": 2, "phases": [online(typ="x")]}], f"{ROOT}[0].phases[0].typ", "'type'"),
}


def test_a_sampler_may_be_a_mixture() -> None:
    batch = {"size": 4, "length": 2, "sampler": {"uniform": 0.75, "recent": 0.25}, "crosses_episodes": False}
    (phase,) = parse_phases([online(workflow_hooks=["collect", {"update": {"batch": batch}}])])
    found = phase.hooks[1].batch
    assert found is not None
    assert found.sampler == (("uniform", 0.75), ("recent", 0.25))
    assert found.samplers == ("uniform", "recent")
    assert not found.crosses_episodes


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_its_key_and_what_was_expected(case: str) -> None:
    items, path, words = MISTAKES[case]
    with pytest.raises(ReverieError) as raised:
        parse_phases(items)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert message.endswith(".")
    assert "\n" not in message
