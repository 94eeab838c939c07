"""Serves one simulator to another process: started by `worker.py`, as a script, with any Python from 3.7 on.

It stands alone (standard library and numpy) because a simulator may need an interpreter that is too old for Reverie.
Commands and answers are short messages over a socket; observations and actions lie in memory that both sides map.
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
import signal
import struct
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PARENT_IS_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


def main() -> None:
    """Arguments: the descriptors of the socket and of the shared memory."""
    # A terminal's Ctrl-C and a scheduler's SIGTERM reach the whole group. The parent decides when a simulator ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()  # a crash in C code leaves its traceback in the log that the parent keeps
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    channel = Connection(int(sys.argv[1]))
    try:
        with contextlib.suppress(*_PARENT_IS_GONE):
            _serve(channel, memory=int(sys.argv[2]))
    finally:
        sys.stderr.flush()
        os._exit(0)  # simulators leave threads and exit handlers behind that can hang


def _leave_with_parent(parent: int) -> None:
    """A closed socket ends an idle worker; this ends one that is busy when its parent is killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _serve(channel: Connection, memory: int) -> None:
    spec = json.loads(channel.recv_bytes().decode())
    try:
        server = _Server(_made(spec), memory)
        channel.send_bytes(b"v" + json.dumps(server.introduction()).encode())
        while server.is_open:
            channel.send_bytes(server.answer(channel.recv_bytes()))
    except _PARENT_IS_GONE:
        raise
    except BaseException as error:
        # By name: the class itself lives in a package that an old interpreter cannot import.
        is_refusal = type(error).__name__ == "ReverieError"
        channel.send_bytes(b"x" + str(error).encode() if is_refusal else b"e" + traceback.format_exc().encode())


def _made(spec: dict[str, Any]) -> Any:
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
    return getattr(module, spec["name"])(**spec["arguments"])


class _Server:
    def __init__(self, simulator: Any, memory: int) -> None:
        self.is_open = True
        self._simulator = simulator
        self._memory = memory
        self._rows: dict[str, Any] = {}
        self._obs_keys: list[str] = []

    def introduction(self) -> dict[str, Any]:
        simulator = self._simulator
        spaces = simulator.spaces
        if not isinstance(spaces, dict):
            spaces = {"obs": {key: _plain(space) for key, space in spaces.obs.items()}, "action": _plain(spaces.action)}
        names = ("task", "frames_per_step", "resume")
        return {"spaces": spaces, **{name: getattr(simulator, name) for name in names}}

    def answer(self, message: bytes) -> bytes:
        kind, body = message[:1], message[1:]
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
        self._obs_keys = [name for name in self._rows if name.startswith("obs/")]

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
        for name in self._obs_keys:
            value = timestep.obs[name[4:]]
            row = self._rows[name]
            if value.shape != row.shape or value.dtype != row.dtype:
                raise ValueError(
                    f"the observation {name[4:]} is {value.dtype} of shape {value.shape}, "
                    f"not {row.dtype} of shape {row.shape}"
                )
            row[...] = value
        self._rows["reward"][...] = timestep.reward
        for name in ("is_first", "is_last", "is_terminal"):
            self._rows[name][...] = getattr(timestep, name)
        return b"i" + json.dumps(dict(timestep.scores)).encode() if timestep.scores else b"d"


def _plain(space: Any) -> dict[str, Any]:
    return {"shape": list(space.shape), "dtype": space.dtype, "classes": space.classes}


if __name__ == "__main__":
    main()
