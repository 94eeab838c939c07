"""Config to objects: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from reverie import configuration as conf
from reverie.node_walk import CheckWalk
from reverie.targets import foreign_packages
from reverie.types import ReverieError, Space

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    mode: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    capacity: int
    rate: float = 0.5
    is_on: bool = True
    name: str | None = None
    folder: Path = Path()
    weights: Mapping[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None

    def __post_init__(self) -> None:
        if self.capacity == 0:
            raise ValueError("capacity (0) must be positive")


class Part:
    """Stands for a component: what it was called with is all it knows."""

    def __init__(
        self, *, width: int, spaces: Any = None, child: Part | None = None, config: Inner | None = None
    ) -> None:
        self.width, self.spaces, self.child, self.config = width, spaces, child, config


def refusal(call: Any) -> str:
    with pytest.raises(ReverieError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of the user's own that holds ``Part`` and, by an import, the door to something else."""
    module = ModuleType("stranger")
    module.__dict__.update(Part=Part, os=sys.modules["os"], system=sys.modules["os"].system)
    monkeypatch.setitem(sys.modules, "stranger", module)
    monkeypatch.setattr(Part, "__module__", "stranger")
    return "stranger"


def test_section_converts_and_nests() -> None:
    node = OmegaConf.create(
        {"capacity": "${size}", "rate": 2, "folder": "x/y", "weights": {"a": 1}, "inner": {"sizes": [3]}, "size": 7}
    )
    del node["size"]
    with pytest.raises(ReverieError, match="`capacity`"):
        conf.section(Outer, node, path="buffer")
    node.capacity = 7
    made = conf.section(Outer, node, path="buffer")
    assert made == Outer(capacity=7, rate=2.0, folder=Path("x/y"), weights={"a": 1.0}, inner=Inner(sizes=(3,)))
    assert type(made.rate) is float
    assert type(made.inner.sizes) is tuple


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"capcity": 1}, "unknown key `b.capcity`: did you mean `b.capacity`?"),
        ({"capacity": "abc"}, "`b.capacity` must be an integer, got 'abc'"),
        ({"capacity": True}, "`b.capacity` must be an integer, got True"),
        ({"capacity": 1.5}, "`b.capacity` must be an integer, got 1.5"),
        ({"capacity": None}, "`b.capacity` must be an integer, got None"),
        ({}, "`b.capacity` is missing: it must be an integer"),
        ({"capacity": 1, "rate": False}, "`b.rate` must be a number, got False"),
        ({"capacity": 1, "is_on": 1}, "`b.is_on` must be true or false, got 1"),
        ({"capacity": 1, "name": 3}, "`b.name` must be text or null, got 3"),
        ({"capacity": 1, "folder": 3}, "`b.folder` must be a path, got 3"),
        ({"capacity": 1, "weights": {"a": "x"}}, "`b.weights.a` must be a number, got 'x'"),
        ({"capacity": 1, "weights": [1]}, "`b.weights` must be a mapping, each value a number, got [1]"),
        ({"capacity": 1, "inner": {"mode": "c"}}, "`b.inner.mode` must be one of 'a', 'b', got 'c'"),
        ({"capacity": 1, "inner": {"sizes": [1, "x"]}}, "`b.inner.sizes.1` must be an integer, got 'x'"),
        ({"capacity": 1, "inner": {"sizes": 3}}, "`b.inner.sizes` must be a list, each an integer, got 3"),
        ({"capacity": 1, "inner": 3}, "`b.inner` must be a mapping with the keys mode, sizes, got 3"),
        ({"capacity": 1, "maybe": {"mod": "a"}}, "unknown key `b.maybe.mod`: did you mean `b.maybe.mode`?"),
        ({"capacity": 0}, "`b`: capacity (0) must be positive"),
    ],
)
def test_section_refuses_in_words(node: dict[str, Any], sentence: str) -> None:
    assert refusal(lambda: conf.section(Outer, node, path="b")).startswith(sentence)


def checked(target: Callable[..., Any], given: dict[str, Any]) -> None:
    CheckWalk(allow=None).made(target, given, "p")


@pytest.mark.usefixtures("parts")
def test_arguments_are_checked_by_their_annotations() -> None:
    def target(*, net: Part, pair: tuple[int, str], rest: Sequence[int] = ()) -> None: ...

    good = {"net": {"_target_": "stranger.Part", "width": 1}, "pair": [1, "x"]}
    checked(target, good)
    assert "`p.net` must be" in refusal(lambda: checked(target, good | {"net": "abc"}))
    assert "`p.pair` must be a list of 2" in refusal(lambda: checked(target, good | {"pair": [1]}))
    assert "`p.rest` must be a list" in refusal(lambda: checked(target, good | {"rest": "abc"}))


def test_any_keyword_is_accepted_only_where_the_target_does() -> None:
    def takes_all(**kwargs: int) -> None: ...

    def takes_none() -> None: ...

    checked(takes_all, {"anything": 1})
    assert "(valid: none)" in refusal(lambda: checked(takes_none, {"anything": 1}))


