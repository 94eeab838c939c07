"""Serves simulators to another process: started by `worker.py`, as a script, with any Python from 3.7 on.

It stands alone (standard library and numpy) because a simulator may need an interpreter that is too old for Reverie.
Observations and actions lie in memory that both sides map. Commands pass over a socket in bundles, one command for some
or all of the simulators, and the answers come back in one bundle: a message costs as much as many a simulator's step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

_PARENT_IS_GONE = (EOFError, BrokenPipeError, ConnectionResetError)
_HEADER = struct.Struct("<HI")
"""Before each message of a bundle: the number of its simulator, and its length."""
_ENVELOPE = struct.Struct("<Id")
"""Before each message on the socket: its length, and when it was sent."""
_MOST_BYTES = 2**16
"""Read from the socket at once."""
ALL_STEP = b"s"
"""In the place of a bundle: every simulator of the process steps."""
ALL_DONE = b"d"
"""In the place of a bundle of answers: those that were asked have nothing to say but that it is done."""


def main() -> None:
    """Arguments: the descriptors of the socket and of the shared memory."""
    # The parent decides when a simulator ends. Handlers and not SIG_IGN, which what a simulator starts would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for descriptor in sys.argv[1:3]:
        # What a simulator starts must not hold the socket open: the parent hears of a death by its closing.
        os.set_inheritable(int(descriptor), False)
    faulthandler.enable()  # a crash in C code leaves its traceback in the log that the parent keeps
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        with contextlib.suppress(*_PARENT_IS_GONE):
            _serve(Line(int(sys.argv[1])), memory=int(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
    finally:
        _leave()


def _leave_with_parent(parent: int) -> None:
    """A closed socket ends an idle worker; this ends one that is busy when its parent is killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    _leave()


def _leave() -> None:
    """End this process at once, threads and exit handlers included, and whatever the simulator has started."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


class Line:
    """One end of a socket that carries whole messages."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._unread = bytearray()
        self._last_wait = 0.0

    def send(self, message: bytes) -> None:
        self._socket.sendall(_ENVELOPE.pack(len(message), time.perf_counter()) + message)

    def receive(self, *, awake_seconds: float = 0.0) -> bytes:
        """The next message. Looks for it so long before it sleeps: to wake a process can take longer than it works.

        It sleeps at once where the last message was sent later than that: then the other side has other things to do,
        perhaps on this processor.
        """
        start = time.perf_counter()
        if self._last_wait < awake_seconds and not self._unread:
            while not self._poll.poll(0) and time.perf_counter() < start + awake_seconds:
                os.sched_yield()
        message = self._taken(since=start)
        while message is None:
            received = self._socket.recv(_MOST_BYTES)
            if not received:
                raise EOFError
            self._unread += received
            message = self._taken(since=start)
        return message

    def has_message(self, *, within_seconds: float = 0.0) -> bool:
        """Whether something was sent, or the other end is closed."""
        return bool(self._poll.poll(1000.0 * within_seconds))

    def close(self) -> None:
        self._socket.close()

    def _taken(self, *, since: float) -> bytes | None:
        """The first message that was read to its end, or None. Notes how long after ``since`` it was sent."""
        unread = self._unread
        if len(unread) < _ENVELOPE.size:
            return None
        length, sent = _ENVELOPE.unpack_from(unread)
        end = _ENVELOPE.size + length
        if len(unread) < end:
            return None
        message = bytes(unread[_ENVELOPE.size : end])
        del unread[:end]
        self._last_wait = sent - since
        return message


def _serve(line: Line, memory: int) -> None:
    spec = json.loads(line.receive().decode())
    if spec["processors"]:
        # Linux wakes whoever reads a socket where its writer runs, so that all workers would queue on one processor.
        os.sched_setaffinity(0, spec["processors"])
    try:
        make = _maker(spec)
        servers = [_Server(make(**spec["arguments"]), memory) for _ in range(spec["count"])]
        line.send(b"v" + json.dumps([server.introduction() for server in servers]).encode())
        while servers[0].is_open:
            line.send(_answers(servers, line.receive(awake_seconds=spec["awake_seconds"])))
    except _PARENT_IS_GONE:
        raise
    except BaseException as error:
        # By name: the class itself lives in a package that an old interpreter cannot import.
        is_refusal = type(error).__name__ == "ReverieError"
        text = str(error) if is_refusal else traceback.format_exc()
        line.send((b"x" if is_refusal else b"e") + text.encode(errors="backslashreplace"))


def _answers(servers: list[_Server], message: bytes) -> bytes:
    bundle = [(index, b"s") for index in range(len(servers))] if message == ALL_STEP else unbundled(message)
    answers = [(index, servers[index].answer(command)) for index, command in bundle]
    if all(answer == b"d" for _, answer in answers):
        return ALL_DONE
    return b"b" + bundled(answers)


