"""What the documents say is true: links lead somewhere, shown commands parse, named keys, paths and metrics exist."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from reverie import build, cli, configuration
from reverie.commands import train_arguments
from reverie.commands.catalogue import CONFIGS, GROUPS, options
from reverie.orchestration.evaluator import EvaluationConfig
from reverie.orchestration.logger import LoggingConfig
from reverie.orchestration.phases import parse_phases
from reverie.runtime.device import RuntimeConfig
from reverie.types import Phase, ReverieError
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.tdmpc import Tdmpc

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
GUIDE = ROOT / "docs/guides/configuration.md"
DREAMER = ROOT / "docs/algorithms/dreamer.md"
TDMPC = ROOT / "docs/algorithms/tdmpc.md"
SECTION_CLASSES: dict[str, type[Any]] = {
    "experiment": build.ExperimentConfig,
    "evaluation": EvaluationConfig,
    "logging": LoggingConfig,
    "size": build.SizeConfig,
    "runtime": RuntimeConfig,
}
GENERAL_SECTIONS = ("experiment", "task", "logdir", "training", "environment", "evaluation", "checkpoint", "logging")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def shown_commands() -> list[tuple[str, list[str]]]:
    """Every `reverie ...` line of a shell block, with its document, as arguments."""
    found = []
    for path in DOCUMENTS:
        for block in blocks(path, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0] in ("reverie", "./reverie"):
                    found.append((relative(path), words[1:]))
    return found


COMMANDS = shown_commands()


def composed(overrides: Sequence[str], config_dir: Path | None = None) -> DictConfig:
    GlobalHydra.instance().clear()
    search = [f"hydra.searchpath=['file://{config_dir}']"] if config_dir else []
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", overrides=[*search, *overrides])


def single_run(overrides: Sequence[str]) -> list[str]:
    """The first run of a multirun."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [
        f"{item.get_key_element()}={next(item.sweep_string_iterator())}"
        if item.is_sweep_override()
        else str(item.input_line)
        for item in parsed
    ]


def check_values(config: DictConfig) -> None:
    """What can be checked without making the environment."""
    configuration.check_sections(config)
    for name, kind in SECTION_CLASSES.items():
        configuration.section(kind, config[name], path=name)
    build.phases_of(config)


