"""However many shapes a run meets, its compiled steps never reach the compiler's limit of versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.backends.debugging import eager as uncompiled

from reverie.commands.composition import composed
from reverie.rehearsal import Rehearsal, rehearsal
from reverie.runtime import compilation
from reverie.runtime.compilation import use_compiled_steps
from reverie.types import Observation, Space, Spaces
from reverie.workflows.open_loop import PredictsOpenLoop

CPU = torch.device("cpu")
SPACES = Spaces(obs={"vector": Space(shape=(7,), dtype="float32")}, action=Space(shape=(2,), dtype="float32"))
OLDER = ("v1", "v2", "v3_2023")
LENGTHS = (21, 17, 30, 13, 31, 11, 27, 19, 23, 29)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Steps are traced and guarded as on a GPU, and then run as they are: quick, and with the same versions."""
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **given: compile_with(function, backend=uncompiled, **given))
    monkeypatch.setattr(compilation, "_MAX_VERSIONS", 8)
    torch.compiler.reset()
    yield
    use_compiled_steps(is_on=False)
    torch.compiler.reset()


def acted(run: Rehearsal, num_envs: int, mode: str) -> None:
    policy = run.workflow.policy(None)
    carry, no = policy.initial(num_envs), torch.zeros(num_envs, dtype=torch.bool)
    for is_first in (~no, no):
        obs = {"vector": torch.zeros(num_envs, 7)}
        seen = Observation(obs=obs, reward=torch.zeros(num_envs), is_first=is_first, is_last=no, is_terminal=no)
        carry, _, _ = policy.act(carry, seen, mode="eval" if mode == "eval" else "train")


@pytest.mark.parametrize("form", ["v3", *(pytest.param(one, marks=pytest.mark.long) for one in OLDER)])
def test_evaluations_of_many_lengths(form: str, traced: None) -> None:
    groups = [f"{group}=dreamer_{form}" for group in ("components", "controller", "workflow")]
    sizes = ["size=debug", "size.blocks=4", "training.batch_size=2", "training.batch_length=3", "workflow.horizon=2"]
    config = composed("gym_CartPole-v1", [*groups, "experiment=dreamer_cartpole", *sizes, "runtime.precision=bfloat16"])
    run = rehearsal(config, spaces=SPACES, device=CPU, streams=4, rows=256)
    use_compiled_steps(is_on=True)
    acted(run, 4, "train")
    run.update()
    acted(run, 3, "eval")
    assert isinstance(run.workflow, PredictsOpenLoop)
    for length in LENGTHS:
        for size, rows in ((3, 9), (1, length)):
            stream, age = torch.arange(size), torch.arange(rows - 1, -1, -1).expand(size, rows)
            found = run.workflow.open_loop(
                run.buffer.aged(stream, age), is_context=torch.zeros(size, rows - 1, dtype=torch.bool)
            )
            assert found.reward.shape == (size, rows - 1)
