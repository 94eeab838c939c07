"""The commands as a person types them. Where training itself is not the point, a recorder stands in for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from reverie import session
from reverie.cli import main
from reverie.commands import test as test_command
from reverie.configuration import SECTIONS, config_text
from reverie.types import ReverieError

Sentence = Callable[..., str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[DictConfig]:
    """The configs that reach ``session.train``, which does nothing else."""
    configs: list[DictConfig] = []

    def train(config: DictConfig) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr(session, "train", train)
    return configs


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Sentence:
    """What a command that fails says: one line after the program's name, with exit code 2."""

    def said(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        err = capsys.readouterr().err
        assert err.startswith("reverie: ")
        assert err.count("\n") == 1
        return err

    return said


def test_help_and_version_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from reverie.cli import main\n"
        "commands = ['train', 'resume', 'eval', 'tasks', 'doctor', 'test']\n"
        "pages = [[], ['--help'], ['--version'], *([command, '--help'] for command in commands)]\n"
        "assert [main(page) for page in pages] == [0] * 9\n"
        "assert 'torch' not in sys.modules and 'hydra' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("examples:") == 7
    assert done.stdout.count("dreamer_cartpole") >= 6


def test_help_and_mistakes_name_the_command_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sentence: Sentence
) -> None:
    monkeypatch.setenv("REVERIE_COMMAND", "../checkout/reverie")
    for command in ([], ["train"], ["resume"], ["eval"], ["test"]):
        assert main([*command, "--help"]) == 0
        page = capsys.readouterr().out
        assert page.startswith(" ".join(["usage: ../checkout/reverie", *command]))
        assert not re.search(r"(?<!/)reverie (train|resume|eval|tasks|test)\b", page)
    assert "(see `../checkout/reverie train --help`)" in sentence("train", "--qqq")
    assert "(see `../checkout/reverie eval --help`)" in sentence("eval")


def test_the_help_lists_the_sizes_from_small_to_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "size=NAME" in line)
    listed = line.partition("size=NAME")[2].strip().split(", ")
    # Those of other forms of Dreamer stand between them, where their width puts them.
    sizes = ["debug", "tiny", "small", "1m", "12m", "25m", "50m", "100m", "200m", "400m"]
    assert [name for name in listed if name in sizes] == sizes


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "reverie", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_mistake_ends_the_process_with_code_2_and_one_line() -> None:
    command = [sys.executable, "-m", "reverie", "train", "experiment=dreamer_cartpol"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "did you mean 'dreamer_cartpole'? (available: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_plain_train_runs_the_default_and_leaves_nothing_behind(trained: list[DictConfig], folder: Path) -> None:
    assert main(["train"]) == 0
    assert [config.experiment.name for config in trained] == ["dreamer_cartpole"]
    assert "hydra" not in trained[0]
    assert list(folder.iterdir()) == []
    assert Path.cwd() == folder


def test_overrides_and_both_spellings_of_experiment(trained: list[DictConfig]) -> None:
    assert main(["train", "experiment=dreamer_cartpole", "experiment.seed=3", "size=debug"]) == 0
    assert main(["train", "+experiment=dreamer_cartpole", "experiment.seed=3", "size=debug"]) == 0
    assert trained[0] == trained[1]
    assert trained[0].experiment.seed == 3


@pytest.mark.parametrize("task", ["gym_Acrobot-v1", "gym:my_package:MyEnv-v0", "gym:my_package:My(odd),Env-v0"])
def test_a_task_brings_its_suite_whatever_its_name_contains(trained: list[DictConfig], task: str) -> None:
    assert main(["train", f"task={task}"]) == 0
    assert trained[0].task == task
    assert "gym" in trained[0].environment.simulator._target_


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["experiment=dreamer_cartpol"], "unknown experiment 'dreamer_cartpol': did you mean 'dreamer_cartpole'?"),
        (["size=debgu"], "unknown size 'debgu': did you mean 'debug'?"),
        (["experiment.sed=1"], "unknown key `experiment.sed`: did you mean `experiment.seed`?"),
        (
            ["environment.task=gym_Acrobot-v1"],
            "unknown key `environment.task`: `task` belongs to no section, write `task=",
        ),
        (
            ["controller.objective={_target_: a.b, has_baseline: true}"],
            "`controller.objective.has_baseline`: give it by `+controller.objective.has_baseline=...` where",
        ),
        (["experiment={sed: 3}"], "unknown key `experiment.sed`: did you mean `experiment.seed`?"),
        (["siez=debug"], "unknown key `siez`: did you mean `size`?"),
        (["~experiment.sed"], "unknown key `experiment.sed`: did you mean `experiment.seed`?"),
        (["+bufer=1"], "unknown key `bufer`: did you mean `buffer`?"),
        (["experiment.seed=[1"], "cannot read `experiment.seed=[1`"),
        (["experiment.seed"], "cannot read `experiment.seed`"),
        (["experiment.seed=1,2"], "add --multirun"),
        (
            ["task=zzzzz_maze"],
            "There is no task 'zzzzz_maze' (a task is named SUITE_TASK, such as gym_CartPole-v1): the ",
        ),
        (["--multirun", "task=gym_A-v1,gmy_B-v1"], "There is no task 'gmy_B-v1'"),
        (["--multirun", "task=gym_A-v1,dmc_walker_walk"], "must share a suite, got gym, dmc"),
        (["--mltirun"], "unknown option `--mltirun`: did you mean `--multirun`?"),
        (["--config-dir", "nowhere"], "not found"),
        (["--resolve"], "--resolve"),
    ],
)
def test_train_says_what_is_wrong(
    trained: list[DictConfig], sentence: Sentence, arguments: list[str], said: str
) -> None:
    assert said in sentence("train", *arguments)
    assert trained == []


