"""Several tasks in one TD-MPC2: what tells them apart reaches everything, and what a task does not read, nothing."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from small_tdmpc import CPU, STATES, phase, seen, small_tdmpc, synthetic_batch
from test_compiled_updates import traced
from test_skipped_updates import NoQuestions, bits
from torch import Tensor

from reverie.commands.composition import composed
from reverie.components.controllers.policy_prior import GaussianPrior
from reverie.components.networks.task_encoder import TaskEncoder
from reverie.rehearsal import rehearsal
from reverie.types import Batch, ReverieError, Space, Spaces
from reverie.workflows.tdmpc import Tdmpc
from reverie.workflows.tdmpc_records import Transitions

TASKS, ACTIONS = 4, 3
MASKS = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
MULTITASK = Spaces(
    obs={
        "state": Space(shape=(5,), dtype="float32"),
        "task": Space(shape=(), dtype="int64", classes=TASKS),
        "action_mask": Space(shape=(ACTIONS,), dtype="float32"),
    },
    action=Space(shape=(ACTIONS,), dtype="float32"),
)
PARTS = ("components=tdmpc2_multitask", "components.encoder.embedding_dim=6")


def multitask(*overrides: str, size: float = 0.3) -> Tdmpc:
    """All weights but the embeddings moved by noise."""
    workflow = small_tdmpc(*PARTS, *overrides, spaces=MULTITASK)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in workflow.modules().values():
            for name, parameter in module.named_parameters():
                if not name.endswith("embedding"):
                    parameter += size * torch.randn(parameter.shape, generator=rng)
    return workflow


def encoder_of(workflow: Tdmpc) -> TaskEncoder:
    encoder = workflow.modules()["encoder"]
    assert isinstance(encoder, TaskEncoder)
    return encoder


def batch_of(tasks: list[int], seed: int = 0) -> Batch:
    """One sequence of each of these tasks. Actions are numbers everywhere, read or not."""
    batch = synthetic_batch(seed, size=len(tasks), spaces=MULTITASK)
    task = torch.tensor(tasks).unsqueeze(1).expand(-1, 4)
    batch.obs["task"], batch.obs["action_mask"] = task, MASKS[task]
    return batch


def observed(tasks: list[int]) -> dict[str, Tensor]:
    number = torch.tensor(tasks)
    state = torch.rand(len(tasks), 5, generator=torch.Generator().manual_seed(7))
    return {"state": state, "task": number, "action_mask": MASKS[number]}


def test_actions_that_a_task_does_not_read_change_nothing() -> None:
    """Whatever stands there: metrics, weights and moments are the same bits."""
    tasks = [0, 1, 2, 1]
    one, other = batch_of(tasks), batch_of(tasks)
    unread = MASKS[torch.tensor(tasks)].unsqueeze(1).expand(-1, 4, -1) == 0
    other.action[unread] = 0.77
    assert not torch.equal(one.action, other.action)
    states = []
    for batch in (one, other):
        workflow = multitask()
        metrics = workflow.update(batch, phase=phase()).metrics
        states.append((bits(workflow.get_state()), bits(metrics)))
    assert states[0] == states[1]
    other.action[0, 0, 2] += 0.5
    changed = multitask()
    changed.update(other, phase=phase())
    assert bits(changed.get_state()) != states[0][0]


def test_what_is_not_read_has_no_gradient() -> None:
    """In a batch of the task that reads one action of three: the columns of the others in every network that reads an
    action, and the rows of the policy that would say them.
    """
    workflow = multitask()
    batch = batch_of([2, 2])
    before = copy.deepcopy(workflow.modules())
    assert workflow.update(batch, phase=phase()).metrics["skipped"] == 0
    after = workflow.modules()
    for name, key in (("dynamics", "network.0.weight"), ("reward_head", "network.0.weight")):
        change = after[name].get_parameter(key) - before[name].get_parameter(key)
        assert change[:, -ACTIONS].any()
        assert not change[:, 1 - ACTIONS :].any()
    change = after["critic"].get_parameter("network.0.weight") - before["critic"].get_parameter("network.0.weight")
    assert change[..., -ACTIONS].any()
    assert not change[..., 1 - ACTIONS :].any()
    change = after["policy"].get_parameter("network.2.weight") - before["policy"].get_parameter("network.2.weight")
    assert [bool(row.any()) for row in change] == [True, False, False] * 2
    change = encoder_of(workflow).embedding - before["encoder"].get_parameter("embedding")
    assert [bool(row.any()) for row in change] == [False, False, True, False]


def test_a_masked_policy_is_that_of_the_smaller_action() -> None:
    """Its action, log-probability and bonus, computed by a policy that never heard of the other dimensions."""
    rng = torch.Generator().manual_seed(0)
    outputs, noise = torch.randn(5, 2 * ACTIONS, generator=rng), torch.randn(5, ACTIONS, generator=rng)
    both = [prior_of(ACTIONS), prior_of(2)]
    draw = both[0](outputs, noise, MASKS[1])
    read = torch.tensor([0, 1, 3, 4])
    smaller = both[1](outputs[:, read], noise[:, :2])
    torch.testing.assert_close(draw.action[:, :2], smaller.action)
    torch.testing.assert_close(draw.mode[:, :2], smaller.mode)
    torch.testing.assert_close(draw.entropy, smaller.entropy)
    torch.testing.assert_close(draw.bonus, smaller.bonus)
    assert not draw.action[:, 2].any()
    assert not draw.mode[:, 2].any()
    whole = both[0](outputs, noise)
    torch.testing.assert_close(both[0](outputs, noise, torch.ones(ACTIONS)).bonus, whole.bonus)


def prior_of(actions: int) -> GaussianPrior:
    space = Space(shape=(actions,), dtype="float32")
    return GaussianPrior(space=space, latent_dim=2 * actions, network=lambda a, b: torch.nn.Identity())


@pytest.mark.parametrize("controller", [None, "policy"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_actions_are_zero_where_nobody_reads_them(controller: str | None, mode: str) -> None:
    workflow = multitask()
    policy = workflow.policy(controller)
    with NoQuestions():
        carry, action, _ = policy.act(policy.initial(4), seen(observed([0, 1, 2, 3])), mode=mode)  # pyright: ignore[reportArgumentType]
    assert torch.equal(action != 0, MASKS != 0)
    for mean in carry.values():
        assert torch.equal((mean != 0).all(1), MASKS != 0)


@torch.no_grad()
def test_noise_that_is_not_read_changes_no_plan() -> None:
    workflow, obs = multitask(), observed([2, 1])
    planner, model = workflow._planner, workflow.model.about(workflow._encoder, obs)
    noise = planner.noise(2, model, torch.Generator().manual_seed(0), is_greedy=False)
    assert noise.action is not None
    latent, previous = workflow._encoder(obs, {}), torch.zeros(3, 2, ACTIONS)
    made = planner(model, latent, previous, noise)
    other = replace(noise, **{name: getattr(noise, name).clone() for name in ("proposed", "drawn", "last_action")})
    for one in (other.proposed, other.drawn):
        one[..., 1, :, 2] += 3.0
        one[..., 0, :, 1:] -= 2.0
    other.last_action[:, 0, :, 1:] += 1.0
    again = planner(model, latent, previous, other)
    assert torch.equal(again.action, made.action)
    assert torch.equal(again.mean, made.mean)


@torch.no_grad()
def test_environments_of_different_tasks_are_planned_for_as_if_alone() -> None:
    """With a discount of their own each."""
    workflow, obs = multitask("workflow.episode_length=[100,500,1000,100]"), observed([0, 2, 1])
    planner, encoder = workflow._planner, workflow._encoder
    latent = encoder(obs, {})
    noise = planner.noise(3, workflow.model, torch.Generator().manual_seed(0), is_greedy=True)
    together = planner(workflow.model.about(encoder, obs), latent, torch.zeros(3, 3, ACTIONS), noise)
    for env in range(3):
        here = slice(env, env + 1)
        alone = replace(
            noise,
            proposed=noise.proposed[:, here],
            drawn=noise.drawn[:, :, here],
            last_action=noise.last_action[:, here],
            choice=noise.choice[here],
        )
        model = workflow.model.about(encoder, {key: value[here] for key, value in obs.items()})
        made = planner(model, latent[here], torch.zeros(3, 1, ACTIONS), alone)
        torch.testing.assert_close(made.action, together.action[here], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_everything_that_reads_a_latent_reads_the_task() -> None:
    """The same state in two tasks; and the dynamics leave the task as it is."""
    workflow = multitask("workflow.episodic=true")
    obs = observed([0, 3])
    obs["state"][1] = obs["state"][0]
    with torch.no_grad():
        encoder_of(workflow).embedding[3] = 0.4
    latent = workflow._encoder(obs, {})
    assert latent.shape == (2, 16 + 6)
    assert torch.equal(latent[:, 16:], encoder_of(workflow).embedding[[0, 3]])
    assert not torch.allclose(latent[0, :16], latent[1, :16])
    latent[:, :16] = latent[0, :16]
    action, model = torch.rand(1, ACTIONS).expand(2, -1), workflow.model
    moved = model.dynamics(latent, action)
    assert torch.equal(moved[:, 16:], latent[:, 16:])
    said = {
        "dynamics": moved[:, :16],
        "reward": model.reward_head.output(latent, action),
        "critic": model.critic.output(latent, action).transpose(0, 1),
        "policy": model.prior.network(latent),  # pyright: ignore[reportCallIssue]
        "end": model.termination_head.logit(latent).unsqueeze(1),
    }
    assert [name for name, (one, other) in said.items() if torch.allclose(one, other, rtol=1e-4)] == []


def test_embeddings_stay_inside_their_norm_and_a_skipped_update_leaves_them() -> None:
    workflow = multitask("optimizers.model.learning_rate=2.0")
    norms = torch.zeros(3, TASKS)
    for seed in range(3):
        assert workflow.update(batch_of([0, 1, 2, 1], seed), phase=phase()).metrics["skipped"] == 0
        norms[seed] = encoder_of(workflow).embedding.detach().norm(dim=-1)
    assert float(norms.max()) <= 1 + 1e-6
    assert norms[0, :3].tolist() == [pytest.approx(1.0)] * 3
    assert float(norms[:, 3].max()) < 0.1, "a task that never came"
    with torch.no_grad():
        encoder_of(workflow).embedding[0] *= 2
    before, spoiled = bits(workflow.get_state()), batch_of([0, 1, 2, 1])
    spoiled.reward[0, 1] = float("nan")
    assert workflow.update(spoiled, phase=phase()).metrics["skipped"] == 1
    assert bits(workflow.get_state()) == before


def test_embeddings_learn_at_the_whole_rate_and_the_rest_of_the_encoder_at_its_own() -> None:
    """Adam's first step is as long as the rate."""
    workflow = multitask("optimizers.model.rate_scales.encoder={vectors: 0.3}", "optimizers.model.learning_rate=1e-3")
    before = {name: one.detach().clone() for name, one in encoder_of(workflow).named_parameters()}
    workflow.update(batch_of([0, 1, 2, 3]), phase=phase())
    moved = {
        name: float((one.detach() - before[name]).abs().max()) for name, one in encoder_of(workflow).named_parameters()
    }
    assert moved.pop("embedding") == pytest.approx(1e-3, rel=1e-2)
    assert max(moved.values()) == pytest.approx(3e-4, rel=1e-2)