def own_configs(folder: Path) -> Path:
    """The config files that the guide shows, written below ``folder``."""
    pattern = r"`my_configs/([\w/]+\.yaml)`:\n\n```yaml\n(.*?)^```"
    found = re.findall(pattern, GUIDE.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert found, "the guide shows no config file"
    for name, text in found:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def tables(path: Path, first_heading: str) -> list[list[list[str]]]:
    """The rows of every table whose first column has this heading, as cells."""
    found: list[list[list[str]]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for index, line in enumerate(lines):
        if line.startswith(f"| {first_heading} |"):
            rows: list[list[str]] = []
            for row in lines[index + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            found.append(rows)
    return found


def first_cells(path: Path, heading: str) -> list[str]:
    names = [row[0].strip("`") for rows in tables(path, heading) for row in rows]
    assert names, f"{relative(path)} has no table with the first heading {heading!r}"
    return names


def leaves(node: object, path: str = "") -> Iterator[str]:
    if isinstance(node, Mapping) and node and "_target_" not in node:
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path


def tree_paths() -> list[str]:
    """Every path of the tree in ARCHITECTURE.md, by its indentation."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tree = re.search(r"## Every file\n\n```\n(.*?)^```", text, flags=re.M | re.S)
    assert tree, "ARCHITECTURE.md has no tree of files"
    paths: list[str] = []
    parents: list[str] = []
    for line in tree[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        paths.append("".join(parents[:depth]) + name)
        parents[depth:] = [name]
    return paths


def test_documents_and_commands_were_found() -> None:
    assert {"README.md", "ARCHITECTURE.md", "CHANGELOG.md"} <= {relative(path) for path in DOCUMENTS}
    assert {words[0] for _, words in COMMANDS} == {
        *("train", "plan", "bench", "resume", "eval", "record", "data", "replay-update", "tasks", "doctor"),
        *("env", "test"),
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_relative_links_resolve(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{relative(path)} links to {target}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.M)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{relative(path)} links to {target}, but there is no such heading"


def test_the_source_tree_names_what_exists_and_all_of_the_package() -> None:
    paths = tree_paths()
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = {relative(file) for file in (ROOT / "src/reverie").rglob("*.py") if not file.name.startswith("__")}
    assert modules - set(paths) == set()


@pytest.mark.parametrize(
    ("document", "words"),
    [(document, words[1:]) for document, words in COMMANDS if words[0] == "train"],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_shown_train_commands_compose(document: str, words: list[str], tmp_path: Path) -> None:
    flags, overrides = train_arguments.split_arguments(words)
    named = train_arguments.config_dir(flags)
    config_dir = own_configs(tmp_path) if named else None
    is_multirun = "--multirun" in flags
    overrides = train_arguments.with_habits(overrides, is_multirun=is_multirun, own_configs=config_dir)
    config = composed(single_run(overrides), config_dir)
    check_values(config)
    if "--resolve" in flags:
        configuration.plain(config)


def test_shown_plan_commands_compose() -> None:
    shown = [(document, words[1:]) for document, words in COMMANDS if words[0] == "plan"]
    assert len(shown) > 2
    for _, words in shown:
        settings = itertools.takewhile(lambda word: not word.startswith("-"), words)
        overrides = [word if "=" in word else f"experiment={word}" for word in settings]
        check_values(composed(train_arguments.with_habits(overrides, is_multirun=False, own_configs=None)))


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("experiment=nothing", "experiment/nothing"),
        ("evaluation.episode=3", "evaluation.episode"),
        ("+trainings.x=1", "unknown key `trainings`"),
        ("experiment.seed=x", "must be an integer"),
        ("training.batch_size=0", "at least 1"),
    ],
)
def test_a_wrong_command_would_be_found(override: str, complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        check_values(composed([override]))


@pytest.mark.parametrize(
    ("document", "words"),
    [(document, words) for document, words in COMMANDS if words[0] in ("resume", "eval")],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_shown_run_commands_parse(
    document: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert "is not a run folder" in capsys.readouterr().err, "the arguments were not understood"
    overrides = [word for word in words if "=" in word]
    stored: Any = OmegaConf.to_container(composed([]))
    changed = configuration.with_overrides(stored, overrides)
    configuration.refuse_different_config(stored, changed, where="here")
    assert bool(overrides) == (changed != stored)


def test_the_other_shown_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for document, words in COMMANDS:
        if words[0] in ("plan", "bench", "record", "data", "replay-update", "tasks", "doctor", "env", "test"):
            command = words[: 2 if words[0] in ("env", "data") else 1]
            assert cli.main([*command, "--help"]) == 0
            described = capsys.readouterr().out
            unknown = [word for word in words[1:] if word.startswith("--") and word not in described]
            assert not unknown, f"{document} shows {' '.join(words)}"
        if words[0] == "tasks":
            assert cli.main(words) == 0
            assert capsys.readouterr().out.count("\n") > 1


@pytest.mark.parametrize("path", [GUIDE, DREAMER], ids=relative)
def test_documented_keys_exist(path: Path) -> None:
    config = composed([])
    missing = [
        key
        for key in first_cells(path, "key")
        if OmegaConf.select(config, key, default=config, throw_on_missing=False) is config
    ]
    assert missing == []


def has_key(config: Any, key: str) -> bool:
    return OmegaConf.select(config, key, default=config) is not config


def test_documented_keys_of_tdmpc_exist_and_none_is_missing() -> None:
    config = composed(["experiment=tdmpc_pendulum"])
    documented = first_cells(TDMPC, "key")
    forms = [config, *(composed([f"experiment={name}"]) for name in ("tdmpc1_dmc", "tdmpc_multitask"))]
    assert [key for key in documented if not any(has_key(one, key) for one in forms)] == []
    names = {
        f"{part}.{key}"
        for part in ("workflow", "optimizers.model", "controller.planner")
        for key in OmegaConf.select(config, part)
    }
    names -= {"controller.planner.search"}
    assert {name for name in names if not name.rpartition(".")[2].startswith("_")} <= set(documented)


def test_every_general_key_is_documented() -> None:
    config: Any = OmegaConf.to_container(composed([]))
    config = {name: config[name] for name in (*GENERAL_SECTIONS, "runtime")}
    assert set(leaves(config)) == set(first_cells(GUIDE, "key"))


def test_every_option_of_the_workflow_and_its_optimiser_is_documented() -> None:
    config: Any = OmegaConf.to_container(composed([]))
    names = {f"workflow.{key}" for key in config["workflow"]} | {
        f"optimizers.model.{key}" for key in config["optimizers"]["model"]
    }
    assert {name for name in names if not name.rpartition(".")[2].startswith("_")} <= set(first_cells(DREAMER, "key"))


def test_the_table_of_groups_is_complete() -> None:
    (rows,) = tables(GUIDE, "group")
    listed = {row[0].strip("`"): set(re.findall(r"`([^`]+)`", row[1])) for row in rows}
    assert sorted(listed) == sorted(GROUPS)
    for group, names in listed.items():
        assert names == set(options(group)) or group == "size", f"the choices of {group}"


def test_the_table_of_sizes_is_true() -> None:
    assert set(first_cells(GUIDE, "size")) == set(options("size"))
    headings = [line for line in GUIDE.read_text().splitlines() if line.startswith("| size |")]
    for heading, rows in zip(headings, tables(GUIDE, "size"), strict=True):
        names = re.findall(r"`(\w+)`", heading)
        for row in rows:
            size: Any = OmegaConf.load(CONFIGS / "size" / f"{row[0].strip('`')}.yaml")
            assert [str(size[name]) for name in names] == row[1:-1]


def test_documented_phase_and_batch_keys_are_those_of_the_parser() -> None:
    with pytest.raises(ReverieError, match="unknown key") as phase:
        parse_phases([{"nonsense": 1}])
    with pytest.raises(ReverieError, match="unknown key") as batch:
        parse_phases(
            [
                {
                    "name": "x",
                    "type": "offline",
                    "duration_cycles": 1,
                    "workflow_hooks": [{"u": {"batch": {"nonsense": 1}}}],
                }
            ]
        )
    assert {*known_keys(phase.value), "repeat", "phases"} == set(first_cells(GUIDE, "phase key"))
    assert known_keys(batch.value) == first_cells(GUIDE, "batch key")


def known_keys(error: BaseException) -> list[str]:
    return str(error).rpartition("expected one of ")[2].rstrip(".").split(", ")


def test_the_phases_shown_in_the_guide_parse() -> None:
    shown = [block for block in blocks(GUIDE, "yaml") if block.startswith("# training.phases")]
    for block in shown:
        phases: Any = OmegaConf.to_container(OmegaConf.create(block))
        assert len(parse_phases(phases)) == 2
    assert shown


def updated_metrics(*overrides: str) -> set[str]:
    """The names of what an update says, of the default experiment unless another is named."""
    config = composed(["size=debug", "buffer.replay.capacity=1000", *overrides])
    OmegaConf.set_struct(config, False)
    parts = build.assemble(config, device=torch.device("cpu"), allow=None)
    phase = Phase(name="learn", type="online", progress=torch.zeros(()))
    for step in range(12):
        parts.buffers["replay"].append(parts.workflow.collect_step(step, phase=phase).trajectory)
    batch = parts.buffers["replay"].sample(2, 4 + parts.workflow.context_rows, sampler="uniform")
    assert isinstance(parts.workflow, Dreamer | Tdmpc)
    result = parts.workflow.update(batch, phase=phase)
    return {f"train/{name}" for name in result.metrics}


def test_documented_metrics_are_those_of_an_update() -> None:
    assert updated_metrics() == set(first_cells(DREAMER, "metric"))


def test_documented_metrics_of_tdmpc() -> None:
    plain = updated_metrics("experiment=tdmpc_pendulum")
    assert plain == set(first_cells(TDMPC, "metric"))
    episodic = updated_metrics("experiment=tdmpc_pendulum", "workflow.episodic=true")
    assert episodic - plain == set(first_cells(TDMPC, "extra metric"))


@pytest.mark.parametrize("form", ["v2", "v3_2023"])
def test_documented_metrics_of_other_forms(form: str) -> None:
    found = updated_metrics(*(f"{group}=dreamer_{form}" for group in ("components", "controller", "workflow")))
    assert found - set(first_cells(DREAMER, "metric")) == set(first_cells(DREAMER, "extra metric"))