def test_a_reference_to_nowhere_is_a_sentence(monkeypatch: pytest.MonkeyPatch, sentence: Sentence) -> None:
    monkeypatch.setattr(session, "train", lambda config: len(config.logdir))
    assert "cannot read `logdir`: Interpolation key 'nope' not found" in sentence("train", "logdir=${nope}")


def test_a_broken_file_of_the_user_is_a_sentence(folder: Path, sentence: Sentence) -> None:
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text("a: [")
    assert "not valid YAML" in sentence("train", "--config-dir", str(folder), "experiment=mine")
    assert "did you mean 'mine'?" in sentence("train", "--config-dir", str(folder), "experiment=mien")


def test_files_of_the_user_in_a_circle_or_of_bytes_are_a_sentence(folder: Path, sentence: Sentence) -> None:
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - mine\n")
    assert "in a circle" in sentence("train", "--config-dir", str(folder), "experiment=mine")
    (folder / "experiment" / "bytes.yaml").write_bytes(b"a: \xad\xfe")
    said = sentence("train", "--config-dir", str(folder), "experiment=bytes")
    assert "is not text in UTF-8" in said
    assert str(folder) in said


def test_hydra_shows_the_config(trained: list[DictConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "job", "--package", "experiment", "experiment.seed=5"]) == 0
    assert "seed: 5" in capsys.readouterr().out
    assert main(["train", "experiment.seed=5", "--info", "searchpath", "task=gym_Acrobot-v1"]) == 0
    assert "reverie" in capsys.readouterr().out
    assert trained == []


@pytest.mark.parametrize(
    ("arguments", "is_made"), [([], False), (["--multirun"], True), (["hydra.mode=MULTIRUN"], True)]
)
def test_only_a_multirun_has_a_folder_for_the_sweeper(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, arguments: list[str], is_made: bool
) -> None:
    temporary, seen = tmp_path_factory.mktemp("temporary"), list[bool]()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(session, "train", lambda _config: seen.append(any(temporary.glob("reverie-sweep-*"))) or 0)
    assert main(["train", *arguments]) == 0
    assert seen == [is_made]
    assert list(temporary.iterdir()) == []
    assert list(Path.cwd().iterdir()) == []


def test_multirun_runs_every_job_and_leaves_nothing_behind(trained: list[DictConfig], folder: Path) -> None:
    assert main(["train", "experiment.seed=1,2", "--multirun", "task=gym_A-v1,gym_B-v1"]) == 0
    done = [(config.experiment.seed, config.task) for config in trained]
    assert done == [(1, "gym_A-v1"), (1, "gym_B-v1"), (2, "gym_A-v1"), (2, "gym_B-v1")]
    assert list(folder.iterdir()) == []


def test_multirun_goes_on_after_a_job_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[int] = []

    def train(config: DictConfig) -> int:
        seeds.append(config.experiment.seed)
        if config.experiment.seed == 1:
            raise ReverieError("seed 1 is unlucky")
        return 0

    monkeypatch.setattr(session, "train", train)
    assert main(["train", "-m", "experiment.seed=1,2"]) == 2
    assert seeds == [1, 2]
    assert capsys.readouterr().err == "reverie: seed 1 is unlucky\n"


