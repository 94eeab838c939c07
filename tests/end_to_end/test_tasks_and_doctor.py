"""`reverie tasks`, `reverie doctor` and what they rest on: suites by name, and simulators that may crash or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import gymnasium
import pytest

from reverie.cli import main
from reverie.commands import doctor, tasks
from reverie.environments import suites
from reverie.environments.child_process import NoAnswer, answers
from reverie.environments.task_descriptions import descriptions
from reverie.types import ReverieError, Space

# Written to a file, because `gym:traps:...` is about a package that is imported by its name.
TRAPS = """
import os
import time

import gymnasium
from gymnasium import spaces


class Calm(gymnasium.Env):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self):
        print("printed by the simulator")

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 1, 0.0, False, False, {}


class Crash(Calm):
    def __init__(self):
        os.abort()


class Hang(Calm):
    def __init__(self):
        time.sleep(3600)


class Trip(Calm):
    def step(self, action):
        raise RuntimeError("the wheel came off")


class Exit(Calm):
    def step(self, action):
        os._exit(3)


class Stall(Calm):
    def step(self, action):
        time.sleep(3600)


for name in ("Calm", "Crash", "Hang", "Trip", "Exit", "Stall"):
    gymnasium.register(f"{name}-v0", entry_point=f"traps:{name}")
