"""One sitting with a run: open or make its folder, restore, work, and say at the end what came out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from reverie.build import (
    ExperimentConfig,
    TrainingConfig,
    assemble,
    assemble_orchestrator,
    assemble_workflow,
    evaluation_environment,
    phases_of,
)
from reverie.configuration import (
    Allow,
    check_tasks,
    config_text,
    plain,
    read_config,
    refuse_different_config,
    section,
    with_overrides,
)
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager, Loaded
from reverie.orchestration.display import Display, make_display
from reverie.orchestration.evaluator import EvaluationConfig, Evaluator
from reverie.orchestration.logger import METRICS_FILE, LoggingConfig, check_sinks
from reverie.orchestration.orchestrator import Orchestrator, check_phases, check_sizes
from reverie.orchestration.report import Summary, closing_commands, final_table, learning_curve
from reverie.orchestration.run_folder import RunFolder, new_run_folder
from reverie.runtime.device import RuntimeConfig, chosen_device, prepare_torch
from reverie.runtime.rng import RandomStreams
from reverie.types import ReverieError


def train(config: DictConfig) -> int:
    """A new run, or, where ``logdir`` already holds one, its continuation. Gives the exit code."""
    config = copy.deepcopy(config)  # `_dims` is filled in below
    OmegaConf.set_struct(config, False)
    logdir = plain(config.logdir)
    if logdir is not None and not isinstance(logdir, str):
        raise ReverieError(f"`logdir` must be a path or null, got {logdir!r}")
    return _run(config, Path(logdir) if logdir else None, allow=None)


def resume(run: Path, overrides: Sequence[str], allow: Sequence[str]) -> int:
    """Go on with the run in ``run`` by the configuration that it stores."""
    stored = read_config(run)
    check_tasks(stored, allow=allow)
    config = with_overrides(stored, overrides)
    total_before, total_now = stored["training"]["total_timesteps"], config["training"]["total_timesteps"]
    for before, now in zip(stored["training"]["phases"], config["training"]["phases"], strict=True):
        # The stored configuration is resolved: a phase that was as long as the whole run still is.
        if before.get("duration_steps") == now.get("duration_steps") == total_before:
            now["duration_steps"] = total_now
    return _run(OmegaConf.create(config), run, allow=allow)


def evaluate(
    run: Path, *, episodes: int | None, seed: int | None, checkpoint: str | None, allow: Sequence[str]
) -> dict[str, float]:
    """Scores of the agent in ``run``. The folder is only read."""
    stored = read_config(run)
    check_tasks(stored, allow=allow)
    config = OmegaConf.create(stored)
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"))
    device = chosen_device("auto")  # the run may have been trained on a machine with other devices
    episodes = episodes or section(EvaluationConfig, config.evaluation, path="evaluation").episodes
    seed = section(ExperimentConfig, config.experiment, path="experiment").seed if seed is None else seed
    env = evaluation_environment(config, episodes=episodes, allow=allow)
    rng = RandomStreams(seed, device=device)
    workflow = assemble_workflow(config, spaces=env.spaces, train_env=None, rng=rng, device=device, allow=allow)
    manager = CheckpointManager(run, config=CheckpointConfig(), say=print)
    loaded = manager.load_named(checkpoint) if checkpoint else manager.load(with_replay=False)
    if loaded is None:
        raise ReverieError(f"{run} has no checkpoint yet: go on with `reverie resume {run}` first.")
    check_sizes(workflow, loaded)
    workflow.set_state(loaded.state)
    return Evaluator(env, episodes=episodes, seed=seed, device=device, buffer=None).evaluate(workflow.policy(None))


def _run(config: DictConfig, path: Path | None, *, allow: Allow) -> int:
    """Check everything, then touch the disk; a mistake in the configuration leaves no trace."""
    experiment = section(ExperimentConfig, config.experiment, path="experiment")
    check_sinks(section(LoggingConfig, config.logging, path="logging"))
    section(CheckpointConfig, config.checkpoint, path="checkpoint")
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"))
    parts = assemble(config, device=chosen_device(experiment.device), allow=allow)
    check_phases(phases_of(config), parts)
    config["logdir"] = str(path or new_run_folder(Path("runs"), experiment.name))
    folder = RunFolder(Path(config["logdir"]))
    display = make_display()
    with folder.locked():
        if folder.is_run:
            refuse_different_config(read_config(folder.path), plain(config), where=str(folder.path))
            folder.replace_config(config_text(config))
            folder.set_status("running")
        else:
            folder.create(config_text=config_text(config), spaces=parts.train_env.spaces)
        orchestrator = assemble_orchestrator(config, parts, folder=folder.path, display=display)
        try:
            _restore(orchestrator, config, folder, display)
            code = orchestrator.run()
        except BaseException:
            with suppress(ReverieError, OSError):  # what went wrong first is what the user must hear
                folder.set_status("failed")
                orchestrator.close()
            raise
        orchestrator.close()
        folder.set_status("finished" if code == 0 else "interrupted")
        _report(orchestrator, folder, is_finished=code == 0)
    return code


def _restore(orchestrator: Orchestrator, config: DictConfig, folder: RunFolder, display: Display) -> None:
    """From the run's own newest checkpoint, else from ``training.resume_path``, else from nothing."""
    own = orchestrator.checkpoints
    if (loaded := own.load()) is not None:
        orchestrator.restore(loaded, own)
        display.say(f"Resuming {folder.path} at step {loaded.state['global_step']:,} (checkpoint {loaded.name}).")
        return
    source = section(TrainingConfig, config.training, path="training").resume_path
    if source is None:
        orchestrator.begin()
        return
    run, name = _run_and_checkpoint(Path(source))
    refuse_different_config(read_config(run), plain(config), where=str(run))
    manager = CheckpointManager(run, config=CheckpointConfig(), say=display.say)
    loaded = manager.load_named(name, with_replay=True) if name else manager.load()
    if loaded is None:
        raise ReverieError(f"training.resume_path: {run} has no checkpoint to begin with.")
    _copy_metrics(loaded, run, folder.path)
    orchestrator.restore(loaded, manager)
    display.say(f"Beginning with the state of {run} at step {loaded.state['global_step']:,}.")


def _run_and_checkpoint(path: Path) -> tuple[Path, str | None]:
    """``path`` is a run folder, or one of the folders in its ``checkpoints``."""
    if path.parent.name == "checkpoints" and not RunFolder(path).is_run:
        return path.parent.parent, path.name
    return path, None


def _copy_metrics(loaded: Loaded, source: Path, target: Path) -> None:
    """The lines up to the checkpoint: the new run's curve begins where the old one began."""
    offset = loaded.state["logger"]["offset"]
    with (source / METRICS_FILE).open("rb") as old, (target / METRICS_FILE).open("wb") as new:
        new.write(old.read(offset))


def _report(orchestrator: Orchestrator, folder: RunFolder, *, is_finished: bool) -> None:
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
    curve = learning_curve(folder.path)
    console = Console()
    console.print(final_table(summary))
    if curve is not None:
        print(f"Learning curve: {curve}")
    print("\n".join(["Next:", *(f"  {command}" for command in closing_commands(str(folder.path)))]))
