"""Faults through the whole command line: each one sentence and exit code 2, the last good checkpoint untouched."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from killer import Ended, Kill, Killer
from same_run import SMALL_RUN, checkpoint_names, differences
from test_checkpoint_faults import permitted_mounter


def check_refused(ended: Ended, *words: str) -> None:
    """Exit code 2 and, at the end, one line for the user that holds the words."""
    assert ended.code == 2, ended.output
    assert "Traceback" not in ended.output
    sentence = ended.output.strip().splitlines()[-1]
    assert sentence.startswith("reverie: ")
    assert sum(line.startswith("reverie: ") for line in ended.output.splitlines()) == 1
    for word in words:
        assert word in sentence, sentence


@pytest.fixture(scope="module")
def halfway(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small run, killed in its middle with two checkpoints. To be copied."""
    run = tmp_path_factory.mktemp("halfway") / "run"
    kill = Kill("reverie.workflows.base:WorldModelWorkflow.collect_step", "before", 38)
    assert killer.run("train", *SMALL_RUN, f"logdir={run}", kill=kill).code == -signal.SIGKILL
    assert [name[:10] for name in checkpoint_names(run)] == ["0000000096", "0000000128"]
    return run


@pytest.fixture
def run(halfway: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(halfway, copy)
    return copy


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    damage: Callable[[Path], None], run: Path, killer: Killer, reference: Path
) -> None:
    *_, before, newest = checkpoint_names(run)
    damage(run / "checkpoints" / newest / "arrays.safetensors")
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert re.search(rf"checkpoint {newest} is damaged .*; using {before} from step", ended.output)
    assert differences(run, reference) == []


def test_when_every_checkpoint_is_damaged_the_run_says_so(run: Path, killer: Killer) -> None:
    for name in checkpoint_names(run):
        flip_a_bit(run / "checkpoints" / name / "state.json")
    check_refused(killer.run("resume", str(run)), "no checkpoint", "can be used", "start a new run")


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_run_that_lost_its_checkpoints_is_not_begun_anew(run: Path, killer: Killer, is_empty: bool) -> None:
    shutil.rmtree(run / "checkpoints")
    if is_empty:
        (run / "checkpoints").mkdir()
    before = {path: path.read_bytes() for path in sorted(run.rglob("*.*"))}
    check_refused(killer.run("resume", str(run)), "has lost its checkpoints", "put them back")
    assert {path: path.read_bytes() for path in sorted(run.rglob("*.*"))} == before


def test_a_run_whose_first_save_failed_may_begin_anew(run: Path, killer: Killer, reference: Path) -> None:
    """Its last line of metrics was written right before that save."""
    shutil.rmtree(run / "checkpoints")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if json.loads(line)["agent_steps"] >= 32)
    (run / "metrics.jsonl").write_text("".join(lines[: first + 1]))
    assert killer.run("resume", str(run)).code == 0
    assert differences(run, reference) == []


def test_a_checkpoint_of_another_size_is_refused_by_name(run: Path, killer: Killer, tmp_path: Path) -> None:
    larger = tmp_path / "larger"
    forked = [*SMALL_RUN, "size.deter=16", f"logdir={larger}"]
    check_refused(killer.run("train", *forked, f"training.resume_path={run}"), "size.deter: 8 -> 16")
    # The config agrees now, but the folder with the checkpoints was exchanged.
    other = tmp_path / "other"
    assert killer.run("train", *forked[:-1], f"logdir={other}", "training.total_timesteps=8").code == 0
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    shutil.rmtree(run / "replay")
    shutil.copytree(other / "replay", run / "replay")
    refusal = "was made by a model of another size"
    check_refused(killer.run("resume", str(run)), refusal, "representation_learner", "16", "use the same `size=`")
    check_refused(killer.run("eval", str(run)), refusal, "representation_learner")


