"""Isolated interpreters: recipes read, Pythons found, builds made, interrupted and refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reverie import cli
from reverie.environments.isolated import interpreters, python_versions
from reverie.environments.isolated.failed_download import failed_download
from reverie.environments.isolated.interpreters import add_interpreter, interpreter_python
from reverie.environments.isolated.recipes import RECIPES, chosen_recipe
from reverie.types import ReverieError

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def silent(_: str) -> None:
    pass


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REVERIE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def recipe_file(folder: Path, *, check: str = "pass", more: str = "") -> str:
    """A recipe that is built in a second: this Python and nothing else."""
    path = folder / "small.toml"
    path.write_text(
        f'name = "small"\npython = ["{HERE}"]\nrequirements = []\ncheck = {json.dumps(check)}\n{more}', encoding="utf-8"
    )
    return str(path)


@pytest.mark.usefixtures("home")
def test_a_missing_interpreter_names_the_command() -> None:
    with pytest.raises(ReverieError, match="reverie env add procgen"):
        interpreter_python("procgen")
    with pytest.raises(ReverieError, match=r"FILE\.toml"):
        interpreter_python("nobody_knows_it")


def test_an_older_recipe_and_a_lost_python_are_noticed(home: Path) -> None:
    folder = home / "interpreters" / "procgen"
    folder.mkdir(parents=True)
    built = {"build": "1", "recipe": json.loads(json.dumps(interpreters.asdict(RECIPES["procgen"])))}
    (folder / "built.json").write_text(json.dumps(built), encoding="utf-8")
    with pytest.raises(ReverieError, match="lost its Python"):
        interpreter_python("procgen")
    built["recipe"]["requirements"][0] = "procgen-mirror==0.10.6"
    (folder / "built.json").write_text(json.dumps(built), encoding="utf-8")
    with pytest.raises(ReverieError, match="older recipe"):
        interpreter_python("procgen")


def test_a_changed_recipe_is_built_again_and_the_old_build_goes(home: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = add_interpreter(recipe_file(tmp_path), said.append)
    assert first == interpreter_python("small")
    assert add_interpreter(recipe_file(tmp_path), said.append) == first
    second = add_interpreter(recipe_file(tmp_path, check="assert True"), said.append)
    assert second == interpreter_python("small") != first
    assert not first.exists()
    assert any("already there" in text for text in said)
    assert home in second.parents


def test_a_failed_check_leaves_the_old_build_in_use(home: Path, tmp_path: Path) -> None:
    good = add_interpreter(recipe_file(tmp_path), silent)
    with pytest.raises(ReverieError, match="the step failed") as caught:
        add_interpreter(recipe_file(tmp_path, check="raise SystemExit('the step failed')"), silent)
    assert str(home / "interpreters" / "small" / "log.txt") in str(caught.value)
    assert interpreter_python("small") == good
    assert [entry.name for entry in good.parents[2].iterdir() if entry.is_dir()] == ["1"]


def test_a_killed_build_is_never_used(home: Path, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, check="import time; time.sleep(60)")
    code = f"from reverie.environments.isolated.interpreters import add_interpreter; add_interpreter({recipe!r}, print)"
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "checking" in line:
            break
    with pytest.raises(ReverieError, match="being built by another process"):
        add_interpreter(recipe, silent)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert (home / "interpreters" / "small" / "1" / "bin" / "python").exists(), "it was nearly whole"
    with pytest.raises(ReverieError, match="not installed"):
        interpreter_python("small")
    deadline = time.monotonic() + 30
    while True:
        try:
            assert add_interpreter(recipe_file(tmp_path), silent).exists()
            break
        except ReverieError:  # a grandchild that was being started may still hold the lock for a moment
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert [entry.name for entry in (home / "interpreters" / "small").iterdir() if entry.is_dir()] == ["1"]


@pytest.mark.usefixtures("home")
def test_a_failed_download_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_RETRIES", "0")
    address = "https://host.invalid/thing-1.0-py3-none-any.whl"
    path = Path(recipe_file(tmp_path))
    path.write_text(path.read_text(encoding="utf-8").replace("[]", f'["thing @ {address}"]'), encoding="utf-8")
    with pytest.raises(ReverieError, match=r"the download of .*host\.invalid.* failed"):
        add_interpreter(str(path), silent)


@pytest.mark.usefixtures("home")
def test_a_missing_tool_is_said_before_and_with_the_failure(tmp_path: Path) -> None:
    tool = "[[tools]]\ncommand = ['no-such-compiler', '--version']\nexpects = '1'\ncure = 'the compiler of 1998'\n"
    said: list[str] = []
    add_interpreter(recipe_file(tmp_path, more=tool), said.append)
    assert any("needs the compiler of 1998" in text for text in said), "it was built all the same"
    with pytest.raises(ReverieError, match="also needs the compiler of 1998"):
        add_interpreter(recipe_file(tmp_path, check="1 / 0", more=tool), silent)


GRADLE = """\
   [stdout]
   Downloading https://services.example/distributions/gradle-4.10.2-all.zip
   [stderr]
   Exception in thread "main" java.net.UnknownHostException: services.example
   \tat java.base/sun.net.www.http.HttpClient.openServer(HttpClient.java:533)
   subprocess.CalledProcessError: Command '['./gradlew']' returned non-zero exit status 1.