def test_instantiate_makes_nested_nodes_dataclasses_and_partials(parts: str) -> None:
    spaces = Space(shape=(4,), dtype="float32")
    node = {
        "_target_": "stranger.Part",
        "width": 3,
        "child": {"_target_": "stranger.Part", "width": 4},
        "config": {"mode": "b"},
    }
    made = conf.instantiate(node, path="p", allow=[parts], spaces=spaces)
    assert (made.width, made.child.width, made.config) == (3, 4, Inner(mode="b"))
    assert made.spaces is spaces
    partial = conf.instantiate({"_target_": "stranger.Part", "_partial_": True}, path="p", allow=None)
    assert isinstance(partial, functools.partial)
    assert partial(width=5).width == 5


def test_nothing_is_called_before_everything_is_checked(parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(Part, "__init__", _recording(called))
    child = {"_target_": "stranger.Part", "width": 1}
    node = {"_target_": "stranger.Part", "child": child, "width": "wide"}
    assert "`p.width` must be an integer" in refusal(lambda: conf.instantiate(node, path="p", allow=[parts]))
    assert called == []
    conf.instantiate(node | {"width": 2}, path="p", allow=[parts])
    assert called == [1, 2]


def _recording(called: list[int]) -> Any:
    def __init__(self: Part, *, width: int, child: Part | None = None) -> None:  # noqa: N807 it replaces one
        called.append(width)

    return __init__


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"_target_": "os.system", "command": "true"}, "leads outside Reverie"),
        ({"_target_": "stranger.os.system", "command": "true"}, "leads outside Reverie"),
        ({"_target_": "stranger.system", "command": "true"}, "leads outside Reverie"),
        ({"_target_": "stranger_too.Part"}, "--allow stranger_too"),
        (
            {"_target_": "stranger.Part", "width": 1, "spaces": [{"deep": {"_target_": "os.getcwd"}}]},
            "`p.spaces.0.deep",
        ),
        ({"_target_": "reverie.commands.test.run", "arguments": []}, "which is no part for a config"),
        ({"_target_": "reverie.configuration.instantiate"}, "which is no part for a config"),
        ({"_target_": "reverie.types.np.save"}, "leads outside Reverie"),
        ({"_target_": "reverie.types.Spac"}, "did you mean `reverie.types.Space`?"),
        ({"_target_": "reverie.environments.gmy.X"}, "did you mean `reverie.environments.gym`?"),
        ({"_target_": "stranger.Prat"}, "did you mean `stranger.Part`?"),
        ({"_target_": "stranger"}, "must be a dotted name"),
        ({"_target_": 3}, "must be a dotted name"),
        ({"_target_": "stranger.Part", "width": 1, "_args_": [1]}, "`p._args_` is not supported"),
        ({"_target_": "stranger.Part", "width": 1, "_partial_": "yes"}, "`p._partial_` must be true or false"),
        ({"_target_": "stranger.Part"}, "`p.width` is missing"),
        ({"_target_": "stranger.Part", "width": 1, "widht": 2}, "did you mean `p.width`?"),
        ({"width": 1}, "must be a mapping with a `_target_`"),
    ],
)
@pytest.mark.usefixtures("parts")
def test_instantiate_refuses(node: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(lambda: conf.instantiate(node, path="p", allow=["stranger"]))


def test_the_user_may_not_set_what_reverie_fills_in(parts: str) -> None:
    node = {"_target_": "stranger.Part", "width": 1, "spaces": 2}
    assert "filled in by Reverie" in refusal(lambda: conf.instantiate(node, path="p", allow=[parts], spaces=1))


def test_a_target_whose_module_lacks_a_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    node = {"_target_": "needs_more.X"}
    assert "pip install surely_not_installed" in refusal(lambda: conf.instantiate(node, path="p", allow=None))


def test_a_target_without_a_signature_is_refused() -> None:
    node = {"_target_": "builtins.dict", "a": 1}
    assert "does not say which arguments" in refusal(lambda: conf.instantiate(node, path="p", allow=None))


def test_a_name_for_type_checkers_only_fits_everything() -> None:
    def target(*, width: int, other: Fraction | None = None) -> None: ...

    checked(target, {"width": 1, "other": "x"})
    assert "`p.width`" in refusal(lambda: checked(target, {"width": "x"}))


def test_a_stored_task_that_imports_a_package_needs_trust() -> None:
    conf.check_task("gym_CartPole-v1", allow=[])
    conf.check_task("gym:mine:Env-v0", allow=["mine"])
    assert "--allow mine" in refusal(lambda: conf.check_task("gym:mine:Env-v0", allow=["mi"]))


def test_unknown_sections_are_refused() -> None:
    conf.check_sections({"experiment": {}, "_dims": {}})
    assert "did you mean `buffer`?" in refusal(lambda: conf.check_sections({"bufer": 1}))


def test_missing_values_and_references_to_nowhere_are_sentences() -> None:
    assert refusal(lambda: conf.plain(OmegaConf.create({"task": "???"}))).startswith("`task` has no value")
    assert "cannot read `a`" in refusal(lambda: conf.plain(OmegaConf.create({"a": "${nope}"})))


RUN = {
    "experiment": {"seed": 1, "device": "cpu"},
    "training": {"total_timesteps": 10, "phases": [{"name": "a", "duration_steps": 10}]},
    "logging": {"every_steps": 5},
    "evaluation": {"episodes": 2},
}


def test_overrides_go_to_existing_places_only() -> None:
    changed = conf.with_overrides(
        RUN, ["training.phases.0.duration_steps=20", "training.phases[0].name=b", "logging={}"]
    )
    assert changed["training"]["phases"] == [{"name": "b", "duration_steps": 20}]
    assert changed["logging"] == {}
    assert RUN["training"]["phases"][0]["duration_steps"] == 10
    for override, sentence in {
        "experiment.sed=3": "did you mean `experiment.seed`?",
        "training.phases.1.name=x": "unknown key `training.phases.1`",
        "experiment.seed.x=3": "has no keys",
        "experiment.seed": "write key=value",
        "experiment.seed=[1": "not valid YAML",
    }.items():
        assert sentence in refusal(lambda override=override: conf.with_overrides(RUN, [override]))


@pytest.mark.parametrize(
    "override",
    [
        *("training.total_timesteps=20", "training.phases.0.duration_steps=20", "logging.every_steps=1"),
        "experiment.device=cuda",
    ],
)
def test_what_may_differ_on_resume(override: str) -> None:
    new = conf.with_overrides(RUN, [override])
    assert new != RUN
    conf.refuse_different_config(RUN, new, where="runs/x")


@pytest.mark.parametrize("override", ["experiment.seed=2", "evaluation.episodes=3", "training.phases.0.name=b"])
def test_what_may_not_differ_on_resume(override: str) -> None:
    new = conf.with_overrides(RUN, [override, "logging.every_steps=1"])
    text = refusal(lambda: conf.refuse_different_config(RUN, new, where="runs/x"))
    assert override.partition("=")[0] + ": " in text
    assert " -> " in text
    assert "every_steps" not in text


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": 1, "l": [1]}, {"b": 1, "l": [1, 2]}, "(a: 1 -> absent; l.1: absent -> 2; b: absent -> 1)"),
        ({"a": True}, {"a": 1}, "(a: True -> 1)"),
    ],
)
def test_absent_keys_and_longer_lists_differ(old: dict[str, Any], new: dict[str, Any], changes: str) -> None:
    assert changes in refusal(lambda: conf.refuse_different_config(old, new, where="runs/x"))