def set_in_config(run: Path, keys: list[str], value: object) -> None:
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text())
    holder = config
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    file.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("command", ["resume", "eval"])
@pytest.mark.parametrize(
    ("keys", "call"),
    [
        (["components", "encoder"], {"_target_": "os.system", "command": "touch MARK"}),
        (["controller", "actor"], {"_target_": "subprocess.Popen", "args": ["touch", "MARK"]}),
        (["environment", "simulator"], {"_target_": "os.system", "command": "touch MARK"}),
        (["components", "decoder", "vectors", "units"], {"_target_": "os.system", "command": "touch MARK"}),
        (["workflow", "_target_"], "evil.Workflow"),
    ],
)
def test_a_strangers_config_executes_nothing(
    command: str, keys: list[str], call: object, run: Path, killer: Killer, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    set_in_config(run, keys, json.loads(json.dumps(call).replace("MARK", str(mark))))
    (killer.home / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    check_refused(killer.run(command, str(run)), "outside Reverie", "--allow")
    assert not mark.exists()


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_strangers_task_imports_nothing_without_leave(
    command: str, run: Path, killer: Killer, repo_root: Path, tmp_path: Path
) -> None:
    package = tmp_path / "evil_pkg"
    package.mkdir()
    mark = tmp_path / "mark"
    registered = "gymnasium.register('Evil-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)"
    (package / "__init__.py").write_text(f"import gymnasium\nopen({str(mark)!r}, 'w').close()\n{registered}\n")
    for task in ("gym:evil_pkg:Evil-v0", "gym_evil_pkg:Evil-v0"):
        for keys in (["task"], ["environment", "simulator", "task"]):
            stranger = tmp_path / "stranger"
            shutil.copytree(run, stranger)
            set_in_config(stranger, keys, task)
            if keys == ["task"]:  # what `${task}` became when the run was made
                set_in_config(stranger, ["environment", "simulator", "task"], task)
            check_refused(killer.run(command, str(stranger)), "evil_pkg", "--allow evil_pkg")
            assert not mark.exists()
            shutil.rmtree(stranger)
    for keys in (["task"], ["environment", "simulator", "task"]):
        set_in_config(run, keys, "gym:evil_pkg:Evil-v0")
    # The user trusts the package: a process that can find it.
    done = subprocess.run(
        [sys.executable, "-m", "reverie", command, str(run), "--allow", "evil_pkg"],
        env={**os.environ, "PYTHONPATH": f"{repo_root / 'src'}:{tmp_path}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert mark.exists(), done.stderr
    assert done.returncode == 0, done.stderr


def test_two_processes_do_not_share_a_run(run: Path, killer: Killer, repo_root: Path) -> None:
    holder = (
        "import sys, pathlib; from reverie.orchestration.run_folder import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(repo_root / "src")},
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        check_refused(killer.run("resume", str(run)), f"another process (pid {first.pid}) is using the run")
        check_refused(killer.run("train", *SMALL_RUN, f"logdir={run}"), "another process")
        assert killer.run("eval", str(run), "--episodes", "1").code == 0
    assert killer.run("resume", str(run)).code == 0


def check_full_disk(killer: Killer, run: Path, folder: Path, free: Callable[[], Killer]) -> None:
    """``folder`` is ``run`` as this process finds it; ``free`` makes space and gives the killer to go on with."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.parts[-3] == "checkpoints"}
    newest = checkpoint_names(folder)[-1]
    ended = killer.run("resume", str(run))
    check_refused(ended, "cannot save checkpoint", f"the last good checkpoint {newest} is untouched")
    assert ended.output.strip().endswith(f"then `reverie resume {run}`.")
    assert before
    assert {path: path.read_bytes() for path in before} == before
    assert list(folder.rglob(".tmp-*")) == []
    ended = free().run("resume", str(run))
    assert ended.code == 0, ended.output


def check_read_only(killer: Killer, run: Path) -> None:
    check_refused(killer.run("resume", str(run)), "cannot write to the run folder", "Make the folder writable")
    elsewhere = run.parent / "new"
    check_refused(killer.run("train", *SMALL_RUN, f"logdir={elsewhere}"), "cannot write to the run folder")
    ended = killer.run("eval", str(run), "--episodes", "2", "--json")
    assert ended.code == 0, ended.output
    assert json.loads(ended.output)["episodes"] == 2


def test_a_full_disk_and_a_read_only_mount(
    run: Path, reference: Path, repo_root: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mounter = permitted_mounter(tmp_path)
    if mounter is None:
        _check_without_mounts(run, reference, repo_root, tmp_path_factory)
        return
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=4m tmpfs "$1" && shift && exec "$@"'
    killer = Killer(tmp_path, repo_root / "src", (*mounter, "sh", "-c", mount, "sh", str(disk)))
    try:
        killer.program("cp", "-r", str(run), str(disk / "run"))
        ballast, folder = killer.seen(disk / "ballast"), killer.seen(disk / "run")
        room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        ballast.write_bytes(b"x" * (room - 80_000))  # a checkpoint has about 100 kB

        def free() -> Killer:
            ballast.unlink()
            return killer

        check_full_disk(killer, disk / "run", folder, free)
        assert differences(folder, reference) == []
        killer.program("mount", "-o", "remount,ro", str(disk))
        check_read_only(killer, disk / "run")
    finally:
        killer.close()


def _check_without_mounts(
    run: Path, reference: Path, repo_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Where nothing may be mounted, a limit on the size of files stands for the full disk, permissions for the rest."""
    home = tmp_path_factory.mktemp("limited")
    limited = Killer(home, repo_root / "src", ("sh", "-c", 'ulimit -f 160 && exec "$@"', "sh"))
    free = Killer(home, repo_root / "src")
    check_full_disk(limited, run, run, lambda: free)
    assert differences(run, reference) == []
    limited.close()
    free.close()
    with tempfile.TemporaryDirectory() as name:  # not under pytest's own folder, which is closed to nobody
        place = Path(name) / "place"
        shutil.copytree(run, place / "run")
        (place / "output.txt").touch(0o666)
        # Root may write anywhere, so nobody plays the part.
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.getuid() == 0 else ()
        for path in [Path(name), place, *place.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        (place / "output.txt").chmod(0o666)
        nobody = Killer(place, repo_root / "src", prefix)
        check_read_only(nobody, place / "run")
        nobody.close()
        for path in [Path(name), *Path(name).rglob("*")]:
            path.chmod(0o755)