def test_an_interrupted_multirun_starts_no_further_job(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[DictConfig] = []
    monkeypatch.setattr(session, "train", lambda config: started.append(config) or 130)
    assert main(["train", "-m", "experiment.seed=1,2"]) == 130
    assert len(started) == 1


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: DictConfig) -> int:
        raise ValueError(f"a bug, not a config error: {len(config)}")

    monkeypatch.setattr(session, "train", train)
    with pytest.raises(ValueError, match="a bug, not a config error"):
        main(["train"])


@pytest.fixture
def run(folder: Path) -> Path:
    """A run folder that holds its config and nothing else."""
    config = dict.fromkeys(SECTIONS) | {
        "experiment": {"seed": 1},
        "task": "gym_CartPole-v1",
        "training": {"total_timesteps": 10},
    }
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(config_text(config))
    return folder / "run"


def test_resume_hands_over_what_may_differ(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(session, "resume", lambda *given: calls.append(given) or 143)
    code = main(["resume", str(run), "--allow", "mine", "training.total_timesteps=20", "--allow", "yours"])
    assert code == 143
    assert calls == [(run, ["training.total_timesteps=20"], ["mine", "yours"])]


def test_resume_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, run: Path, sentence: Sentence) -> None:
    monkeypatch.delattr(session, "resume")
    assert "experiment.seed: 1 -> 2" in sentence("resume", str(run), "experiment.seed=2")
    assert "did you mean `experiment.seed`?" in sentence("resume", str(run), "experiment.sed=2")
    assert "is not a run folder" in sentence("resume", "nowhere")
    assert "RUN is missing" in sentence("resume")


def test_eval_prints_a_table_or_json(
    monkeypatch: pytest.MonkeyPatch, run: Path, capsys: pytest.CaptureFixture[str], sentence: Sentence
) -> None:
    calls: list[Any] = []

    def evaluate(folder: Path, **options: Any) -> session.Evaluated:
        calls.append((folder, options))
        return session.Evaluated(scores={"eval/return_mean": 123.5}, files=[])

    monkeypatch.setattr(session, "evaluate", evaluate)
    assert main(["eval", str(run)]) == 0
    heading, scores = capsys.readouterr().out.splitlines()
    assert heading == "run on gym_CartPole-v1"
    assert scores.split() == ["eval/return_mean", "123.5"]
    assert (
        main(["eval", str(run), "--episodes", "3", "--seed", "0", "--checkpoint", "c", "--allow", "p", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out) == {"eval/return_mean": 123.5}
    nothing = {"episodes": None, "seed": None, "checkpoint": None, "has_pictures": False, "allow": []}
    nothing["elsewhere"] = None
    chosen = {**nothing, "episodes": 3, "seed": 0, "checkpoint": "c", "allow": ["p"]}
    assert calls == [(run, nothing), (run, chosen)]
    assert "must be a positive integer" in sentence("eval", str(run), "--episodes", "0")
    assert "is not a run folder" in sentence("eval", "nowhere")


@pytest.mark.parametrize(("body", "code", "closing"), [("True", 0, "1 passed in"), ("False", 1, "1 failed in")])
def test_test_runs_pytest_and_shows_its_closing_line(
    folder: Path, capfd: pytest.CaptureFixture[str], body: str, code: int, closing: str
) -> None:
    (folder / "test_one.py").write_text(f"def test_it():\n    assert {body}\n")
    assert main(["test", str(folder / "test_one.py"), "-n", "0", "-p", "no:cacheprovider"]) == code
    assert closing in capfd.readouterr().out.splitlines()[-1]


def test_test_needs_a_checkout_and_fills_in_its_folder(folder: Path) -> None:
    with pytest.raises(ReverieError, match="clone the repository"):
        test_command.checkout(folder / "site-packages" / "reverie" / "__init__.py")
    everything = test_command.pytest_arguments(folder, ["-x"], is_complete=True)
    assert everything[-1] == str(folder / "tests")
    assert "--all" in everything
    assert "-n" in everything
    (folder / "test_a.py").touch()
    chosen = test_command.pytest_arguments(folder, ["test_a.py::test_b", "-n4"], is_complete=False)
    assert chosen[-2:] == ["test_a.py::test_b", "-n4"]
    assert "--all" not in chosen
    assert "-n" not in chosen


def test_tests_keep_what_python_compiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "test_kept.py").write_text("import sys\n\ndef test_kept(): assert not sys.dont_write_bytecode\n")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert test_command.run(["--as-it-is", "-n0", "test_kept.py"]) == 0


def test_unknown_commands(sentence: Sentence) -> None:
    assert "unknown command `trian`: did you mean `train`?" in sentence("trian")
    assert "unknown option `--hepl`" in sentence("--hepl")