"""


@pytest.fixture(scope="module", autouse=True)
def traps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("traps")
    (folder / "traps.py").write_text(TRAPS)
    registered = dict(gymnasium.registry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("traps", None)
    gymnasium.registry.clear()
    gymnasium.registry.update(registered)


def trap(name: str) -> str:
    return f"gym:traps:{name}-v0"


def test_suites_are_found_without_torch_or_a_simulator() -> None:
    code = (
        "import sys\n"
        "from reverie.environments.suites import suite, suite_names\n"
        "[suite(name) for name in suite_names()]\n"
        "heavy = {'torch', 'gymnasium', 'ale_py', 'dm_control', 'mujoco', 'crafter', 'minigrid', 'hydra'}\n"
        "print(*suite_names(), '|', *sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, _, heavy = done.stdout.partition("|")
    assert "gym" in names.split()
    assert "suites" not in names.split()
    assert heavy.split() == []


@pytest.mark.parametrize("name", suites.suite_names())
def test_every_suite_names_its_tasks_after_itself(name: str) -> None:
    names = suites.tasks_of(name)
    assert names
    assert len(names) == len(set(names))
    assert {suites.suite_of(task) for task in names} == {name}
    assert suites.example_of(name) in names


def test_a_task_belongs_to_the_suite_before_its_first_mark() -> None:
    assert suites.suite_of("gym_CartPole-v1") == suites.suite_of("gym:my_package:MyEnv-v0") == "gym"
    with pytest.raises(ReverieError, match="did you mean the suite gym"):
        suites.suite_of("gmy_CartPole-v1")
    with pytest.raises(ReverieError, match=r"the suites are .*gym"):
        suites.suite_of("zzzzz")
    with pytest.raises(ReverieError, match="named SUITE_TASK"):
        suites.suite_of("gym")


def test_a_suite_of_ones_own_may_call_its_tasks_what_it_likes() -> None:
    assert suites.suite_of("walk", own=["walk"]) == suites.suite_of("walk_far", own=["walk"]) == "walk"
    with pytest.raises(ReverieError, match="did you mean the suite walk"):
        suites.suite_of("wlak_far", own=["walk"])


def test_spaces_in_words() -> None:
    assert suites.space_words(Space(shape=(64, 64, 3), dtype="uint8")) == "uint8 64x64x3"
    assert suites.space_words(Space(shape=(), dtype="int64", classes=5)) == "1 of 5"
    assert suites.space_words(Space(shape=(2,), dtype="int64", classes=(2, 2))) == "2 times 1 of 2"
    assert suites.space_words(Space(shape=(2,), dtype="int64", classes=(2, 7))) == "2 times 1 of 2 to 7"
    assert suites.space_words(Space(shape=(), dtype="float32")) == "float32 scalar"


def test_crashes_and_hangs_are_answers_and_the_rest_goes_on() -> None:
    start = time.monotonic()
    asked = [trap("Crash"), trap("Calm"), trap("Hang"), "gym_CartPole-v1"]
    crashed, calm, hung, cartpole = descriptions(asked, timeout_seconds=8)
    assert crashed.problem == "ends its process with code -6 (Fatal Python error: Aborted)"
    assert hung.problem == "gives no answer within 8 seconds"
    assert calm.problem is cartpole.problem is None
    assert calm.observation == "discrete: 1 of 2"
    assert [info.name for info in (crashed, calm, hung, cartpole)] == asked
    assert time.monotonic() - start < 60


def test_a_child_is_not_left_behind() -> None:
    asking = answers("reverie.environments.task_descriptions", [trap("Hang")], timeout_seconds=3)
    assert next(asking) == NoAnswer("gives no answer within 3 seconds")
    assert len(hanging_children()) == 1
    asking.close()
    assert hanging_children() == []


def test_whoever_leaves_the_descriptions_early_ends_the_children_at_once() -> None:
    calm = [trap("Calm")] * 12  # as many as one child is given
    asking = descriptions([*calm, *[trap("Hang")] * 12])
    assert next(asking).problem is None
    start = time.monotonic()
    asking.close()
    assert time.monotonic() - start < 5
    assert hanging_children() == []


def test_ctrl_c_leaves_the_list_of_tasks_at_once() -> None:
    # No terminal can press the keys here; a signal to the main process alone is what the children would not survive.
    # The handler is set by hand, because a process that a shell started in the background ignores SIGINT.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); " + (
        "from reverie.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "tasks", trap("Hang")]
    path = os.pathsep.join(sys.path)
    asking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    deadline = time.monotonic() + 60
    while not hanging_children(asking.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    children = hanging_children(asking.pid)
    asking.send_signal(signal.SIGINT)
    start = time.monotonic()
    assert asking.communicate(timeout=60)[1] == "reverie: interrupted\n"
    assert time.monotonic() - start < 5
    assert len(children) == 1
    assert asking.returncode == 130


def hanging_children(parent: int | None = None) -> list[str]:
    """Command lines of the child processes that answer questions; ours where no ``parent`` is named."""
    asked = ["ps", "-ww", "--ppid", str(parent or os.getpid()), "-o", "args="]
    found = subprocess.run(asked, capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if "task_descriptions" in line]


def test_tasks_are_listed_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "gym_cartpole*"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("task")
    assert [line.split()[0] for line in lines] == ["gym_CartPole-v1"]
    assert lines[0].split()[1:] == ["vector:", "float32", "4", "1", "of", "2", "500", "1", "yes"]
    assert main(["tasks", "cartpol-v1"]) == 2
    assert "did you mean `gym_CartPole-v1`?" in capsys.readouterr().err
    assert main(["tasks", "qqqqqqqq"]) == 2
    assert "`reverie tasks` lists the suites" in capsys.readouterr().err


def test_an_own_task_is_described_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "gym:nowhere:X-v0"]) == 0
    assert "needs the package nowhere" in capsys.readouterr().out


def test_without_a_pattern_the_suites_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "suite_names", lambda: ["gym"])  # one is enough to see the form
    assert main(["tasks"]) == 0
    heading, line, *rest = capsys.readouterr().out.splitlines()
    assert heading.split() == ["suite", "tasks", "example", "runs", "here"]
    assert line.split() == ["gym", str(len(suites.tasks_of("gym"))), "gym_CartPole-v1", "yes"]
    assert any("reverie train task=" in text for text in rest)


def test_an_observation_of_many_keys_is_shortened() -> None:
    assert tasks.short_observation("vector: float32 4") == "vector: float32 4"
    many = ", ".join(f"key_{index}: float32 {index}" for index in range(9))
    assert tasks.short_observation(many) == "key_0: float32 0, key_1: float32 1, ... and 7 more"
    assert tasks.short_observation(many, width=len(many)) == many
    assert tasks.short_observation(f"{'k' * 80}: float32 1, b: float32 2") == f"{'k' * 80}: float32 1, ... and 1 more"


def test_patterns_are_parts_or_globs() -> None:
    assert tasks.matches("gym_CartPole-v1", "cartPOLE")
    assert tasks.matches("gym_CartPole-v1", "gym_*")
    assert not tasks.matches("gym_CartPole-v1", "cart*")


def test_doctor_takes_a_real_step_in_each_suite() -> None:
    asked = [trap("Calm"), trap("Trip"), trap("Exit"), trap("Crash"), "gym:nowhere:X-v0"]
    calm, trip, gone, crash, missing = doctor.stepped(asked, timeout_seconds=60)
    (stall,) = doctor.stepped([trap("Stall")], timeout_seconds=5)
    assert calm.verdict == "ok"
    assert "one step in gym:traps:Calm-v0" in calm.text
    assert {one.verdict for one in (trip, gone, stall, crash, missing)} == {"BAD"}
    assert "the wheel came off" in trip.text
    assert "exit code 3" in gone.text
    assert "gives no answer within 5 seconds" in stall.text
    assert "ends its process with code -6" in crash.text
    assert "needs the package nowhere" in missing.text


def test_doctor_finds_this_machine_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(suites, "suite_names", lambda: ["gym"])  # the other suites have tests of their own
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "one step in gym_CartPole-v1" in out
    assert {"python", "torch", "cuda", "OpenGL", "disk", "memory"} <= {line.split()[1] for line in out.splitlines()}
    assert out.splitlines()[-1] == "Ready: start with `reverie train`."


def test_doctor_names_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        doctor.Finding(name="disk", text="full", verdict="BAD"),
        doctor.Finding(name="suite x", text="pip install x", verdict="--"),
    ]
    monkeypatch.setattr(doctor, "findings", lambda: iter(findings))
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["Not usable here: suite x.", "Not ready: see disk."]
    monkeypatch.setattr(doctor, "findings", lambda: iter(findings[1:]))
    assert main(["doctor"]) == 0
