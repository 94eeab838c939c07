"""One update of TD-MPC2: what it learns from, what it leaves alone, and what it does when a number is not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from small_tdmpc import BOTH, PICTURES, STATES, phase, shaken_tdmpc, small_tdmpc, synthetic_batch
from test_compiled_updates import traced
from test_skipped_updates import NoQuestions, bits

from reverie.commands.composition import composed
from reverie.components.controllers.target_networks import TargetNetworks
from reverie.components.networks.normed import NormedEnsemble, NormedMlp
from reverie.components.networks.numbers import NumberForm, PlainForm, SymlogForm
from reverie.components.networks.symlog import symexp, symlog
from reverie.rehearsal import rehearsal
from reverie.types import Batch, ReverieError, Spaces

NAN, INFINITY = float("nan"), float("inf")
EPISODIC = "workflow.episodic=true"


def test_reward_and_end_are_those_that_arrive_with_the_next_row() -> None:
    """The first row's reward and end belong to a transition that is not in the batch."""
    batch, other = synthetic_batch(), synthetic_batch()
    other.reward[:, 0] += 5.0
    other.is_terminal[1, 0] = True
    assert losses(shaken_tdmpc(EPISODIC), batch) == losses(shaken_tdmpc(EPISODIC), other)
    later = synthetic_batch()
    later.reward[:, 1] += 5.0
    assert losses(shaken_tdmpc(EPISODIC), later)["loss/reward"] != losses(shaken_tdmpc(EPISODIC), batch)["loss/reward"]


def losses(workflow: object, batch: Batch) -> dict[str, float]:
    metrics = workflow.update(batch, phase=phase()).metrics  # pyright: ignore[reportAttributeAccessIssue]
    return {name: float(value) for name, value in metrics.items()}


def test_the_last_action_changes_nothing() -> None:
    """It leads out of the batch."""
    batch, other = synthetic_batch(), synthetic_batch()
    other.action[:, -1] = 0.0
    assert losses(shaken_tdmpc(), batch) == losses(shaken_tdmpc(), other)


def test_nothing_is_worth_anything_behind_an_end() -> None:
    workflow = shaken_tdmpc()
    batch = synthetic_batch()
    batch.is_terminal[:] = True
    metrics = workflow.update(batch, phase=phase()).metrics
    assert float(metrics["target_mean"]) == pytest.approx(float(batch.reward[:, 1:].mean()), abs=1e-6)
    batch.is_terminal[:] = False
    assert float(shaken_tdmpc().update(batch, phase=phase()).metrics["target_mean"]) != pytest.approx(
        float(batch.reward[:, 1:].mean()), abs=1e-3
    )


@pytest.mark.parametrize("spaces", [STATES, PICTURES, BOTH], ids=["states", "pictures", "both"])
def test_every_part_learns(spaces: Spaces) -> None:
    workflow = shaken_tdmpc(EPISODIC, spaces=spaces, size=1.0)
    before = {name: bits(one.state_dict()) for name, one in workflow.modules().items()}
    result = workflow.update(synthetic_batch(spaces=spaces), phase=phase())
    after = {name: bits(one.state_dict()) for name, one in workflow.modules().items()}
    assert all(value.isfinite() for value in result.metrics.values())
    assert {name for name in before if before[name] != after[name]} == before.keys()
    assert result.priorities is not None
    assert (result.priorities.shape, bool((result.priorities > 0).all())) == ((4,), True)


def test_every_parameter_of_every_network_moves() -> None:
    workflow = shaken_tdmpc(EPISODIC)
    before = {f"{n}.{k}": p.detach().clone() for n, m in workflow.modules().items() for k, p in m.named_parameters()}
    workflow.update(synthetic_batch(), phase=phase())
    for name, module in workflow.modules().items():
        for key, parameter in module.named_parameters():
            assert not torch.equal(parameter, before[f"{name}.{key}"]), f"{name}.{key}"


def test_the_target_follows_at_its_rate() -> None:
    workflow = shaken_tdmpc("components.target.rate=0.25")
    target = workflow.modules()["target"]
    slow = [one.detach().clone() for one in target.parameters()]
    workflow.update(synthetic_batch(), phase=phase())
    fast = [one.detach() for one in workflow.modules()["critic"].parameters()]
    for now, before, online in zip(target.parameters(), slow, fast, strict=True):
        torch.testing.assert_close(now.detach(), before.lerp(online, 0.25))
    assert not any(one.requires_grad for one in target.parameters())


