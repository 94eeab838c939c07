"""A workflow driven by hand: what `reverie train` does, without the loop, the checkpoints and the log around it.

python examples/plain_loop.py                              (a few seconds of a very small Dreamer on CartPole)
python examples/plain_loop.py training.total_timesteps=800 (any override of `reverie train`)

The orchestrator adds phases, evaluation, saving and logging; it adds nothing to the mathematics. A test compares the
weights that come out of both, bit by bit.
"""

from __future__ import annotations

import sys
from fractions import Fraction

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from reverie.build import assemble
from reverie.commands.catalogue import CONFIGS
from reverie.runtime.device import RuntimeConfig, chosen_device, prepare_torch
from reverie.types import Metrics, Phase
from reverie.workflows.dreamer import Dreamer

DEFAULTS = ["experiment=dreamer_cartpole", "size=debug", "training.total_timesteps=400"]


def trained(overrides: list[str]) -> tuple[Dreamer, Metrics]:
    """The workflow after ``training.total_timesteps`` agent steps, and the metrics of its last update."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", overrides)
    OmegaConf.set_struct(config, False)  # `assemble` fills in what the environment looks like
    prepare_torch(RuntimeConfig(**config.runtime), torch.device("cpu"))
    parts = assemble(
        config, device=chosen_device(config.experiment.device), allow=None
    )  # configuration in, objects out
    workflow, buffer, training = parts.workflow, parts.buffers["replay"], config.training
    assert isinstance(workflow, Dreamer)

    size, length = training.batch_size, training.batch_length + Dreamer.context_rows
    ratio = Fraction(str(training.train_ratio))  # replayed steps per agent step, exact however long the run
    phase = Phase(name="learn", type="online", progress=torch.zeros((), device=parts.device))
    steps, replayed, metrics = 0, 0, {}
    while steps < training.total_timesteps:
        collected = workflow.collect_step(steps, phase=phase)  # act once in every environment
        buffer.append(collected.trajectory)
        steps += collected.steps
        phase.progress.fill_(min(1.0, steps / training.total_timesteps))
        while buffer.can_sample(size, length) and replayed + size * training.batch_length <= ratio * steps:
            batch = buffer.sample(size, length, sampler="fresh_first")
            workflow.acting.before_update()  # with `runtime.acting_weights=lagged`, what acts until the next update
            result = workflow.update(batch, phase=phase)  # losses, gradients, one optimiser step
            if result.write_back is not None:
                buffer.write_back(batch.index, result.write_back)  # fresher latents for the next time
            replayed += size * training.batch_length
            metrics = result.metrics
    return workflow, metrics


if __name__ == "__main__":
    for name, value in trained([*DEFAULTS, *sys.argv[1:]])[1].items():
        print(f"{name:24} {float(value):10.4f}")
