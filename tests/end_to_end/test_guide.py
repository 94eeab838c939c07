"""The guide `add_an_algorithm.md` is true: its files and commands, taken from the page, train, resume and learn."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from killer import Kill, Killer
from same_run import differences, metric_lines, status

FENCE = re.compile(r"^```(?P<kind>\w+) ?(?P<name>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page(repo_root: Path) -> str:
    return (repo_root / "docs" / "guides" / "add_an_algorithm.md").read_text()


@pytest.fixture(scope="module")
def home(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's files under `lab/`; blocks of the same name are one file."""
    folder = tmp_path_factory.mktemp("guide")
    blocks: dict[str, list[str]] = {}
    for block in FENCE.finditer(page):
        if block["name"]:
            blocks.setdefault(block["name"], []).append(block["text"])
    for name, texts in blocks.items():
        path = folder / "lab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n".join(texts))
    return folder


@pytest.fixture(scope="module")
def commands(page: str) -> list[list[str]]:
    lines = [
        line for block in FENCE.finditer(page) if block["kind"] == "console" for line in block["text"].splitlines()
    ]
    assert all(line.startswith("$ ") for line in lines)
    return [shlex.split(line.removeprefix("$ ")) for line in lines]


@pytest.fixture(scope="module")
def lab_killer(home: Path, repo_root: Path) -> Iterator[Killer]:
    """Runs commands in the guide's folder, with the lab on the path as the guide says."""
    one = Killer(home, f"{repo_root / 'src'}{os.pathsep}{home / 'lab'}")
    yield one
    one.close()


def test_the_list_of_files_is_complete(page: str, home: Path) -> None:
    listed = set(re.findall(r"^  (\S+\.(?:py|yaml))", page, re.MULTILINE))
    made = {str(path.relative_to(home / "lab")) for path in (home / "lab").rglob("*") if path.is_file()}
    assert listed == made


def test_the_commands_train_and_learn(lab_killer: Killer, commands: list[list[str]], home: Path) -> None:
    assert commands[0] == ["export", "PYTHONPATH=lab"]
    printed: list[str] = []
    for command in commands[1:]:
        assert command[0] == "reverie"
        ended = lab_killer.run(*command[1:])
        assert ended.code == 0, ended.output
        printed.append(ended.output)
    lines = metric_lines(home / "runs" / "shooting")
    assert {"train/loss/dynamics", "train/loss/continue"} <= lines[2].keys()
    finals = [line for line in lines if "eval/return_mean" in line]
    assert [line["agent_steps"] for line in finals] == [1000, 1200]
    assert finals[0]["eval/return_mean"] > 60  # three times chance; with most seeds it is well over 100
    assert "return_mean" in printed[-1]
    assert status(home / "runs" / "shooting") == "finished"


def test_the_algorithm_resumes_exactly(lab_killer: Killer, commands: list[list[str]], tmp_path: Path) -> None:
    train = [word for word in commands[1][1:] if not word.startswith("logdir=")]
    short = [*train, "training.total_timesteps=200", "checkpoint.every_steps=40", "evaluation.episodes=2"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert lab_killer.run(*short, "evaluation.envs=2", f"logdir={whole}").code == 0
    kill = Kill("shooting:Shooting.update_world_model", "after", 60)
    ended = lab_killer.run(*short, "evaluation.envs=2", f"logdir={killed}", kill=kill)
    assert ended.code == -signal.SIGKILL, ended.output
    refused = lab_killer.run("resume", str(killed))
    assert refused.code == 2
    assert "--allow shooting" in refused.output
    ended = lab_killer.run("resume", str(killed), "--allow", "shooting")
    assert ended.code == 0, ended.output
    assert differences(whole, killed) == []


def test_the_code_is_as_clean_as_our_own(home: Path, repo_root: Path) -> None:
    check = [sys.executable, "-m", "ruff", "check", "--config", str(repo_root / "pyproject.toml")]
    done = subprocess.run([*check, str(home / "lab")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
