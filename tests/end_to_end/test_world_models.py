"""World Models from the command line: what it shows, and what it refuses before the first step."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image

from reverie.build import assemble
from reverie.cli import main
from reverie.commands.composition import composed_run
from reverie.components.controllers.evolution import Evolution
from reverie.types import Phase
from reverie.workflows import og_wm

TINY = (
    *("experiment=og_wm_dream", "size=debug", "training.total_timesteps=64", "buffer.replay.capacity=64"),
    *("training.batch_size=4", "training.batch_length=4", "training.lengths.vae_updates=2"),
    *("training.lengths.mdn_updates=2", "training.lengths.dream_steps=12", "workflow.dream_limit=4"),
    "controller.population={population: 4, episodes: 1, mean_every: 1, mean_episodes: 2}",
    *("evaluation.episodes=2", "evaluation.envs=2", "evaluation.open_loop={context: 2, length: 5, sequences: 2}"),
    "logging.has_tensorboard=false",
)


def test_dreams_at_several_temperatures_and_the_fitness_are_shown(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", *TINY, "workflow.shown_temperatures=[0.5, 1.5]", f"logdir={run}"]) == 0
    found = {path.name.partition("-")[2].partition("-")[2]: path for path in (run / "videos").iterdir()}
    assert {"dream-temperature-0-5.gif", "dream-temperature-1-5.gif", "history-fitness.png"} <= set(found)
    assert {"open_loop-image.gif", "open_loop-lines.png"} <= set(found)
    with Image.open(found["dream-temperature-0-5.gif"]) as one, Image.open(found["dream-temperature-1-5.gif"]) as other:
        assert one.size == other.size == (2 * 68, 68)
        assert one.tobytes() == other.tobytes(), "both begin with the same pictures"


def test_a_controller_that_evolved_in_the_task_plays_and_its_model_says_nothing_about_rewards_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    phases = "phases=og_wm"
    legs = ("training.lengths.evolve_steps=32", "environment.num_envs=2")
    blind = [
        *("components.dynamics.has_reward_head=false", "components.dynamics.has_termination_head=false"),
        *("~workflow.loss_weights.reward", "~workflow.loss_weights.termination"),
    ]
    tiny = [word for word in TINY if "dream_steps" not in word]
    assert main(["train", *tiny, phases, *legs, *blind, f"logdir={run}"]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    names = {name for line in lines for name in line}
    assert "eval/model/image_error_1" in names
    assert not any(name.startswith(("eval/model/reward", "eval/model/continue")) for name in names)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "2", "--json"]) == 0  # without environments to evolve in
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


def test_a_phase_looks_at_its_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where evolution is driven by hand, nobody advances the phase: looking at every step would take most of it."""
    looks: list[int] = []
    monkeypatch.setattr(og_wm, "digest", lambda *modules: looks.append(len(modules)) or "a model")
    tiny = [word for word in TINY if "dream_steps" not in word]
    config = composed_run([*tiny, "phases=og_wm", "environment.num_envs=2", "environment.in_workers=false"])
    with closing(assemble(config, device=torch.device("cpu"), allow=None)) as parts:
        for _ in range(2):
            phase = Phase(name="evolve", type="online", progress=torch.zeros(()), controller="population")
            for _ in range(3):
                parts.workflow.collect_step(0, phase=phase)
    assert looks == [2, 2]


def test_a_skipped_leg_does_nothing_and_a_longer_one_is_gone_back_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, enter = [], Evolution.enter
    monkeypatch.setattr(Evolution, "enter", lambda self, arena: entered.append(enter(self, arena)) or entered[-1])
    run = tmp_path / "run"
    assert main(["train", *TINY, "training.lengths.vae_updates=0", f"logdir={run}"]) == 0
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert "train/loss/reconstruction" not in lines
    assert "train/loss/latent" in lines
    assert entered.count(True) == 1
    capsys.readouterr()
    assert main(["resume", str(run)]) == 0
    assert "It has finished; add training.phases.4.duration_updates=N to train longer." in capsys.readouterr().out
    assert main(["resume", str(run), "training.lengths.vae_updates=3"]) == 2
    assert "set training.phases.N.duration_steps or duration_updates instead" in capsys.readouterr().err
    assert main(["resume", str(run), "training.phases.1.duration_updates=3"]) == 0
    assert entered.count(True) == 2, "the model has learned, so what was judged before counts no more"
    assert "going back to it" in capsys.readouterr().out
    assert "train/loss/reconstruction" in (run / "metrics.jsonl").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["train", *TINY, "training.lengths.vae_updates=4", f"logdir={run}"]) == 0
    assert "going back to it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["components.dynamics.has_reward_head=false", "~workflow.loss_weights.reward"], "has_reward_head=true"),
        (["components.dynamics.has_reward_head=false"], "`workflow.loss_weights` must have the keys"),
        (["task=builtin_discrete"], "the VAE reads one picture"),
        (["task=builtin_image", "environment.simulator.size=32"], "set environment.simulator.size=64"),
        (["training.batch_length=1"], "batch.length must be at least 2"),
        (["phases=og_wm", "environment.num_envs=3"], r"environment.num_envs must divide half of the population"),
        (["training.phases.2.workflow_hooks=[{encode: {batch: {size: 4, length: 1}}}]"], "sampler 'sweep'"),
        (["training.phases.2.duration_updates=15"], "set its duration_updates to at least 16"),
        (["training.collect_with=brownian"], "Brownian actions are numbers"),
        (["training.collect_with=nobody"], "`controller.nobody`"),
        (["controller.population.population=5"], "must be even"),
        (["workflow.temperature=0"], "`workflow.temperature` must be at least"),
        (["~optimizers.vae"], "`optimizers.vae` is missing"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    overrides: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", *TINY, *overrides, f"logdir={run}"]) == 2
    said = capsys.readouterr()
    assert words in said.out + said.err
    assert not run.exists()


@pytest.mark.parametrize("missing", ["converge_mdn", "evolve_in_dream"])
def test_without_latents_there_is_nothing_to_learn_or_dream_from(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    skipped = ["training.phases.2.duration_updates=0"]
    if missing == "evolve_in_dream":
        skipped.append("training.lengths.mdn_updates=0")
    assert main(["train", *TINY, *skipped, f"logdir={run}"]) == 2
    said = capsys.readouterr()
    assert "put a phase with `encode` before it" in said.out + said.err


def test_looking_draws_from_no_stream_of_the_run(tmp_path: Path) -> None:
    """With and without pictures the run is the same."""
    states = []
    for name, every in (("shown", "1"), ("hidden", "null")):
        run = tmp_path / name
        assert main(["train", *TINY, f"evaluation.open_loop.pictures_every={every}", f"logdir={run}"]) == 0
        newest = max((run / "checkpoints").glob("[0-9]*"))
        states.append({path.name: path.read_bytes() for path in newest.rglob("*.safetensors")})
    assert states[0] == states[1]
    assert torch.is_grad_enabled()