def test_a_target_can_hold_more_and_move_seldom() -> None:
    workflow = shaken_tdmpc("components.target.of=[encoder,critic]", "components.target.every=2")
    target = workflow.modules()["target"]
    assert isinstance(target, TargetNetworks)
    moved = []
    for seed in range(4):
        before = bits(target.copies.state_dict())
        workflow.update(synthetic_batch(seed), phase=phase())
        moved.append(bits(target.copies.state_dict()) != before)
    assert moved == [True, False, True, False]
    with pytest.raises(ReverieError, match=r"components\.target\.of"):
        small_tdmpc("components.target.of=[nobody]")


def test_the_encoder_learns_at_its_own_rate() -> None:
    """Adam's first step is as long as the rate, whatever the gradient."""
    workflow = shaken_tdmpc("optimizers.model.rate_scales.encoder=0.3", "optimizers.model.learning_rate=1e-3")
    names = ("encoder", "dynamics")
    before = {n: [p.detach().clone() for p in workflow.modules()[n].parameters()] for n in names}
    workflow.update(synthetic_batch(), phase=phase())
    steps = {
        name: max(
            float((now.detach() - then).abs().max())
            for now, then in zip(workflow.modules()[name].parameters(), before[name], strict=True)
        )
        for name in names
    }
    assert steps == {"encoder": pytest.approx(3e-4, rel=1e-2), "dynamics": pytest.approx(1e-3, rel=1e-2)}
    with pytest.raises(ReverieError, match="rate_scales"):
        small_tdmpc("+optimizers.model.rate_scales.actor=0.5")


def test_dropout_is_drawn_from_the_stream_of_updates() -> None:
    found = [
        losses(shaken_tdmpc(f"controller.critic.network.dropout={share}"), synthetic_batch()) for share in (0, 0.5)
    ]
    assert found[0]["loss/value"] != found[1]["loss/value"]
    assert found[0]["loss/reward"] == found[1]["loss/reward"]
    keep = NormedEnsemble(3, 1, members=2, layers=1, units=50, dropout=0.2).drawn_dropout(
        40, torch.Generator().manual_seed(0), members=2
    )
    assert keep is not None
    assert set(keep.unique().tolist()) == {0.0, 1.25}
    assert float((keep == 0).float().mean()) == pytest.approx(0.2, abs=0.03)


def test_an_ensemble_is_its_members_side_by_side() -> None:
    """With weights copied into networks of their own, and when only two of them are asked."""
    torch.manual_seed(0)
    ensemble = NormedEnsemble(5, 3, members=4, layers=2, units=6)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter += torch.randn_like(parameter)
    x = torch.randn(7, 2, 5)
    alone = []
    for member in range(4):
        network = NormedMlp(5, 3, layers=2, units=6)
        network.load_state_dict({name: value[member] for name, value in ensemble.state_dict().items()})
        alone.append(network(x))
    torch.testing.assert_close(ensemble(x), torch.stack(alone))
    pair = torch.tensor([3, 1])
    torch.testing.assert_close(ensemble(x, members=pair), torch.stack([alone[3], alone[1]]))


def test_pairs_of_critics_differ_and_all_are_drawn() -> None:
    critic = small_tdmpc("size.members=4").model.critic
    pairs = critic.pairs((300,), torch.Generator().manual_seed(0))
    assert pairs.shape == (300, 2)
    assert bool((pairs[:, 0] != pairs[:, 1]).all())
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == 6


