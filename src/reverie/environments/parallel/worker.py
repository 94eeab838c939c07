"""Simulators in processes of their own: started, asked, watched, and started again when they die."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from reverie.environments.isolated.interpreters import interpreter_python
from reverie.environments.parallel import worker_server
from reverie.environments.parallel.board import Board
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.seat import DeadSimulatorError, Introduction
from reverie.types import ReverieError, Space, Spaces, State

_MAX_LOG_BYTES = 1_000_000
_SHOWN_LOG_BYTES = 4_000
_CLOSING_SECONDS = 5.0


class WorkerSeat:
    """One of the simulators of a `WorkerProcess`."""

    def __init__(self, process: WorkerProcess, number: int) -> None:
        self.process = process
        self._number = number
        self._generation = process.generation

    def introduction(self) -> Introduction:
        return self.process.introductions()[self._number]

    def attach(self, board: Board, index: int) -> None:
        self.process.layouts[self._number] = board.layout(index)
        self.process.is_busy[self._number] = board.is_busy[index : index + 1]
        self._ask(self.process.attaching(self._number))
        self.finish()

    def begin_reset(self, seed: int) -> None:
        self.process.trim_log()
        self._ask(b"r" + struct.pack("<q", seed))

    def begin_step(self) -> None:
        self._ask(b"s")

    def begin_replay(self, seed: int, actions: np.ndarray) -> None:
        self._ask(b"p" + struct.pack("<q", seed) + actions.tobytes())

    def finish(self) -> Mapping[str, float]:
        kind, body = self._answer()
        return json.loads(body) if kind == b"i" else {}

    def get_state(self) -> State:
        self._ask(b"g")
        return pickle.loads(self._answer()[1])  # from our own child, not from a file

    def set_state(self, state: State) -> None:
        self._ask(b"t" + pickle.dumps(state, protocol=4))
        self._answer()

    def restart(self) -> None:
        if self._generation == self.process.generation:
            self.process.restart()
        self._generation = self.process.generation

    def close(self) -> None:
        self.process.close()

    def _ask(self, command: bytes) -> None:
        if self._generation == self.process.generation:
            self.process.ask(self._number, command)

    def _answer(self) -> tuple[bytes, bytes]:
        process = self.process
        if self._generation != process.generation:
            raise process.obituaries.pop(self._number, None) or _death_of_another()
        try:
            return process.answer(self._number)
        except DeadSimulatorError as death:
            culprit = process.busy_simulator()
            if culprit is None or culprit == self._number:
                raise
            process.obituaries[culprit] = death  # its own seat is asked after this one, and raises it
            raise _death_of_another() from death


class WorkerProcess:
    """Starts at once and in the background; ``introductions`` waits until its ``count`` simulators are there."""

    def __init__(
        self, maker: Maker, *, count: int, memory: int, processors: Sequence[int] = (), awake_seconds: float = 0.0
    ) -> None:
        """``processors`` are those that it stays on; none stand for all. ``awake_seconds``: see `Line.receive`."""
        self.generation = 0
        """Grows with each restart: a seat of an older one has lost its simulator."""
        self.layouts: dict[int, dict[str, Any]] = {}
        self.is_busy: dict[int, np.ndarray] = {}
        """By simulator: whether the process is at work with it, as it says on the board."""
        self.obituaries: dict[int, DeadSimulatorError] = {}
        """By simulator: a death that it caused and that its seat did not raise yet."""
        self._maker = maker
        self._count = count
        self._memory = memory
        self._processors = processors
        self._awake_seconds = awake_seconds
        self._all_step = [(number, worker_server.ALL_STEP) for number in range(count)]
        self._introductions: list[Introduction] = []
        self._is_closed = False
        # What simulators print belongs to nobody's screen; the end of it is shown when one dies.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def introductions(self) -> list[Introduction]:
        if not self._introductions:
            self._introductions = [_introduction(said) for said in json.loads(self._received()[1])]
        return self._introductions

    def attaching(self, number: int) -> bytes:
        """The command that shows a simulator its place in memory."""
        return b"m" + json.dumps(self.layouts[number]).encode()

    def ask(self, number: int, command: bytes) -> None:
        """Put a command into the next bundle. It is answered before the same simulator is asked again."""
        self._waiting.append((number, command))

    def flush(self) -> None:
        if self._waiting:
            asked, self._waiting = self._waiting, []
            self._asked.append([number for number, _ in asked])
            self._send(worker_server.ALL_STEP if asked == self._all_step else worker_server.bundled(asked))

    def is_all_done(self, *, awake_seconds: float) -> bool:
        """Wait for the answers to what was flushed last. False where there is more to know, which ``answer`` tells."""
        if not self._asked:
            return True
        try:
            message = self._line.receive(awake_seconds=awake_seconds)
        except (EOFError, OSError):
            return False  # whoever asks next hears that again
        self._heard.append(message)
        return message == worker_server.ALL_DONE

    def answer(self, number: int) -> tuple[bytes, bytes]:
        self.flush()
        while number not in self._answers:
            kind, body = self._received()
            asked = self._asked.pop(0)
            self._answers.update(worker_server.unbundled(body) if kind == b"b" else dict.fromkeys(asked, kind))
        message = self._answers.pop(number)
        return message[:1], message[1:]

    def skip_answers(self) -> None:
        """After ``is_all_done``: nobody will ask for them."""
        self._heard.clear()
        self._asked.clear()

    def busy_simulator(self) -> int | None:
        return next((number for number, is_busy in self.is_busy.items() if is_busy[0]), None)

    def trim_log(self) -> None:
        """Keep a simulator that prints at every step from filling the disk."""
        if os.fstat(self._log.fileno()).st_size > _MAX_LOG_BYTES:
            os.ftruncate(self._log.fileno(), 0)  # opened for appending there, so it goes on at the new end

    def restart(self) -> None:
        self._end()
        for is_busy in self.is_busy.values():
            is_busy[0] = False
        self._start()
        self._received()  # the introductions are known
        for number in self.layouts:
            self.ask(number, self.attaching(number))
        for number in self.layouts:
            self.answer(number)
        self.generation += 1

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._process.poll() is None:
            with suppress(EOFError, OSError):  # it may die in this moment
                self._line.send(worker_server.bundled([(number, b"c") for number in range(self._count)]))
                for _ in range(len(self._asked) + 1):  # what it still works at comes before the answer to this
                    if not self._line.has_message(within_seconds=_CLOSING_SECONDS):
                        break
                    self._line.receive()
        self._end()
        self._log.close()

    def _start(self) -> None:
        self._waiting: list[tuple[int, bytes]] = []
        self._asked: list[list[int]] = []
        """The simulators of each bundle that was not answered yet."""
        self._heard: list[bytes] = []
        """Messages that came and were not read yet."""
        self._answers: dict[int, bytes] = {}
        ours, theirs = socket.socketpair()
        self._line = worker_server.Line(ours.detach())
        fds = (theirs.fileno(), self._memory)
        is_own = self._maker.interpreter is None
        python = (
            Path(sys.executable) if self._maker.interpreter is None else interpreter_python(self._maker.interpreter)
        )
        # The log is opened once more, so that this process can cut it while the other one goes on writing.
        log = os.open(f"/dev/fd/{self._log.fileno()}", os.O_WRONLY | os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                [str(python), *(["-P"] if is_own else []), worker_server.__file__, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # what a simulator has started ends with it; Ctrl-C is the parent's
                env=_variables(is_own=is_own),
            )
        finally:
            os.close(log)
            theirs.close()
        file = None if is_own else sys.modules[self._maker.module].__file__
        self._send(
            self._maker.spec(
                count=self._count,
                processors=self._processors,
                awake_seconds=self._awake_seconds,
                sys_path=sys.path if is_own else None,
                file=file,
            )
        )

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # its answer will be missing too, and says so in one place
            self._line.send(message)

    def _received(self) -> tuple[bytes, bytes]:
        try:
            message = self._heard.pop(0) if self._heard else self._line.receive()
        except (EOFError, OSError) as error:
            raise DeadSimulatorError(self._cause(), self._log_tail()) from error
        kind, body = message[:1], message[1:]
        if kind == b"x":
            raise ReverieError(body.decode())
        if kind == b"e":
            trace = body.decode()
            raise DeadSimulatorError(trace.strip().splitlines()[-1], trace)
        return kind, body

    def _cause(self) -> str:
        try:
            code = self._process.wait(timeout=_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if code >= 0:
            return f"its process ended with exit code {code}"
        return f"its process was ended by {signal.Signals(-code).name}"

    def _log_tail(self) -> str:
        self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - _SHOWN_LOG_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def _end(self) -> None:
        self._line.close()
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _death_of_another() -> DeadSimulatorError:
    return DeadSimulatorError("another simulator of its process died", is_first=False)


def _introduction(said: dict[str, Any]) -> Introduction:
    spaces = said.pop("spaces")
    obs = {key: Space(**space) for key, space in spaces["obs"].items()}
    return Introduction(spaces=Spaces(obs=obs, action=Space(**spaces["action"])), **said)


def _variables(*, is_own: bool) -> dict[str, str]:
    # The hash seed: simulators walk over sets. The threads: N simulators share the machine's cores.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", **threads}
    # Another interpreter must not find the packages of this one.
    hidden = () if is_own else ("PYTHONPATH", "PYTHONHOME")
    return {key: value for key, value in {**os.environ, **fixed}.items() if key not in hidden}
