"""What a person sees: a panel in a terminal, plain lines elsewhere, and nothing that slows the loop."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from reverie.orchestration.display import LiveDisplay, PlainDisplay, Progress, ScoreHistory, make_display
from reverie.orchestration.panel import duration, plain_line, progress_panel, sparkline

PROGRESS = Progress(
    experiment="dreamer_cartpole",
    task="gym_CartPole-v1",
    phase="train",
    phase_index=1,
    num_phases=2,
    agent_steps=12_345,
    total_steps=40_000,
    env_frames=24_690,
    episodes=231,
    score_now=213.44,
    score_best=300.0,
    updates=6_000,
    updates_per_second=24.13,
    frames_per_second=51.2,
    seconds_left=252.0,
    shares={"env": 0.2, "replay": 0.05, "update": 0.75},
    logdir="runs/dreamer_cartpole-1",
    last_eval=312.0,
)
FACTS = ["train", "12,345", "40,000", "24,690", "231", "213.4", "300.0", "6,000", "24.1", "51.2", "4:12", "312.0"]
SHARES = ["env 20%", "replay 5%", "update 75%"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(progress: Progress, *, width: int, scores: list[float] | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(progress_panel(progress, scores or []))
    return console.export_text()


def test_panel_and_plain_line_tell_everything() -> None:
    panel, line = shown(PROGRESS, width=100, scores=[1.0, 2.0]), plain_line(PROGRESS)
    for fact in FACTS + SHARES:
        assert fact in panel
        assert fact in line
    assert "phase 2/2" in panel
    assert "[train 2/2]" in line
    for fact in ("dreamer_cartpole", "gym_CartPole-v1", "runs/dreamer_cartpole-1", "▁█"):
        assert fact in panel


@pytest.mark.parametrize("width", [30, 44, 80, 200])
def test_panel_fits_every_width(width: int) -> None:
    text = shown(PROGRESS, width=width, scores=[float(score) for score in range(300)])
    widths = {cell_len(line) for line in text.splitlines()}
    assert len(widths) == 1
    assert widths.pop() <= min(width, 100)


def test_unknown_values_are_dashes() -> None:
    early = replace(
        PROGRESS, total_steps=None, score_now=None, score_best=None, seconds_left=None, last_eval=None, shares={}
    )
    assert "score      -" in shown(early, width=80)
    assert "score - (best -)" in plain_line(early)
    assert "left" not in shown(early, width=80) + plain_line(early)


def test_plain_display_speaks_every_ten_seconds_and_at_the_end() -> None:
    file, clock = io.StringIO(), Clock()
    display = PlainDisplay(Console(file=file), clock=clock)
    display.start()
    for second in range(25):
        clock.now = 100.0 + second
        assert display.is_due() == (second in (10, 20))
        display.update(replace(PROGRESS, agent_steps=second))
    display.stop()
    display.stop()
    steps = [line.split("step ")[1].split()[0] for line in file.getvalue().splitlines()]
    assert steps == ["10", "20", "24"]


def test_plain_display_writes_no_control_characters() -> None:
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, force_terminal=True), every_seconds=0.0)
    display.start()
    display.update(PROGRESS)
    display.say("[bold]saved[/bold] \x1b[31mred\x07")
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert lines[0].isascii()
    assert lines[1].startswith("[bold]saved[/bold]")


def test_live_display_draws_only_when_due_and_shows_the_last_progress() -> None:
    file, clock = Terminal(), Clock()
    display = LiveDisplay(Console(file=file, force_terminal=True, width=80), refreshes_per_second=4.0, clock=clock)
    display.start()
    display.update(replace(PROGRESS, agent_steps=1_111))
    for step in range(2_000, 2_100):
        assert not display.is_due()
        display.update(replace(PROGRESS, agent_steps=step))
    assert "1,111 of" in file.getvalue()
    assert "2,0" not in file.getvalue()
    clock.now += 0.25
    assert display.is_due()
    display.say("saved [3]")
    display.stop()
    assert "2,099 of" in file.getvalue()
    assert "saved [3]" in file.getvalue()
    assert file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_display_is_chosen_by_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(make_display(Console(file=Terminal(), force_terminal=True)), LiveDisplay)
    # FORCE_COLOR and the like make rich believe in a terminal; a log file must stay plain all the same.
    assert isinstance(make_display(Console(file=io.StringIO(), force_terminal=True)), PlainDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(Console(file=Terminal(), force_terminal=True)), PlainDisplay)


def test_terminal_that_knows_only_ascii_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(raw, "isatty", lambda: True)
    assert isinstance(make_display(Console(file=raw, force_terminal=True)), PlainDisplay)


def test_restore_terminal_gives_the_cursor_back() -> None:
    code = "from reverie.orchestration.display import restore_terminal; restore_terminal()"
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True)
    os.close(theirs)
    written = os.read(ours, 100)
    os.close(ours)
    assert b"\x1b[?25h" in written
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b""


def test_score_history_is_bounded_and_keeps_the_whole_run() -> None:
    history = ScoreHistory(capacity=16)
    for episode in range(1, 2_001):
        history.add(replace(PROGRESS, episodes=episode, score_now=float(episode)))
    assert 8 <= len(history.values) < 16
    assert history.values == sorted(history.values)
    assert history.values[0] < 300
    assert history.values[-1] > 1_700
    history.add(replace(PROGRESS, episodes=9_999, score_now=float("nan")))
    assert history.values == sorted(history.values)


def test_sparkline_spans_the_range() -> None:
    assert sparkline([0.0, 1.0], 10) == "▁█"
    assert sparkline([5.0, 5.0], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([0.0, 0.0, 7.0, 7.0], 2) == "▁█"


def test_duration_reads_like_a_clock() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 252, 3_845)] == ["0:00", "1:00", "4:12", "1:04:05"]
