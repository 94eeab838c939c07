"""Metric lines: what they hold, and that a resumed run writes the very same file."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reverie.orchestration.logger import METRICS_FILE, Counters, Logger, LoggingConfig, make_sinks
from reverie.orchestration.sinks import WandbConfig
from reverie.types import Episode, Metrics, ReverieError


def counters(step: int) -> Counters:
    return Counters(agent_steps=step, env_frames=4 * step, updates=step // 2, wall_seconds=0.5 * step)


def metrics(step: int) -> Metrics:
    return {"loss/actor": torch.tensor(0.1 * step), "loss/critic": torch.tensor(1.0 / step, dtype=torch.bfloat16)}


def plain_logger(folder: Path, every_steps: int = 10) -> Logger:
    return Logger(folder, config=LoggingConfig(every_steps=every_steps), sinks=[])


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def simulate(logger: Logger, steps: range) -> None:
    """A run in miniature: metrics at every step, an episode now and then, evaluations of their own."""
    for step in steps:
        logger.add(metrics(step), prefix="train")
        if step % 3 == 0:
            logger.add({"entropy": torch.tensor(float(step))}, prefix="controller")
        if step % 4 == 0:
            logger.add_episodes([Episode(score=step / 3, length=step)])
        if logger.should_write(step):
            logger.write(counters(step), {"time/updates_per_second": 3.0})
        if step % 25 == 0:
            logger.write_now(counters(step), {"eval/return_mean": step / 7})


def test_line_holds_counters_first_then_sorted_means(tmp_path: Path) -> None:
    logger = plain_logger(tmp_path)
    logger.add({"b": torch.tensor(1.0), "a": torch.tensor(2)}, prefix="train/")
    logger.add({"b": torch.tensor(3.0), "a": torch.tensor(4)}, prefix="train")
    logger.add({"b": torch.tensor(8.0)}, prefix="train")
    logger.add_episodes([Episode(score=5.0, length=10), Episode(score=9.0, length=20)])
    values = logger.write(counters(10), {"time/env": 0.25})
    assert values["train/b"] == 4.0
    assert values["train/a"] == 3.0
    (line,) = lines(tmp_path)
    assert list(line) == [
        *("agent_steps", "env_frames", "updates", "wall_seconds"),
        *("collect/episodes", "collect/length_mean", "collect/return_max", "collect/return_mean"),
        *("time/env", "train/a", "train/b"),
    ]
    assert [line[name] for name in list(line)[:8]] == [10, 40, 5, 5.0, 2.0, 15.0, 9.0, 7.0]
    assert logger.write(counters(20)) == {}


def test_add_keeps_the_value_of_a_tensor_that_is_overwritten_later(tmp_path: Path) -> None:
    logger, reused = plain_logger(tmp_path), torch.tensor(1.0)
    logger.add({"loss": reused}, prefix="train")
    reused.fill_(100.0)
    assert logger.write(counters(10)) == {"train/loss": 1.0}


def test_only_write_reads_tensors_and_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def spied(name: str) -> Callable[..., object]:
        original = getattr(torch.Tensor, name)
        return lambda *args, **options: (reads.append(name), original(*args, **options))[1]

    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, spied(name))
    logger = plain_logger(tmp_path)
    for step in range(1, 4):
        logger.add(metrics(step), prefix="train")
        logger.add(metrics(step), prefix="controller")
    assert reads == []
    logger.write(counters(10))
    assert reads == ["tolist"]


def test_metrics_with_axes_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"zero-dimensional.*reward"):
        plain_logger(tmp_path).add({"reward": torch.zeros(3)}, prefix="train")


def test_name_that_is_pending_and_extra_is_refused(tmp_path: Path) -> None:
    logger = plain_logger(tmp_path)
    logger.add({"loss": torch.tensor(1.0)}, prefix="train")
    with pytest.raises(ValueError, match="train/loss"):
        logger.write(counters(10), {"train/loss": 1.0})


def test_lines_are_due_by_steps_or_by_updates(tmp_path: Path) -> None:
    logger = Logger(tmp_path, config=LoggingConfig(every_steps=10, every_updates=100), sinks=[])
    assert [logger.should_write(step) for step in (0, 9, 10)] == [False, False, True]
    logger.write(counters(14))  # 7 updates
    assert [logger.should_write(step) for step in (19, 20)] == [False, True]
    assert [logger.should_write(14, updates=updates) for updates in (106, 107)] == [False, True]


def test_evaluation_line_leaves_pending_and_schedule_alone(tmp_path: Path) -> None:
    logger = plain_logger(tmp_path)
    logger.add({"loss": torch.tensor(2.0)}, prefix="train")
    logger.write_now(counters(15), {"eval/return_mean": 3.0})
    assert logger.should_write(15)
    assert logger.write(counters(15)) == {"train/loss": 2.0}


def test_non_finite_values_stay_valid_json(tmp_path: Path) -> None:
    plain_logger(tmp_path).write_now(counters(1), {"a": math.nan, "b": math.inf, "c": -math.inf})
    text = (tmp_path / METRICS_FILE).read_text()
    line = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [line[name] for name in "abc"] == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("saved_at", [1, 7, 10, 24, 25, 39])
def test_killed_and_resumed_run_writes_the_same_bytes(tmp_path: Path, saved_at: int) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    simulate(plain_logger(tmp_path / "whole"), range(1, 61))
    first = plain_logger(tmp_path / "killed")
    simulate(first, range(1, saved_at + 1))
    state = first.get_state()
    simulate(first, range(saved_at + 1, 46))  # goes on after the checkpoint, then is killed inside a line
    with (tmp_path / "killed" / METRICS_FILE).open("a") as file:
        file.write('{"agent_steps": 46, "env')
    second = plain_logger(tmp_path / "killed")
    second.set_state(state)
    simulate(second, range(saved_at + 1, 61))
    whole = (tmp_path / "whole" / METRICS_FILE).read_bytes()
    assert whole.count(b"\n") == 8
    assert (tmp_path / "killed" / METRICS_FILE).read_bytes() == whole


def test_resume_without_the_pending_sums_differs(tmp_path: Path) -> None:
    """The control of the test above: it would notice a state that is not restored."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    simulate(plain_logger(tmp_path / "whole"), range(1, 61))
    first = plain_logger(tmp_path / "killed")
    simulate(first, range(1, 8))
    state = first.get_state()
    state["pending"]["sums"] = []
    second = plain_logger(tmp_path / "killed")
    second.set_state(state)
    simulate(second, range(8, 61))
    assert (tmp_path / "killed" / METRICS_FILE).read_bytes() != (tmp_path / "whole" / METRICS_FILE).read_bytes()


