"""What cannot work is refused in one sentence before anything is written: no folder, no traceback, exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from reverie.cli import main
from reverie.targets import located
from reverie.types import ReverieError

PHASE = "training.phases.0"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("workflow.horizon=0", "`workflow.horizon` must be at least 1"),
        ("workflow.discount_horizon=0", "`workflow.discount_horizon` must be at least 2"),
        ("~workflow.loss_weights.policy", "`workflow.loss_weights` must have the keys"),
        ("components.return_scale.low_quantile=2", "low_quantile"),
        ("components.decoder.vectors.layers=0", "layers"),
        ("controller.actor.unimix=1.5", "unimix"),
        ("optimizers.model.learning_rate=-1", "learning_rate"),
        ("training.batch_length=1", "batch.length must be at least 2"),
        ("size.blocks=7", "multiple of `size.blocks`"),
        ("size.classes=300", "at most 256"),
        ("buffer.replay.capacity=20", "will never hold 8 windows of 16 rows"),
        (
            "buffer.replay.capacity=10_000_000_000_000 training.total_timesteps=10_000_000_000_000",
            "replay will not fit: `buffer.replay` with a capacity of 10,000,000,000,000 rows needs 1192092.9 GiB (",
        ),
        ("buffer.device=gpu", "`buffer.replay.device` is gpu: choose one of auto, host, disk"),
        ("buffer.device=cuda", "there is no CUDA device here; choose one of auto, host, disk"),
        ("training.sampler={recent:0.01,uniform:0.99}", "'recent' would draw none of 8 sequences"),
        ("+buffer.devise=disk", "unknown key `buffer.devise`"),
        ("training.sampler=newest", "has no sampler 'newest'; it has: uniform, fresh_first, recent, prioritized"),
        ("training.sampler={recent:0.5,newest:0.5}", "has no sampler 'newest'"),
        ("training.sampler={recent:0.5}", "the fractions must add up to 1"),
        ("training.crosses_episodes=false", "the sampler 'fresh_first' crosses episodes"),
        ("buffer.replay.priority_exponent=-1", "`priority_exponent of a buffer` must be at least 0"),
        (
            f"{PHASE}.train_ratio=null {PHASE}.workflow_hooks=[collect,update]",
            "cannot be called as a hook without a batch",
        ),
        (f"{PHASE}.train_ratio=null {PHASE}.workflow_hooks=[collect,get_state]", "cannot be called as a hook"),
        (f"{PHASE}.train_ratio=null {PHASE}.workflow_hooks=[collect,updat]", "has no hook 'updat'"),
        (f"{PHASE}.buffer=evaluation", "is for evaluations"),
        (f"{PHASE}.buffer=other", "no buffer 'other'"),
        (f"+{PHASE}.controller=critic", "must be of the kind Actor"),
        ("training.resume_path=nowhere", "not a run folder"),
    ],
)
def test_the_command_refuses(
    override: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "size=debug", *override.split()]) == 2
    printed = capsys.readouterr().err
    assert expected in printed
    assert printed.startswith("reverie: ")
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_with_foreign_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    assert main(["train", "size=debug", f"logdir={tmp_path}"]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "metrics.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize(
    "target",
    ["reverie.environments.gym._import_package", "reverie.components.networks.layers.linear", "reverie.cli.main"],
)
def test_a_stored_config_reaches_public_classes_only(target: str) -> None:
    with pytest.raises(ReverieError, match=r"private|class|no part for a config"):
        located(target, path="components.x._target_", allow=[])


def test_a_last_evaluation_is_not_done_twice(tmp_path: Path) -> None:
    logdir = tmp_path / "run"
    overrides = ["evaluation.every_steps=20", "training.total_timesteps=40", "evaluation.episodes=2"]
    assert main(["train", "experiment=random_cartpole", f"logdir={logdir}", *overrides]) == 0
    lines = (logdir / "metrics.jsonl").read_text().splitlines()
    assert [line.split(",")[0] for line in lines if "eval/" in line] == ['{"agent_steps": 20', '{"agent_steps": 40']
