"""One sitting with a run: open or make its folder, restore, work, and say at the end what came out."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from reverie.build import (
    assemble,
    assemble_orchestrator,
    assemble_workflow,
    evaluation_environment,
    phases_of,
)
from reverie.configuration import (
    Allow,
    config_text,
    plain,
    read_config,
    refuse_different_config,
    section,
    with_overrides,
)
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager, Loaded
from reverie.orchestration.checkpoint_reader import CheckpointReader
from reverie.orchestration.device_faults import said_in_a_sentence
from reverie.orchestration.display import Display, make_display
from reverie.orchestration.evaluator import EVALUATION_BUFFER, EvaluationConfig, Evaluator
from reverie.orchestration.logger import METRICS_FILE, LoggingConfig, check_sinks
from reverie.orchestration.model_review import ModelReview
from reverie.orchestration.orchestrator import Orchestrator
from reverie.orchestration.parts import Parts, check_phases
from reverie.orchestration.report import Summary, closing_commands, final_table, learning_curve, read_metrics
from reverie.orchestration.run_folder import RunFolder, new_run_folder
from reverie.replay_build import keep_homes, make_buffer, moved_homes, spread_home
from reverie.runtime.device import RuntimeConfig, chosen_device, prepare_torch
from reverie.runtime.rng import RandomStreams
from reverie.saved_agent import load_weights, moved_to, stored_config, trained_spaces
from reverie.sections import ExperimentConfig, TrainingConfig
from reverie.targets import foreign_packages
from reverie.types import ReverieError
from reverie.workflows.open_loop import PredictsOpenLoop

RUNS = Path("runs")
"""Below the working directory: where the folders of new runs are made."""
_LENGTHS = {"total_timesteps": "duration_steps", "total_updates": "duration_updates"}
"""The keys of a whole run and those of a phase."""


def train(config: DictConfig) -> int:
    """A new run, or, where ``logdir`` already holds one, its continuation. Gives the exit code."""
    config = copy.deepcopy(config)  # `_dims` is filled in below
    OmegaConf.set_struct(config, False)
    logdir = chosen_logdir(config)
    if logdir is not None and RunFolder(logdir).is_run:
        keep_homes(config, read_config(logdir))
    return _run(config, logdir, allow=None)


def chosen_logdir(config: DictConfig) -> Path | None:
    """Where the configuration wants the run to be; None leaves it to a new folder under ``runs``."""
    logdir = plain(config.logdir)
    if logdir is not None and not isinstance(logdir, str):
        raise ReverieError(f"`logdir` must be a path or null, got {logdir!r}")
    if logdir == "":
        raise ReverieError("`logdir` is empty: name a folder, or leave it out for a new one below `runs`")
    return Path(logdir) if logdir else None


def resume(run: Path, overrides: Sequence[str], allow: Sequence[str]) -> int:
    """Go on with the run in ``run`` by the configuration that it stores."""
    stored = stored_config(run, allow)
    config = with_overrides(stored, overrides)
    spread_home(config, overrides)
    for total, duration in _LENGTHS.items():
        before, now = stored["training"].get(total), config["training"].get(total)
        if now != before and not _lengthened(config["training"]["phases"], duration, before, now):
            raise ReverieError(
                f"training.{total} changes nothing here: no phase of this run is as long as the whole run; "
                f"set training.phases.N.{duration} instead."
            )
    if config["training"].get("lengths") != stored["training"].get("lengths"):
        raise ReverieError(
            "training.lengths changes nothing here: the phases of this run hold their lengths themselves; "
            "set training.phases.N.duration_steps or duration_updates instead."
        )
    return _run(DictConfig(config), run, allow=allow)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    scores: dict[str, float]
    files: list[Path]
    """Pictures of what the world model expected."""


def evaluate(
    run: Path,
    *,
    episodes: int | None,
    seed: int | None,
    checkpoint: str | None,
    has_pictures: bool,
    allow: Sequence[str],
    elsewhere: DictConfig | None = None,
) -> Evaluated:
    """Scores of the agent in ``run``. The folder is only read, but for its ``videos`` if pictures are wanted.

    ``elsewhere`` is a config whose task is played instead of the run's own.
    """
    config = moved_to(stored_config(run, allow), elsewhere, where=str(run))
    spaces = trained_spaces(config)
    device = chosen_device("auto")  # the run may have been trained on a machine with other devices
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"), device)
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    episodes = episodes or evaluation.episodes
    seed = section(ExperimentConfig, config.experiment, path="experiment").seed if seed is None else seed
    with closing(evaluation_environment(config, spaces=spaces, episodes=episodes, allow=allow)) as env:
        rng = RandomStreams(seed, device=device)
        workflow = assemble_workflow(config, spaces=env.spaces, train_env=None, rng=rng, device=device, allow=allow)
        if has_pictures and not isinstance(workflow, PredictsOpenLoop):
            raise ReverieError(f"{run} has no pictures to show: {type(workflow).__name__} predicts no observations.")
        checkpoint = load_weights(workflow, run, checkpoint)
        buffer = None
        if has_pictures and EVALUATION_BUFFER in config.buffer:
            buffer = make_buffer(config, EVALUATION_BUFFER, num_streams=env.num_envs, rng=rng, allow=allow)
        evaluator = Evaluator(lambda: env, episodes=episodes, seed=seed, acting=workflow.acting, buffer=buffer)
        scores = evaluator.evaluate(workflow.policy(None)) or {}
        if not has_pictures:
            return Evaluated(scores=scores, files=[])
        # A run may have switched its own pictures off; whoever asks for them here wants some.
        wanted = replace(evaluation.open_loop, sequences=max(1, evaluation.open_loop.sequences))
        review = ModelReview(workflow, env.spaces, wanted, folder=run, say=_refuse, remark=_remark)
        found = review.review(evaluator, name=f"eval-{checkpoint}-seed-{seed}", has_pictures=True)
        return Evaluated(scores=scores | found.metrics, files=found.files)


def _refuse(why: str) -> None:
    raise ReverieError(why)


def _remark(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # scores may go to another program


def _lengthened(phases: list[Any], duration: str, before: int | None, now: int | None) -> bool:
    """Make every phase that was as long as the whole run so again; the stored configuration holds numbers only."""
    changed = False
    for phase in phases:
        if phase.get(duration) == before:
            phase[duration] = now
            changed = True
        changed |= _lengthened(phase.get("phases", []), duration, before, now)
    return changed


def _run(config: DictConfig, path: Path | None, *, allow: Allow) -> int:
    """Check everything, then touch the disk; a mistake in the configuration leaves no trace."""
    experiment = section(ExperimentConfig, config.experiment, path="experiment")
    check_sinks(section(LoggingConfig, config.logging, path="logging"))
    section(CheckpointConfig, config.checkpoint, path="checkpoint")
    device = chosen_device(experiment.device)
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"), device)
    config["logdir"] = None if path is None else str(path)  # a run may have been moved since it was stored
    with said_in_a_sentence(device, lambda: "nothing was written"):
        parts = assemble(config, device=device, allow=allow)
    with closing(parts):
        return _run_with(parts, config, path, experiment=experiment)


def _run_with(parts: Parts, config: DictConfig, path: Path | None, *, experiment: ExperimentConfig) -> int:
    check_phases(phases_of(config), parts)
    display = make_display()
    fork = None
    if path is None or not RunFolder(path).is_run:
        if path is not None:
            RunFolder(path).refuse_foreign_files()
        fork = _fork(config, display)
    config["logdir"] = str(path or new_run_folder(RUNS, experiment.name))
    folder = RunFolder(Path(config["logdir"]))
    with folder.locked():
        if folder.is_run:
            stored = read_config(folder.path)
            _refuse_lost_checkpoints(folder, stored)
            refuse_different_config(stored, plain(config), where=str(folder.path))
            for remark in moved_homes(stored, plain(config)):
                display.say(remark)
            _refuse_fewer_steps(stored, config, folder.path, display)
            folder.replace_config(config_text(config))
            folder.set_status("running")
        else:
            folder.create(config_text=config_text(config), spaces=parts.train_env.spaces)
        for remark in parts.remarks:
            display.say(remark)
        orchestrator = assemble_orchestrator(config, parts, folder=folder.path, display=display)
        try:
            with said_in_a_sentence(parts.device, orchestrator.checkpoints.what_is_left):
                _restore(orchestrator, config, folder, fork, display)
                code = orchestrator.run()
        except BaseException:
            with suppress(ReverieError, OSError):  # what went wrong first is what the user must hear
                folder.set_status("failed")
                orchestrator.close()
            raise
        orchestrator.close()
        folder.set_status("finished" if code == 0 else "interrupted")
        _report(orchestrator, folder, is_finished=code == 0, has_task=plain(config.task) is not None)
    return code


def _refuse_lost_checkpoints(folder: RunFolder, stored: dict[str, Any]) -> None:
    """A run that must have saved, and of which no checkpoint is there, would begin anew over its own metrics."""
    if CheckpointReader(folder.path).names():
        return
    metrics = folder.path / METRICS_FILE
    lines = read_metrics(metrics) if metrics.is_file() else []
    places = list(dict.fromkeys((int(one["agent_steps"]), int(one["updates"])) for one in lines))
    steps = places[-1][0] if places else 0
    # The last line may have been written right before the very save that failed.
    saved = places[-2] if len(places) > 1 else (0, 0)
    every = section(CheckpointConfig, stored["checkpoint"], path="checkpoint")
    limits = zip(saved, (every.every_steps, every.every_updates), strict=True)
    is_fork = stored["training"].get("resume_path") is not None  # it begins with the metrics of another run
    was_due = not is_fork and any(limit is not None and done >= limit for done, limit in limits)
    if was_due or folder.info()["status"] in ("interrupted", "finished"):
        raise ReverieError(
            f"{folder.path} has lost its checkpoints: its metrics reach step {steps:,}, but its folder `checkpoints` "
            "holds none; put them back, or start a new run in another logdir."
        )


def _refuse_fewer_steps(stored: dict[str, Any], config: DictConfig, run: Path, display: Display) -> None:
    """A run may become shorter than it was meant to be, but not shorter than it is."""
    total = section(TrainingConfig, config.training, path="training").total_timesteps
    if total >= stored["training"]["total_timesteps"]:
        return
    loaded = CheckpointManager(run, config=CheckpointConfig(), say=display.say).load(with_replay=False)
    if loaded is not None and total < (done := loaded.state["global_step"]):
        raise ReverieError(
            f"training.total_timesteps is {total:,}, but {run} has already made {done:,} steps: give a larger number, "
            "or leave it out."
        )


def _restore(
    orchestrator: Orchestrator, config: DictConfig, folder: RunFolder, fork: Fork | None, display: Display
) -> None:
    """From the run's own newest checkpoint, else from ``training.resume_path``, else from nothing."""
    own = orchestrator.checkpoints
    if (loaded := own.load()) is not None:
        orchestrator.restore(loaded, own)
        counters = orchestrator.counters()
        reached = f"step {counters.agent_steps:,}" if counters.agent_steps else f"update {counters.updates:,}"
        display.say(f"Resuming {folder.path} at {reached} (checkpoint {loaded.name}).")
        if orchestrator.is_finished:
            display.say(f"It has finished; add {_longer(plain(config.training))}=N to train longer.")
    elif (fork := fork or _fork(config, display)) is not None:
        _copy_metrics(fork, folder.path)
        orchestrator.restore(fork.loaded, fork.manager)
        display.say(f"Beginning with the state of {fork.run} at step {fork.loaded.state['global_step']:,}.")
    else:
        orchestrator.begin()