def test_state_is_not_changed_by_what_comes_later(tmp_path: Path) -> None:
    logger = plain_logger(tmp_path)
    logger.add(metrics(1), prefix="train")
    state = logger.get_state()
    before = state["pending"]["sums"][0]["values"].clone()
    logger.add(metrics(2), prefix="train")
    assert torch.equal(state["pending"]["sums"][0]["values"], before)


def test_reset_starts_an_empty_file(tmp_path: Path) -> None:
    simulate(plain_logger(tmp_path), range(1, 31))
    logger = plain_logger(tmp_path)
    logger.reset()
    simulate(logger, range(1, 11))
    assert [line["agent_steps"] for line in lines(tmp_path)] == [10]


def test_file_shorter_than_the_checkpoint_says_is_refused(tmp_path: Path) -> None:
    logger = plain_logger(tmp_path)
    simulate(logger, range(1, 31))
    state = logger.get_state()
    (tmp_path / METRICS_FILE).write_text("")
    with pytest.raises(ReverieError, match=r"metrics\.jsonl holds 0 bytes"):
        plain_logger(tmp_path).set_state(state)


def test_full_disk_is_a_sentence_and_leaves_whole_lines(tmp_path: Path) -> None:
    """A limit on the file size is a full disk that needs no mount: the kernel takes half a line and then refuses."""
    logger = plain_logger(tmp_path)
    logger.write_now(counters(1), {"eval/return_mean": 1.0})
    before = (tmp_path / METRICS_FILE).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(ReverieError, match=r"cannot write .*metrics\.jsonl: File too large"):
            logger.write_now(counters(2), {"eval/return_mean": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / METRICS_FILE).read_bytes() == before


def test_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReverieError, match=r"cannot open .*metrics\.jsonl: No such file"):
        plain_logger(tmp_path / "nowhere")


def test_interval_below_one_is_refused() -> None:
    with pytest.raises(ReverieError, match=r"logging\.every_steps"):
        LoggingConfig(every_steps=0)
    with pytest.raises(ReverieError, match=r"logging\.every_updates"):
        LoggingConfig(every_updates=-1)


def test_tensorboard_shows_each_line_once_after_a_resume(tmp_path: Path) -> None:
    config = LoggingConfig(every_steps=10)

    def session() -> Logger:
        return Logger(tmp_path, config=config, sinks=make_sinks(tmp_path, config=config, run_config={}))

    first = session()
    simulate(first, range(1, 21))
    state = first.get_state()
    for step in (30, 40):  # values that the resumed run does not repeat, to tell old events from new
        first.write(counters(step), {"train/loss/actor": -1.0})
    second = session()
    second.set_state(state)
    simulate(second, range(21, 51))
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    written = {line["agent_steps"]: line["train/loss/actor"] for line in lines(tmp_path) if "train/loss/actor" in line}
    shown = [(event.step, event.value) for event in events.Scalars("train/loss/actor")]
    assert [step for step, _ in shown] == [10, 20, 30, 40, 50]
    assert [value for _, value in shown] == pytest.approx(list(written.values()))
    assert [event.value for event in events.Scalars("env_frames")][:2] == [40.0, 80.0]


def test_disabled_sinks_are_not_made(tmp_path: Path) -> None:
    assert make_sinks(tmp_path, config=LoggingConfig(has_tensorboard=False), run_config={}) == []


def test_wandb_offline_writes_below_the_run_folder_and_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # whoever tries the network fails at once
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    config = LoggingConfig(every_steps=10, has_tensorboard=False, wandb=WandbConfig(mode="offline"))
    for session in range(2):
        logger = Logger(tmp_path, config=config, sinks=make_sinks(tmp_path, config=config, run_config={"seed": 3}))
        simulate(logger, range(1 + 20 * session, 21 + 20 * session))
        logger.close()
    identity = (tmp_path / "wandb_id.txt").read_text().strip()
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert files
    assert {file.name for file in files} == {f"run-{identity}.wandb"}
    assert b"collect/return_mean" in b"".join(file.read_bytes() for file in files)