"""
MAVEN = """\
> Could not resolve all files for configuration ':classpath'.
   > Could not GET 'https://files.example/maven/ForgeGradle.pom'. Received status code 403 from server: Forbidden
"""
PIP = "ERROR: Could not find a version that satisfies the requirement minerl==0.4.4 (from versions: none)\n"
COMPILER = "gcc: error: unrecognized option\nerror: command 'gcc' failed\n"


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (GRADLE, r"^https://services\.example/distributions/gradle-4\.10\.2-all\.zip \(.*UnknownHost"),
        (MAVEN, r"Could not GET .https://files\.example/maven/ForgeGradle\.pom"),
        (PIP, r"minerl==0\.4\.4"),
    ],
)
def test_the_failed_download_is_read_from_the_output(output: str, named: str) -> None:
    found = failed_download(output)
    assert found is not None
    assert re.search(named, found)


def test_a_failed_compiler_is_no_failed_download() -> None:
    assert failed_download(COMPILER) is None


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("checks = 'x'", "unknown key `checks`"),
        ("build_requirements = 'setuptools'", "`build_requirements` of the wrong kind"),
        ("tools = 3", "`tools` of the wrong kind"),
        ("[[tools]]\ncommand = ['x']", "lacks the key `expects`"),
        ("[[tools]]\ncommand = ['x']\nexpects = '('\ncure = 'y'", "no valid pattern"),
        ("= 3", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(ReverieError, match=named):
        chosen_recipe(recipe_file(tmp_path, more=line))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "small"', 'name = "procgen"', "Reverie's own"),
        ('name = "small"', 'name = "../small"', "letters, digits"),
        (f'["{HERE}"]', '["three"]', "versions such as"),
        (f'python = ["{HERE}"]', "", "lacks the key `python`"),
    ],
)
def test_a_bad_value_in_a_recipe_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = Path(recipe_file(tmp_path))
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(ReverieError, match=named):
        chosen_recipe(str(path))


def test_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "add", "procgenn"]) == 2
    said = capsys.readouterr().err
    assert "did you mean procgen?" in said
    assert "minecraft" in said
    assert cli.main(["env", "add", "missing.toml"]) == 2
    assert "missing.toml cannot be read" in capsys.readouterr().err


def test_a_name_on_path_that_only_prints_an_error_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyenv's shims do for versions that are installed but not chosen."""
    shim, real = tmp_path / "bin" / "python3.2", tmp_path / "pyenv" / "versions" / "3.2.9" / "bin" / "python"
    for path, script in ((shim, "echo 'command not found' >&2; exit 127"), (real, "echo 3.2")):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert python_versions.suitable_python(["3.1", "3.2", HERE], uv=None, say=silent) == real
    real.unlink()
    assert python_versions.suitable_python(["3.1", "3.2", HERE], uv=None, say=silent) == Path(sys.executable)
    with pytest.raises(ReverieError, match=r"No Python 3\.1 or 3\.2 was found"):
        python_versions.suitable_python(["3.1", "3.2"], uv=None, say=silent)


@pytest.mark.usefixtures("home")
def test_without_uv_pip_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "uv_program", lambda: None)
    path = Path(recipe_file(tmp_path, check="import sys, pip; assert sys.prefix != sys.base_prefix"))
    path.write_text(path.read_text(encoding="utf-8").replace("[]", '["pip"]'), encoding="utf-8")
    assert add_interpreter(str(path), silent) == interpreter_python("small")
    log = (interpreters.interpreters_folder() / "small" / "log.txt").read_text(encoding="utf-8")
    assert "-m pip install pip" in log