def bundled(parts: list[tuple[int, bytes]]) -> bytes:
    """Messages by the number of the simulator they belong to, as one."""
    return b"".join(_HEADER.pack(index, len(part)) + part for index, part in parts)


def unbundled(message: bytes) -> list[tuple[int, bytes]]:
    parts = []
    start = 0
    while start < len(message):
        index, length = _HEADER.unpack_from(message, start)
        start += _HEADER.size + length
        parts.append((index, message[start - length : start]))
    return parts


def _maker(spec: dict[str, Any]) -> Any:
    # The folder of this script is no place to import from: its files carry the names of the packages they adapt.
    here = Path(__file__).resolve().parent
    sys.path[:] = spec["sys_path"] or [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    if spec["file"] is None:
        module = importlib.import_module(spec["module"])
    else:
        found = importlib.util.spec_from_file_location(spec["module"], spec["file"])
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[spec["module"]] = module
        found.loader.exec_module(module)
    return getattr(module, spec["name"])


class _Server:
    def __init__(self, simulator: Any, memory: int) -> None:
        self.is_open = True
        self._simulator = simulator
        self._memory = memory
        self._rows: dict[str, Any] = {}
        self._obs: list[tuple[str, Any, Any, Any]] = []
        self._is_busy: Any = [False]

    def introduction(self) -> dict[str, Any]:
        simulator = self._simulator
        spaces = simulator.spaces
        if not isinstance(spaces, dict):
            spaces = {"obs": {key: _plain(space) for key, space in spaces.obs.items()}, "action": _plain(spaces.action)}
        names = ("task", "frames_per_step", "resume")
        # Left in the environment by whoever has found out how this machine draws.
        drawn_by = os.environ.get("REVERIE_RENDERING")
        return {"spaces": spaces, "drawn_by": drawn_by, **{name: getattr(simulator, name) for name in names}}

    def answer(self, message: bytes) -> bytes:
        self._is_busy[0] = True  # stays so where the simulator fails: the parent reads there which one did
        answer = self._answer(message[:1], message[1:])
        self._is_busy[0] = False
        return answer

    def _answer(self, kind: bytes, body: bytes) -> bytes:
        if kind == b"s":
            return self._seen(self._simulator.step(self._rows["action"].copy()))
        if kind == b"r":
            return self._seen(self._simulator.reset(struct.unpack("<q", body)[0]))
        if kind == b"p":
            return self._seen(self._replayed(struct.unpack("<q", body[:8])[0], self._actions(body[8:])))
        if kind == b"m":
            self._map(json.loads(body.decode()))
        elif kind == b"g":
            return b"v" + pickle.dumps(self._simulator.get_state(), protocol=4)
        elif kind == b"t":
            self._simulator.set_state(pickle.loads(body))  # from our own parent, not from a file
        elif kind == b"c":
            self.is_open = False
            self._simulator.close()
        else:
            raise ValueError(f"no such command: {kind!r}")
        return b"d"

    def _map(self, layout: dict[str, Any]) -> None:
        import numpy as np

        memory = mmap.mmap(self._memory, layout["size"])
        for name, (dtype, shape, offset) in layout["rows"].items():
            count = int(np.prod(shape, dtype=np.int64))
            self._rows[name] = np.frombuffer(memory, dtype=dtype, count=count, offset=offset).reshape(shape)
        obs = [(name[4:], row) for name, row in self._rows.items() if name.startswith("obs/")]
        self._obs = [(key, row, row.shape, row.dtype) for key, row in obs]
        self._is_busy = self._rows["is_busy"].reshape(1)

    def _actions(self, raw: bytes) -> Any:
        import numpy as np

        row = self._rows["action"]
        return np.frombuffer(raw, dtype=row.dtype).reshape((-1, *row.shape)).copy()

    def _replayed(self, seed: int, actions: Any) -> Any:
        if hasattr(self._simulator, "replay"):
            return self._simulator.replay(seed, actions)
        timestep = self._simulator.reset(seed)
        for action in actions:
            timestep = self._simulator.step(action)
        return timestep

    def _seen(self, timestep: Any) -> bytes:
        for key, row, shape, dtype in self._obs:
            value = timestep.obs[key]
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(
                    f"the observation {key} is {value.dtype} of shape {value.shape}, not {dtype} of shape {shape}"
                )
            row[...] = value
        rows = self._rows
        rows["reward"][...] = timestep.reward
        rows["is_first"][...] = timestep.is_first
        rows["is_last"][...] = timestep.is_last
        rows["is_terminal"][...] = timestep.is_terminal
        return b"i" + json.dumps(dict(timestep.scores)).encode() if timestep.scores else b"d"


def _plain(space: Any) -> dict[str, Any]:
    return {"shape": list(space.shape), "dtype": space.dtype, "classes": space.classes}


if __name__ == "__main__":
    main()
