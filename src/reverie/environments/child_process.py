"""Questions answered in a child process: a simulator that crashes or hangs there costs no more than its own answer."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

_CODE = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from reverie.environments.child_process import serve
serve(sys.argv[2])"""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A question on which the child crashed, or to which it gave no answer in time; ``why`` follows on its name."""

    why: str


def answers(module: str, questions: Sequence[str], *, timeout_seconds: float) -> Generator[Any, None, None]:
    """What ``module.answer(question)`` gives for each question, in order, or a `NoAnswer`.

    One child process answers as long as it lives and does so in time; then a new one goes on with the next question.
    """
    answered = 0
    while answered < len(questions):
        for answer in _life(module, questions[answered:], timeout_seconds):
            answered += 1
            yield answer


def serve(module: str) -> None:
    """The child's side: one line of JSON for each line of standard input."""
    faulthandler.enable()  # a crash in C code then says where, and the parent shows it
    # Simulators print what they like: standard output becomes standard error, and only this copy reaches the parent.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = importlib.import_module(module).answer
    for line in sys.stdin:
        print(json.dumps(answer(line.rstrip("\n"))), file=replies, flush=True)
    sys.stderr.flush()
    os._exit(0)  # simulators leave threads and exit handlers behind that can hang


def _life(module: str, questions: Sequence[str], timeout_seconds: float) -> Iterator[Any]:
    """The answers of one child process; the last is a `NoAnswer` where it did not answer them all."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # so that what it has started can be ended with it
        )
        assert child.stdin is not None
        assert child.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
        try:
            with suppress(BrokenPipeError):  # it is gone already, which its missing answers will show
                child.stdin.write("".join(f"{question}\n" for question in questions))
                child.stdin.close()
            for _ in questions:
                line = lines.get(timeout=timeout_seconds)
                if not line:
                    yield NoAnswer(_crash(child.wait(), log))
                    return
                yield json.loads(line)
        except queue.Empty:
            yield NoAnswer(f"gives no answer within {timeout_seconds:.0f} seconds")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait()


def _read(stream: IO[str], lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def _crash(code: int, log: IO[bytes]) -> str:
    log.seek(0)
    said = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in said if line.startswith("Fatal Python error")]  # what faulthandler writes first
    detail = (fatal or said[-1:] or ["it left no message"])[0]
    return f"ends its process with code {code} ({detail})"