def test_look_alikes_of_keys_that_may_differ_may_not() -> None:
    assert not any(map(conf.may_differ, ["loggingx", "xlogging.a", "training.phases", "training.duration_steps"]))


_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("aé1.e-+: #'\"\n~", max_size=6)
)
_trees = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab1", min_size=1), inner)
)


@given(_trees)
def test_written_config_reads_back_equal(tree: Any) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        config = dict.fromkeys(conf.SECTIONS) | {"size": tree}
        (Path(folder) / "config.yaml").write_text(conf.config_text(config), encoding="utf-8")
        assert conf.read_config(Path(folder)) == config


@pytest.mark.parametrize("text", ["!!python/object/apply:os.getcwd []", "a: [", "3", "", "nonsense: 1", "\x00"])
def test_unreadable_configs_are_sentences(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert refusal(lambda: conf.read_config(tmp_path))
    assert "is not a run folder" in refusal(lambda: conf.read_config(tmp_path / "no"))


@pytest.mark.parametrize(
    ("size", "expected"), [("{a: '${oc.env:HOME}'}", "reference at `size.a`"), (None, "lacks size")]
)
def test_a_stored_config_is_whole_and_resolved(tmp_path: Path, size: str | None, expected: str) -> None:
    lines = [f"{name}: {size if name == 'size' else 'null'}" for name in conf.SECTIONS if size or name != "size"]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    assert expected in refusal(lambda: conf.read_config(tmp_path))


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert conf.section(Counted, {"steps": 1e6}, path="training").steps == 1_000_000
    with pytest.raises(ReverieError, match=r"`training\.steps` must be an integer, got 1\.5"):
        conf.section(Counted, {"steps": 1.5}, path="training")


@dataclass(frozen=True, kw_only=True)
class Counted:
    steps: int


def test_whoever_opens_a_run_is_told_what_to_trust() -> None:
    config = {
        "task": "gym:my_tasks.games:Maze-v0",
        "workflow": {"_target_": "lab.flows.Mine", "note": "lab.flows.Mine"},
        "components": [{"_target_": "reverie.buffers.base.Buffer"}, {"_target_": "lab.more.Other"}],
        "seed": 0,
    }
    assert foreign_packages(config) == ["my_tasks", "lab"]
