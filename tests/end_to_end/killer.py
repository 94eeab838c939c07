"""Runs `reverie` in real processes that die by a real SIGKILL at a chosen call, or forget a part of their state.

Run as a script this is a server: it imports everything once and forks one process per command, which saves seconds of
imports each. It reads one JSON request per line and answers with two lines, the process id and the exit code. The
product knows nothing of all this; a forked process patches it before it calls the command line.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Call = Callable[..., Any]

_INHERITED = (
    *("reverie.cli", "reverie.session", "reverie.commands.train", "reverie.commands.resume"),
    *("gymnasium.envs.classic_control.cartpole", "matplotlib.backends.backend_agg", "matplotlib.figure"),
)
"""What is imported once, for all forked processes."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Die around the ``count``-th call of ``target`` (module:Class.method); ``within`` means at its first fsync.

    ``never`` stays in that call instead, for longer than any test waits, so that signals can meet it there.
    """

    target: str
    when: Literal["before", "within", "after", "never"]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Forget:
    """Restore nothing when ``target`` (a ``set_state``) is called, or, with ``key``, all but that key."""

    target: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    """The exit code, or minus the number of the signal that ended the process."""
    output: str


class Killer:
    """The client of the server. ``home`` is the working directory of every command."""

    def __init__(self, home: Path, source: Path | str, prefix: tuple[str, ...] = ()) -> None:
        """``source`` is the PYTHONPATH; ``prefix`` a command that starts the server, perhaps with mounts of its own."""
        self.home = home
        self._log = home / "output.txt"
        # One thread per process: that is what the runs themselves use, and a fork may not happen beside threads.
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        command = [*prefix, sys.executable, __file__]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def seen(self, path: Path) -> Path:
        """A path inside the server's mounts, as other processes find it."""
        return Path(f"/proc/{self._server.pid}/root") / path.relative_to("/")

    def run(self, *argv: str, kill: Kill | None = None, forget: Forget | None = None) -> Ended:
        self._start(argv, kill, forget)
        return self._ended()

    def program(self, *argv: str) -> None:
        """Run another program where the server runs."""
        self._start(argv, None, None, is_program=True)
        ended = self._ended()
        assert ended.code == 0, ended.output

    def signalled(
        self,
        *argv: str,
        delay_seconds: float,
        number: int = signal.SIGKILL,
        until: Callable[[], bool] = lambda: True,
        gap_seconds: float | None = None,
        kill: Kill | None = None,
    ) -> Ended:
        """Send a signal some time after ``until`` became true, and, with a gap, once more after that."""
        pid = self._start(argv, kill, None)
        while not until() and not self._is_answered(0.005):
            pass
        for pause in (delay_seconds, gap_seconds):
            if pause is not None and not self._is_answered(pause):
                os.kill(pid, number)
        return self._ended()

    def output(self) -> str:
        """What the latest command has printed so far."""
        return self._log.read_text()

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(60)

    def _start(
        self, argv: tuple[str, ...], kill: Kill | None, forget: Forget | None, *, is_program: bool = False
    ) -> int:
        assert self._server.stdin is not None
        self._log.write_text("")
        request = {
            "argv": argv,
            "is_program": is_program,
            "home": str(self.home),
            "log": str(self._log),
            "kill": asdict(kill) if kill else None,
            "forget": asdict(forget) if forget else None,
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def _ended(self) -> Ended:
        return Ended(self._answer(), self.output())

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def _is_answered(self, seconds: float) -> bool:
        return bool(select.select([self._server.stdout], [], [], seconds)[0])


def serve() -> None:
    for name in _INHERITED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(request)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(request: dict[str, Any]) -> None:
    """The forked process: never returns."""
    from reverie.cli import main

    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(request["home"])
    code = 1
    try:
        if request["is_program"]:
            os.execvp(request["argv"][0], request["argv"])
        if request["kill"]:
            _arm(Kill(**request["kill"]))
        if request["forget"]:
            _make_forgetful(Forget(**request["forget"]))
        code = main(request["argv"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _arm(kill: Kill) -> None:
    calls = 0

    def armed(original: Call, *arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != kill.count:
            return original(*arguments, **keywords)
        if kill.when == "never":
            print("waiting for signals", flush=True)
            time.sleep(600)
        if kill.when == "before":
            _die()
        if kill.when == "within":
            os.fsync = _die
        result = original(*arguments, **keywords)
        _die()
        return result

    _replace(kill.target, armed)


def _make_forgetful(forget: Forget) -> None:
    def forgetful(original: Call, owner: Any, state: dict[str, Any], **keywords: Any) -> None:
        if forget.key is not None:
            # Streams are put back once before those of the replay begin: then there is nothing to forget.
            old = {forget.key: owner.get_state()[forget.key]} if forget.key in state else {}
            original(owner, {**state, **old}, **keywords)

    _replace(forget.target, forgetful)


def _replace(target: str, replacement: Call) -> None:
    """Put ``replacement(original, ...)`` in the place of a function or method."""
    module_name, _, path = target.partition(":")
    holder: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    original = getattr(holder, name)

    @functools.wraps(original)
    def replaced(*arguments: Any, **keywords: Any) -> Any:
        return replacement(original, *arguments, **keywords)

    setattr(holder, name, replaced)


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # a signal to oneself arrives at once; this only makes sure that nothing happens after it


if __name__ == "__main__":
    serve()
