"""Where the time goes, also when a device works beside the host."""

from __future__ import annotations

import itertools

import pytest

from reverie.orchestration import stopwatch as stopwatch_module
from reverie.orchestration.stopwatch import Stopwatch
from reverie.runtime.device_timer import DeviceTimer, Event


class FakeEvent:
    """The device comes to an event when ``reached`` says so; every stretch takes it a quarter of a second."""

    reached = 0
    clock = itertools.count()

    def __init__(self) -> None:
        self.at = -1

    def record(self) -> None:
        self.at = next(FakeEvent.clock)

    def query(self) -> bool:
        return self.at < FakeEvent.reached

    def elapsed_time(self, end_event: Event, /) -> float:
        assert isinstance(end_event, FakeEvent)
        return 250.0 * (end_event.at - self.at)


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(stopwatch_module, "time", one)
    monkeypatch.setattr(FakeEvent, "reached", 0)
    monkeypatch.setattr(FakeEvent, "clock", itertools.count())
    return one


def test_what_the_device_has_not_finished_is_counted_later() -> None:
    timer = DeviceTimer(FakeEvent)
    for _ in range(3):
        with timer.measuring():
            pass
    assert timer.seconds == 0.0
    FakeEvent.reached = 4
    assert timer.seconds == 0.5
    assert timer.seconds == 0.5
    FakeEvent.reached = 6
    assert timer.seconds == 0.75


def test_on_a_processor_the_shares_are_a_whole(clock: Clock) -> None:
    stopwatch = Stopwatch()
    with stopwatch.measuring("update"):
        clock.pass_by(6.0)
    clock.pass_by(4.0)
    stopwatch.add("env", 3.0)
    nothing = dict.fromkeys(("policy", "replay", "evaluate", "checkpoint"), 0.0)
    assert stopwatch.line_shares() == pytest.approx({"env": 0.3, "update": 0.6, "other": 0.1, **nothing})


def test_on_a_device_updates_are_timed_there_and_the_rest_is_idle(clock: Clock) -> None:
    stopwatch = Stopwatch(DeviceTimer(FakeEvent))
    with stopwatch.measuring("update"):
        clock.pass_by(0.1)  # the host's time does not count
    with stopwatch.measuring("checkpoint"):
        clock.pass_by(0.2)
    clock.pass_by(0.2)
    assert (stopwatch.shares()["update"], stopwatch.shares()["idle"]) == pytest.approx((0.0, 0.6))
    FakeEvent.reached = 2
    assert (stopwatch.shares()["update"], stopwatch.shares()["idle"]) == pytest.approx((0.5, 0.1))


def test_a_line_tells_how_much_of_its_own_time_was_learning(clock: Clock) -> None:
    stopwatch = Stopwatch(DeviceTimer(FakeEvent))
    FakeEvent.reached = 100
    clock.pass_by(3.0)
    assert stopwatch.line_shares()["learning"] == 0.0  # start-up
    with stopwatch.measuring("update"):
        clock.pass_by(0.5)
    with stopwatch.measuring("evaluate"):
        clock.pass_by(7.0)  # stands aside
    assert stopwatch.line_shares()["learning"] == pytest.approx(0.5)