def test_each_task_has_its_discount() -> None:
    workflow, batch = multitask("workflow.episode_length=[100,500,1000,100]"), batch_of([0, 1, 2, 3])
    batch.is_terminal[:] = False
    transitions = workflow_transitions(workflow, batch)
    noise = workflow._drawn(transitions)
    _, targets = workflow._targets(transitions, noise)
    one = multitask("workflow.episode_length=100")
    _, same = one._targets(transitions, noise)
    values = (same - transitions.reward) / 0.95
    expected = transitions.reward + torch.tensor([0.95, 0.99, 0.995, 0.95]) * values
    torch.testing.assert_close(targets, expected, rtol=1e-4, atol=1e-4)


def workflow_transitions(workflow: Tdmpc, batch: Batch) -> Transitions:
    return Transitions.of(batch, workflow.model.prior.vector, workflow._encoder.action_mask)


def test_the_consistency_loss_is_about_the_state_alone() -> None:
    workflow = multitask()
    transitions = workflow_transitions(workflow, batch_of([0, 1, 2, 3]))
    noise = workflow._drawn(transitions)
    next_latents, targets = workflow._targets(transitions, noise)
    made = workflow.modelled(transitions, next_latents, targets, noise)
    missed = (made.latents[1:] - next_latents)[..., :16].square().mean((1, 2))
    expected = (missed * torch.tensor([1.0, 0.5, 0.25])).sum() / 3
    torch.testing.assert_close(made.losses["consistency"], expected)


