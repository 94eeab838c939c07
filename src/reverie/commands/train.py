"""`reverie train`: Hydra composes the config, `session.train` runs it. Hydra leaves no folders and no log files."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from reverie.commands.catalogue import CONFIGS, default_experiment, experiments_text, options
from reverie.orchestration.command_name import reverie_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

_HELP = """\
usage: {reverie} train [KEY=VALUE ...] [OPTIONS]

Train an agent. Without arguments this runs the experiment `{default}` on the CPU, to its end, in a new folder
under runs/. Ctrl-C saves and says how to go on.

experiments (experiment=NAME):
{experiments}

examples:
  {reverie} train
  {reverie} train experiment={default} experiment.seed=3 training.total_timesteps=50000
  {reverie} train --multirun experiment.seed=1,2,3

often set:
  experiment=NAME            what to run                          task=SUITE_TASK     `{reverie} tasks` lists them
  experiment.seed=N          a different run                      size=NAME           {sizes}
  experiment.device=auto     cpu, cuda, or the best there is      runtime=NAME        {runtimes}
  logdir=FOLDER              where; an existing run goes on       training.total_timesteps=N

options (from Hydra):
  --cfg job                  print the composed config and stop
  --multirun, -m             one run for each combination of comma-separated values
  --config-dir FOLDER        a folder with config files of your own, for example experiment/mine.yaml
  --info, --package, --hydra-help, ...
"""


def run(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(_help(), end="")
        return 0
    from reverie.commands import hydra_messages, train_arguments
    from reverie.types import ReverieError

    flags, overrides = train_arguments.split_arguments(arguments)
    is_multirun = "--multirun" in flags or "-m" in flags or "hydra.mode=MULTIRUN" in overrides
    own_configs = train_arguments.config_dir(flags)
    overrides = train_arguments.with_habits(overrides, is_multirun=is_multirun, own_configs=own_configs)
    jobs = _Jobs(is_multirun=is_multirun)
    try:
        with _sweep_folder(overrides, is_multirun=is_multirun) as sweep:
            _call_hydra([*sweep, *overrides, *flags], jobs)
    except hydra_messages.CONFIG_ERRORS as error:
        raise ReverieError(hydra_messages.sentence(error, overrides, own_configs)) from error
    return jobs.code()


class _Jobs:
    """Runs the jobs that Hydra hands over and remembers how they ended.

    Their exceptions are kept from Hydra, which would report them in its own way and take them for its own.
    """

    def __init__(self, *, is_multirun: bool) -> None:
        self._is_multirun = is_multirun
        self._failures: list[Exception] = []

    def start(self, config: DictConfig) -> None:
        try:
            code = _trained(config)
        except Exception as error:
            self._failures.append(error)
            if self._is_multirun:
                _report(error)
        else:
            if code != 0:  # interrupted: a SystemExit also keeps Hydra from starting the next job
                raise SystemExit(code)

    def code(self) -> int:
        """The exit code of the command; the failure of a single run is raised again instead."""
        from reverie.types import ReverieError

        if self._failures and not self._is_multirun:
            raise self._failures[0]
        codes = [error.exit_code if isinstance(error, ReverieError) else 1 for error in self._failures]
        return min(codes, default=0)


def _trained(config: DictConfig) -> int:
    from omegaconf.errors import OmegaConfBaseException

    from reverie import session
    from reverie.configuration import check_sections, omegaconf_sentence
    from reverie.types import ReverieError

    check_sections(config)
    try:
        return session.train(config)
    except OmegaConfBaseException as error:  # a reference to nowhere or a missing value, found when it was needed
        raise ReverieError(omegaconf_sentence(error)) from error


@contextlib.contextmanager
def _sweep_folder(overrides: list[str], *, is_multirun: bool) -> Iterator[list[str]]:
    """The override that keeps the sweeper's `multirun.yaml` out of the working directory; it insists on writing one."""
    if not is_multirun or any(item.startswith("hydra.sweep.dir=") for item in overrides):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="reverie-sweep-") as folder:
        yield [f"hydra.sweep.dir='{folder}'"]


def _call_hydra(arguments: list[str], jobs: _Jobs) -> None:
    import hydra

    def task(config: DictConfig) -> None:
        jobs.start(config)

    entry: Callable[[], None] = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="config")(task)
    with _process_for_hydra(arguments), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"hydra\.")  # it quarrels with newer releases of OmegaConf
        entry()


@contextlib.contextmanager
def _process_for_hydra(arguments: list[str]) -> Iterator[None]:
    """What Hydra reads from the process: its arguments, and the wish for plain exceptions."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["reverie train", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _report(error: Exception) -> None:
    from reverie.types import ReverieError

    if isinstance(error, ReverieError):
        print(f"reverie: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)


def _help() -> str:
    return _HELP.format(
        reverie=reverie_command(),
        default=default_experiment(),
        experiments=experiments_text(),
        sizes=", ".join(options("size")),
        runtimes=", ".join(options("runtime")),
    )