def _longer(training: Mapping[str, Any]) -> str:
    """What to set: the length of the last phase that has one, by the whole run's name where both are the same."""
    lengths = list(_lengths(training["phases"], "training.phases"))
    if not lengths:
        return "training.phases.K.duration_cycles"
    total, duration, where, length = lengths[-1]
    return f"training.{total}" if length == training.get(total) else f"{where}.{duration}"


def _lengths(phases: Sequence[Mapping[str, Any]], where: str) -> Iterator[tuple[str, str, str, int]]:
    """(key of the whole run, key of the phase, path of the phase, its length), those inside repeats too."""
    for place, phase in enumerate(phases):
        for total, duration in _LENGTHS.items():
            if length := phase.get(duration):
                yield total, duration, f"{where}.{place}", length
        yield from _lengths(phase.get("phases", []), f"{where}.{place}.phases")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """The checkpoint of another run that a run begins with."""

    run: Path
    manager: CheckpointManager
    loaded: Loaded


def _fork(config: DictConfig, display: Display) -> Fork | None:
    """Read what ``training.resume_path`` names, and put the checkpoint's name there: a resume needs the same one."""
    source = section(TrainingConfig, config.training, path="training").resume_path
    if source is None:
        return None
    run, name = _run_and_checkpoint(Path(source))
    refuse_different_config(read_config(run), plain(config), where=str(run))
    manager = CheckpointManager(run, config=CheckpointConfig(), say=display.say)
    loaded = manager.load_named(name, with_replay=True) if name else manager.load()
    if loaded is None:
        raise ReverieError(f"training.resume_path: {run} has no checkpoint to begin with.")
    config.training.resume_path = str(run / "checkpoints" / loaded.name)
    return Fork(run=run, manager=manager, loaded=loaded)


