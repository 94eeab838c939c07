"""Procgen's old package, and the guide's own simulator, played in interpreters of their own."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reverie import cli
from reverie.build import environments
from reverie.commands.composition import IN_WORKERS, composed
from reverie.environments.isolated import interpreters, procgen
from reverie.environments.isolated.interpreters import interpreter_python
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.types import Observation, ReverieError

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guides/environments/isolated.md"
PROBE = Path(__file__).with_name("procgen_probe.py")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="session")
def procgen_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the real interpreter "procgen", built by the command once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "home_of_procgen"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REVERIE_HOME", str(home))
        home.mkdir(exist_ok=True)
        with (home / "one_at_a_time").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert cli.main(["env", "add", "procgen"]) == 0
    return home


@pytest.fixture
def procgen_python(procgen_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REVERIE_HOME", str(procgen_home))
    return interpreter_python("procgen")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REVERIE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def made() -> Iterator[Callable[..., SeparateEnvironments]]:
    """Makes Procgen environments in workers of the isolated interpreter."""
    open_ones: list[SeparateEnvironments] = []

    def make(task: str, *, seed: int = 0, **options: Any) -> SeparateEnvironments:
        maker = Maker(
            module=procgen.__name__,
            name="ProcgenEnvironment",
            arguments={"task": task, **options},
            interpreter=procgen.ProcgenEnvironment.interpreter,
        )
        open_ones.append(SeparateEnvironments(maker, num_envs=1, seed=seed, in_workers=True))
        return open_ones[-1]

    yield make
    for envs in open_ones:
        envs.close()


def test_the_old_package_lives_with_its_old_numpy(procgen_python: Path) -> None:
    code = "import numpy, procgen; print(numpy.__version__)"
    done = subprocess.run([procgen_python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1.26.")
    assert not np.__version__.startswith("1."), "while Reverie runs on today's"


@pytest.mark.usefixtures("procgen_python")
def test_adding_it_again_builds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stamp = interpreters.interpreters_folder() / "procgen" / "built.json"
    before = stamp.stat().st_mtime_ns
    assert cli.main(["env", "add", "procgen"]) == 0
    assert "already there" in capsys.readouterr().out
    assert stamp.stat().st_mtime_ns == before


def test_every_game_equals_the_bare_package_and_comes_back_bit_exactly(procgen_python: Path) -> None:
    done = subprocess.run(
        [procgen_python, PROBE, procgen.__file__], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert sorted(found) == sorted(procgen.GAMES)
    assert {game: report for game, report in found.items() if report["problems"]} == {}
    assert all(report["steps"] > 20 for report in found.values())
    assert sum(report["terminals"] for report in found.values()) > 10


def actions(count: int, num_envs: int = 1) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [torch.randint(15, (num_envs,), generator=rng) for _ in range(count)]


def rows_equal(one: Observation, other: Observation) -> bool:
    return torch.equal(one.obs["image"], other.obs["image"]) and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("reward", "is_first", "is_last", "is_terminal")
    )


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split())


@pytest.mark.usefixtures("procgen_python")
def test_the_config_gives_a_thousand_good_rows_and_leaves_no_process() -> None:
    before = children()
    config = composed("procgen_fruitbot", ["experiment=random_cartpole", "environment=procgen_isolated", IN_WORKERS])
    envs = environments(config, num_envs=2, seed=0, allow=None)
    try:
        assert len(children() - before) == 2
        seen = envs.observe()
        assert seen.is_first.all()
        ends = 0
        for action in actions(1000, num_envs=2):
            last, seen = seen, envs.step(action)
            assert torch.equal(seen.is_first, last.is_last)
            assert not (seen.is_terminal & ~seen.is_last).any()
            assert not seen.reward[seen.is_first].any()
            assert seen.obs["image"].dtype == torch.uint8
            ends += int(seen.is_last.sum())
        assert ends > 10
    finally:
        envs.close()
    assert children() <= before


@pytest.mark.usefixtures("procgen_python")
def test_a_killed_run_leaves_no_simulator() -> None:
    code = (
        "import os, signal, pathlib\n"
        "from reverie.build import environments\n"
        "from reverie.commands.composition import IN_WORKERS, composed\n"
        "chosen = ['experiment=random_cartpole', 'environment=procgen_isolated', IN_WORKERS]\n"
        "config = composed('procgen_maze', chosen)\n"
        "envs = environments(config, num_envs=1, seed=0, allow=None)\n"
        "envs.observe()\n"
        "print(pathlib.Path(f'/proc/self/task/{os.getpid()}/children').read_text().strip(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (simulator,) = done.stdout.split()
    deadline = time.monotonic() + 30
    while is_running(simulator):
        assert time.monotonic() < deadline, "it outlived its run"
        time.sleep(0.1)


def is_running(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.usefixtures("procgen_python")
def test_workers_play_the_seed_and_come_back_by_state(made: Callable[..., SeparateEnvironments]) -> None:
    envs = made("procgen_starpilot", seed=3)
    other = envs.reset(4)
    first = envs.reset(3)
    assert first.obs["image"].shape == (1, 64, 64, 3)
    assert not rows_equal(first, other)
    plan = actions(150)
    seen = [envs.step(action) for action in plan[:70]]
    saved = envs.get_state()
    seen += [envs.step(action) for action in plan[70:]]
    assert sum(int(row.is_last.sum()) for row in seen) > 1, "episodes end here, so the border was crossed"

    assert rows_equal(envs.reset(3), first)
    assert all(rows_equal(envs.step(action), row) for action, row in zip(plan, seen, strict=True))
    resumed = made("procgen_starpilot", seed=3)
    resumed.set_state(saved)
    assert resumed.inexact is None
    assert all(rows_equal(resumed.step(action), row) for action, row in zip(plan[70:], seen[70:], strict=True))


@pytest.mark.usefixtures("procgen_python")
def test_a_time_limit_is_no_termination_and_keeps_the_last_frame(made: Callable[..., SeparateEnvironments]) -> None:
    envs = made("procgen_maze", num_levels=1, start_level=7)
    first = envs.observe()
    rows = [envs.step(torch.tensor([4])) for _ in range(500)]
    assert [row.is_last.item() for row in rows] == [False] * 499 + [True]
    assert not rows[-1].is_terminal.item()
    assert torch.equal(rows[-1].obs["image"], first.obs["image"]), "a mouse that waits sees the same maze to the end"
    assert rows[-1].scores[0] == {"level_complete": 0.0}
    assert envs.step(torch.tensor([4])).is_first.item()


@pytest.mark.usefixtures("procgen_python")
def test_where_the_game_ends_an_episode_the_frame_before_is_shown(made: Callable[..., SeparateEnvironments]) -> None:
    envs = made("procgen_bossfight")
    rows = [envs.observe()]
    while not rows[-1].is_last.item():
        rows.append(envs.step(torch.tensor([4])))
    assert rows[-1].is_terminal.item()
    assert torch.equal(rows[-1].obs["image"], rows[-2].obs["image"])
    assert not torch.equal(rows[-1].obs["image"], envs.step(torch.tensor([4])).obs["image"]), "the next episode differs"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "procgen_coinrum"}, "did you mean procgen_coinrun"),
        ({"task": "procgen_go"}, "the games are bigfish"),
        ({"distribution_mode": "hrd"}, "easy, hard"),
        ({"distribution_mode": "extreme"}, "coinrun has no distribution_mode 'extreme'"),
        ({"num_levels": -1}, "out of range"),
        ({"start_level": 3}, "set num_levels too"),
        ({"distribution_mode": "exploration", "num_levels": 2}, "single level"),
    ],
)
def test_what_procgen_would_end_its_process_for_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(procgen.ReverieError, match=named):
        procgen.ProcgenEnvironment(**{"task": "procgen_coinrun", **options})


@pytest.mark.usefixtures("procgen_python")
def test_a_refusal_in_the_worker_reaches_the_user(made: Callable[..., SeparateEnvironments]) -> None:
    with pytest.raises(ReverieError, match="did you mean procgen_coinrun"):
        made("procgen_coinrum")


def test_the_guide_adds_a_simulator(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name, language in (("my_simulator.toml", "toml"), ("my_adapter.py", "python")):
        found = re.search(rf"`{name}`:\n\n```{language}\n(.*?)^```", text, flags=re.M | re.S)
        assert found is not None, name
        (tmp_path / name).write_text(found[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["env", "add", str(tmp_path / "my_simulator.toml")]) == 0
    target = importlib.import_module("my_adapter").WalkEnvironment
    maker = Maker(
        module="my_adapter", name="WalkEnvironment", arguments={"task": "walk"}, interpreter=target.interpreter
    )
    envs = SeparateEnvironments(maker, num_envs=1, seed=0, in_workers=True)
    try:
        assert envs.observe().is_first.item()
        rows = [envs.step(torch.tensor([1])) for _ in range(10)]
        assert (rows[-1].reward.item(), rows[-1].is_terminal.item()) == (1.0, True)
        assert rows[-1].scores[0] == {"success": 1.0}
    finally:
        envs.close()
        del sys.modules["my_adapter"]
    assert home in interpreter_python("my_simulator").parents
