"""A simulator in a process of its own: started, asked, watched, and started again when it dies."""

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
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
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
    """Starts at once and in the background; ``introduction`` waits until the simulator is there."""

    def __init__(self, maker: Maker, *, memory: int) -> None:
        self._maker = maker
        self._memory = memory
        self._layout: dict[str, Any] | None = None
        # What simulators print belongs to nobody's screen; the end of it is shown when one dies.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the seat
        self._start()

    def introduction(self) -> Introduction:
        said = json.loads(self._value())
        spaces = said.pop("spaces")
        obs = {key: Space(**space) for key, space in spaces["obs"].items()}
        return Introduction(spaces=Spaces(obs=obs, action=Space(**spaces["action"])), **said)

    def attach(self, board: Board, index: int) -> None:
        self._layout = board.layout(index)
        self._send(b"m" + json.dumps(self._layout).encode())
        self.finish()

    def begin_reset(self, seed: int) -> None:
        if os.fstat(self._log.fileno()).st_size > _MAX_LOG_BYTES:
            os.ftruncate(self._log.fileno(), 0)  # opened for appending there, so it goes on at the new end
        self._send(b"r" + struct.pack("<q", seed))

    def begin_step(self) -> None:
        self._send(b"s")

    def begin_replay(self, seed: int, actions: np.ndarray) -> None:
        self._send(b"p" + struct.pack("<q", seed) + actions.tobytes())

    def finish(self) -> Mapping[str, float]:
        kind, body = self._received()
        if kind == b"i":
            return json.loads(body)
        assert kind == b"d", f"the worker answered {kind!r}"
        return {}

    def get_state(self) -> State:
        self._send(b"g")
        return pickle.loads(self._value())  # from our own child, not from a file

    def set_state(self, state: State) -> None:
        self._send(b"t" + pickle.dumps(state, protocol=4))
        self.finish()

    def restart(self) -> None:
        self._end()
        self._start()
        self.introduction()
        self._send(b"m" + json.dumps(self._layout).encode())
        self.finish()

    def close(self) -> None:
        if self._process.poll() is None:
            with suppress(OSError):  # it may die in this moment
                self._channel.send_bytes(b"c")
                self._channel.poll(_CLOSING_SECONDS)
        self._end()
        self._log.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel = Connection(ours.detach())
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
                env=_variables(is_own=is_own),
            )
        finally:
            os.close(log)
            theirs.close()
        file = None if is_own else sys.modules[self._maker.module].__file__
        self._send(self._maker.spec(sys_path=sys.path if is_own else None, file=file))

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # its answer will be missing too, and says so in one place
            self._channel.send_bytes(message)

    def _value(self) -> bytes:
        kind, body = self._received()
        assert kind == b"v", f"the worker answered {kind!r}"
        return body

    def _received(self) -> tuple[bytes, bytes]:
        try:
            message = self._channel.recv_bytes()
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
        code = self._process.wait()
        if code >= 0:
            return f"its process ended with exit code {code}"
        return f"its process was ended by {signal.Signals(-code).name}"

    def _log_tail(self) -> str:
        self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - _SHOWN_LOG_BYTES))
        return self._log.read().decode(errors="replace").strip()

    def _end(self) -> None:
        self._channel.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def _variables(*, is_own: bool) -> dict[str, str]:
    # The hash seed: simulators walk over sets. The threads: N simulators share the machine's cores.
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # Another interpreter must not find the packages of this one.
    hidden = () if is_own else ("PYTHONPATH", "PYTHONHOME")
    return {key: value for key, value in {**os.environ, **fixed}.items() if key not in hidden}
