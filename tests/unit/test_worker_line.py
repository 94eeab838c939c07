"""The socket between a worker and its parent: whole messages, whether its reader is awake or asleep when they come."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from reverie.environments.parallel.worker_server import Line

LONG = 3600.0
"""Seconds: whoever waits so long does not sleep in this test."""


@pytest.fixture
def ends() -> Iterator[tuple[Line, Line]]:
    one, other = socket.socketpair()
    lines = Line(one.detach()), Line(other.detach())
    yield lines
    for line in lines:
        line.close()


def later(work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        time.sleep(0.05)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("awake_seconds", [0.0, 1e-6, LONG])
def test_a_message_comes_while_its_reader_is_asleep_or_awake(ends: tuple[Line, Line], awake_seconds: float) -> None:
    sender = later(lambda: ends[0].send(b"hello"))
    assert ends[1].receive(awake_seconds=awake_seconds) == b"hello"
    sender.join()


@pytest.mark.parametrize("awake_seconds", [0.0, 1e-6, LONG])
def test_a_closed_end_is_noticed_asleep_or_awake(ends: tuple[Line, Line], awake_seconds: float) -> None:
    closer = later(ends[0].close)
    for _ in range(2):  # whoever asks again hears the same
        with pytest.raises((EOFError, OSError)):
            ends[1].receive(awake_seconds=awake_seconds)
    closer.join()


def test_messages_come_whole_and_in_order_whatever_their_length(ends: tuple[Line, Line]) -> None:
    messages = [b"", b"s", bytes(range(256)) * 4000, b"last"]

    def send() -> None:
        for message in messages:
            ends[0].send(message)

    sender = threading.Thread(target=send)  # the long one does not fit into the socket at once
    sender.start()
    assert [ends[1].receive() for _ in messages] == messages
    sender.join()
    assert not ends[1].has_message()


def test_two_messages_that_arrive_together_are_read_one_by_one_by_an_awake_reader(ends: tuple[Line, Line]) -> None:
    ends[0].send(b"one")
    ends[0].send(b"two")
    assert ends[1].has_message()
    assert [ends[1].receive(awake_seconds=LONG) for _ in range(2)] == [b"one", b"two"]


def test_whoever_waited_long_for_the_last_message_sleeps_at_once_for_the_next(
    ends: tuple[Line, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: looks.append(1))
    for is_awake in (True, False, False):
        looks.clear()
        sender = later(lambda: ends[0].send(b"at last"))
        assert ends[1].receive(awake_seconds=0.01) == b"at last"
        sender.join()
        assert bool(looks) == is_awake
    ends[0].send(b"soon")
    assert ends[1].receive(awake_seconds=0.01) == b"soon"
    sender = later(lambda: ends[0].send(b"at last"))
    assert ends[1].receive(awake_seconds=0.01) == b"at last"
    sender.join()
    assert looks
