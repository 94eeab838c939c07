"""World Models killed with SIGKILL inside each of its phases, and inside a generation, goes on as the same run."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from killer import Forget, Kill, Killer
from same_run import differences, replay_files

SMALL = (
    *("experiment=og_wm_dream", "size=debug", "environment.num_envs=4", "buffer.replay.capacity=200"),
    *("training.total_timesteps=80", "training.batch_size=8", "training.batch_length=5"),
    "training.phases=["
    "{name: collect, type: online, buffer: replay, controller: held, duration_steps: 80, workflow_hooks: [collect]},"
    "{name: converge_vae, type: offline, buffer: replay, duration_updates: 6,"
    " workflow_hooks: [{converge_vae: {batch: {size: 8, length: 1}}}]},"
    "{name: encode, type: offline, buffer: replay, duration_updates: 10,"
    " workflow_hooks: [{encode: {batch: {size: 8, length: 1, sampler: sweep}}}]},"
    "{name: converge_mdn, type: offline, buffer: replay, duration_updates: 6,"
    " workflow_hooks: [{converge_mdn: {batch: {size: 8, length: 5}}}]},"
    "{name: evolve, type: online, controller: population, duration_steps: 640, workflow_hooks: [collect, evolve]},"
    "{name: evolve_in_dream, type: offline, duration_updates: 60, workflow_hooks: [evolve_in_dream]},"
    "{name: final_evaluation, type: eval_only, duration_cycles: 1, workflow_hooks: [evaluate]}]",
    "controller.population={population: 8, episodes: 2, mean_every: 1, mean_episodes: 4}",
    *("workflow.dream_limit=7", "workflow.acts_on=sample"),
    *("evaluation.episodes=2", "evaluation.envs=2", "evaluation.open_loop.pictures_every=null"),
    *("checkpoint.every_steps=36", "checkpoint.every_updates=5"),
    *("logging.every_steps=40", "logging.every_updates=4", "logging.has_tensorboard=false"),
)
"""Every phase in a few seconds. Checkpoints come in all of them, and several times inside a generation."""

_FLOW = "reverie.workflows.og_wm:OgWm"
POINTS = {
    "collect and the VAE": [Kill(f"{_FLOW}.collect_step", "after", 13), Kill(f"{_FLOW}.converge_vae", "before", 3)],
    "encoding and the MDN-RNN": [Kill(f"{_FLOW}.encode", "after", 7), Kill(f"{_FLOW}.converge_mdn", "after", 4)],
    "a generation": [
        Kill("reverie.components.controllers.rounds:Rounds.add", "after", 20),
        Kill("reverie.components.controllers.cma_es:CmaEs.tell", "before", 1),
        Kill("reverie.components.controllers.cma_es:CmaEs.tell", "after", 1),
    ],
    "a dream": [Kill(f"{_FLOW}.evolve_in_dream", "after", 11), Kill(f"{_FLOW}.evolve_in_dream", "before", 17)],
}
FORGOTTEN = {
    "the evolution": Forget("reverie.components.controllers.evolution:Evolution.set_state"),
    "the distribution": Forget("reverie.components.controllers.cma_es:CmaEs.set_state", "parts"),
    "the round": Forget("reverie.components.controllers.rounds:Rounds.set_state"),
    "the stream of the evolution": Forget("reverie.runtime.rng:RandomStreams.set_state", "evolution"),
    "the environments": Forget("reverie.environments.parallel.separate:SeparateEnvironments.set_state"),
}


@pytest.fixture(scope="module")
def undisturbed(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    ended = killer.run("train", *SMALL, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


def check_same(run: Path, reference: Path) -> None:
    assert differences(run, reference) == []
    assert replay_files(run) == replay_files(reference)


LONG = pytest.mark.long


@pytest.mark.parametrize("point", [one if one == "a generation" else pytest.param(one, marks=LONG) for one in POINTS])
def test_kills_inside_every_phase_change_nothing(point: str, killer: Killer, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", *SMALL, f"logdir={run}"]
    for kill in POINTS[point]:
        ended = killer.run(*command, kill=kill)
        assert ended.code == -signal.SIGKILL, f"{kill} was not reached: {ended.output}"
        command = ["resume", str(run)]
    ended = killer.run(*command)
    assert ended.code == 0, ended.output
    check_same(run, undisturbed)


@pytest.mark.parametrize("part", [one if one == "the round" else pytest.param(one, marks=LONG) for one in FORGOTTEN])
def test_the_comparison_notices_what_was_not_restored(
    part: str, killer: Killer, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    kill = Kill("reverie.components.controllers.rounds:Rounds.add", "after", 90)
    assert killer.run("train", *SMALL, f"logdir={run}", kill=kill).code == -signal.SIGKILL
    killer.run("resume", str(run), forget=FORGOTTEN[part])
    assert differences(run, undisturbed) != []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_many_kills_at_random_places_change_nothing(
    seed: int, killer: Killer, undisturbed: Path, tmp_path: Path
) -> None:
    rng, run = random.Random(seed), tmp_path / "run"
    hooks = ["collect_step", "converge_vae", "encode", "converge_mdn", "evolve", "evolve_in_dream"]
    command, kills = ["train", *SMALL, f"logdir={run}"], 0
    while True:
        hook = rng.choice(hooks) if kills else "collect_step"  # which comes often enough to be met
        kill = Kill(f"{_FLOW}.{hook}", rng.choice(["before", "after"]), rng.randint(1, 40))
        ended = killer.run(*command, kill=kill)
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.output
        kills += 1
        command = ["resume", str(run)] if (run / "config.yaml").is_file() else command
    assert kills > 0
    check_same(run, undisturbed)