def _run_and_checkpoint(path: Path) -> tuple[Path, str | None]:
    """``path`` is a run folder, or one of the folders in its ``checkpoints``."""
    if path.parent.name == "checkpoints" and not RunFolder(path).is_run:
        return path.parent.parent, path.name
    return path, None


def _copy_metrics(fork: Fork, target: Path) -> None:
    """The lines up to the checkpoint: the new run's curve begins where the old one began."""
    offset = fork.loaded.state["logger"]["offset"]
    try:
        lines = (fork.run / METRICS_FILE).read_bytes()[:offset]
        (target / METRICS_FILE).write_bytes(lines)
    except OSError as error:
        raise ReverieError(f"cannot copy {fork.run / METRICS_FILE} to {target}: {error.strerror or error}.") from error


def _report(orchestrator: Orchestrator, folder: RunFolder, *, is_finished: bool, has_task: bool) -> None:
    counters, scores = orchestrator.counters(), orchestrator.scoreboard
    summary = Summary(
        experiment=orchestrator.labels["experiment"],
        task=orchestrator.labels["task"],
        status="finished" if is_finished else "interrupted",
        agent_steps=counters.agent_steps,
        env_frames=counters.env_frames,
        episodes=scores.episodes,
        updates=counters.updates,
        wall_seconds=counters.wall_seconds,
        score_now=scores.now,
        score_best=scores.best,
        evaluation=scores.evaluation,
        logdir=str(folder.path),
    )
    Console().print(final_table(summary))
    curve = learning_curve(folder.path)
    if curve is not None:
        print(f"Learning curve: {curve}")
    trusted = foreign_packages(read_config(folder.path))
    commands = closing_commands(str(folder.path), has_task=has_task, trusted=trusted)
    print("\n".join(["Next:", *(f"  {command}" for command in commands)]))