@pytest.mark.parametrize(("form", "expected"), [(PlainForm(), lambda x: x), (SymlogForm(), symexp)])
def test_other_forms_of_numbers(form: NumberForm, expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    output = torch.tensor([[0.5], [-2.0]])
    target = torch.tensor([3.0, -1.0])
    number = form(output)
    torch.testing.assert_close(number.mean(), expected(output[:, 0]))
    space = target if isinstance(form, PlainForm) else symlog(target)
    torch.testing.assert_close(number.loss(target), (output[:, 0] - space).square())


def test_other_parts_are_chosen_in_yaml() -> None:
    """Plain numbers, no SimNorm, no dropout, all copied: what the first TD-MPC has."""
    plain = "{_target_: reverie.components.networks.numbers.PlainForm}"
    no_simnorm = ("components.dynamics.network.simnorm_dim=null", "components.encoder.vectors.network.simnorm_dim=null")
    forms = [f"~{part}.form" for part in ("components.reward_head", "controller.critic")]
    forms += [f"+{part}.form={plain}" for part in ("components.reward_head", "controller.critic")]
    workflow = shaken_tdmpc(*forms, *no_simnorm, "components.target.of=[encoder,critic]")
    assert workflow.update(synthetic_batch(), phase=phase()).metrics["skipped"] == 0


def with_bad_observation(batch: Batch) -> None:
    batch.obs["vector"][1, 2, 2] = NAN


def with_bad_reward(batch: Batch) -> None:
    batch.reward[2, 1] = INFINITY


@pytest.mark.parametrize("spoil", [with_bad_observation, with_bad_reward])
def test_a_bad_batch_changes_nothing(spoil: Callable[[Batch], None]) -> None:
    workflow = shaken_tdmpc(EPISODIC)
    assert workflow.update(synthetic_batch(0), phase=phase()).metrics["skipped"] == 0
    before, batch = bits(workflow.get_state()), synthetic_batch(1)
    spoil(batch)
    assert workflow.update(batch, phase=phase()).metrics["skipped"] == 1
    assert bits(workflow.get_state()) == before
    assert workflow.update(synthetic_batch(1), phase=phase()).metrics["skipped"] == 0
    assert bits(workflow.get_state()) != before


def test_a_policy_that_cannot_move_takes_the_model_back() -> None:
    """The model's step was made already, and it was a good one."""
    workflow = shaken_tdmpc()
    workflow.update(synthetic_batch(0), phase=phase())
    before = bits(workflow.get_state())
    spoiled = next(workflow.modules()["policy"].parameters())
    handle = spoiled.register_hook(lambda gradient: gradient * NAN)
    metrics = workflow.update(synthetic_batch(1), phase=phase()).metrics
    handle.remove()
    assert all(value.isfinite() for name, value in metrics.items() if name.startswith("loss/"))
    assert metrics["skipped"] == 1
    assert bits(workflow.get_state()) == before


def test_an_update_asks_the_device_nothing() -> None:
    workflow, batch = shaken_tdmpc(EPISODIC, spaces=BOTH), synthetic_batch(spaces=BOTH)
    with NoQuestions():
        metrics = workflow.update(batch, phase=phase()).metrics
    assert metrics["skipped"] == 0


def test_its_tensors_stay_where_they_are() -> None:
    """A captured graph keeps the old addresses."""
    workflow = shaken_tdmpc()
    tensors = [one for module in workflow.modules().values() for one in module.state_dict(keep_vars=True).values()]
    places = [one.data_ptr() for one in tensors]
    workflow.update(synthetic_batch(), phase=phase())
    workflow.set_state(workflow.get_state())
    assert [one.data_ptr() for one in tensors] == places


@pytest.mark.parametrize("spaces", [STATES, PICTURES], ids=["states", "pictures"])
def test_compiled_steps_are_those_of_eager_code(spaces: Spaces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates, and the plans that the made-up rows come from."""
    found = []
    for is_on in (False, True):
        sizes = ("size=debug", "training.batch_size=3", "controller.planner.iterations=2", EPISODIC)
        config = composed("gym_Pendulum-v1", ["experiment=tdmpc_pendulum", *sizes])
        with monkeypatch.context() as patch, traced(patch, is_on=is_on):
            run = rehearsal(config, spaces=spaces, device=torch.device("cpu"), streams=2, rows=24)
            metrics = [run.update() for _ in range(2)]
        found.append(torch.stack([torch.stack([one[key] for key in sorted(one)]).float() for one in metrics]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_refusals() -> None:
    with pytest.raises(ReverieError, match=r"workflow\.loss_weights"):
        small_tdmpc("+workflow.loss_weights.policy=1")
    with pytest.raises(ReverieError, match=r"workflow\.episodic"):
        small_tdmpc("components.termination_head.is_learned=true")
    with pytest.raises(ReverieError, match="at least 39 a side"):
        small_tdmpc(spaces=replace(PICTURES, obs={"image": replace(PICTURES.obs["image"], shape=(32, 32, 3))}))
    with pytest.raises(ReverieError, match=r"`optimizers` must have model and policy"):
        small_tdmpc("~optimizers.policy")
    with pytest.raises(ReverieError, match="SimNorm over groups of 5"):
        small_tdmpc("components.dynamics.network.simnorm_dim=5")