def test_policies_learn_on_the_embeddings_of_the_moment() -> None:
    workflow = multitask()
    latent, obs = torch.rand(3, 2, 22), observed([1, 2])
    told = workflow._encoder.retold(latent, obs)
    assert torch.equal(told[..., :16], latent[..., :16])
    assert torch.equal(told[:, 1, 16:], encoder_of(workflow).embedding[2].expand(3, -1))
    assert not told.requires_grad


def test_compiled_steps_are_those_of_eager_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for is_on in (False, True):
        sizes = ("size=debug", "training.batch_size=3", "controller.planner.iterations=2", *PARTS)
        config = composed("gym_Pendulum-v1", ["experiment=tdmpc_pendulum", *sizes])
        with monkeypatch.context() as patch, traced(patch, is_on=is_on):
            run = rehearsal(config, spaces=MULTITASK, device=CPU, streams=2, rows=24)
            metrics = run.update()
        found.append(torch.stack([metrics[key] for key in sorted(metrics)]).float())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_refusals() -> None:
    with pytest.raises(ReverieError, match="needs the observations `task`"):
        small_tdmpc(*PARTS, spaces=STATES)
    with pytest.raises(ReverieError, match="there are 4 tasks and 2 lengths"):
        multitask("workflow.episode_length=[100,200]")
    with pytest.raises(ReverieError, match="there are 1 tasks and 2 lengths"):
        small_tdmpc("workflow.episode_length=[100,200]")
    with pytest.raises(ReverieError, match=r"workflow\.episode_length"):
        multitask("workflow.episode_length=[100,200,0,1]")
