"""What one of our updates did, under the names and in the shapes of the published code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from reverie.components.networks.distributions import OneHot, OneHots
from reverie.components.representation_learners.latents import Latent
from reverie.interop.dreamer_v3_actions import JointPolicy, KeyPolicy
from reverie.interop.dreamer_v3_inputs import Given
from reverie.interop.dreamer_v3_parts import DreamerParts
from reverie.interop.dreamer_v3_settings import LOSSES
from reverie.interop.links import Arrays, Link
from reverie.types import Metrics
from reverie.workflows.dreamer_records import Dreamed, Judged, Learned


def replayed(parts: DreamerParts, given: Given, carry: Latent, learned: Learned) -> Arrays:
    """Where the world model started, and what it made of the sequence."""
    latents, modelled = learned.modelled.latents, learned.modelled
    kl, _ = parts.rssm.kl(modelled.posterior, modelled.prior)
    value, slow = parts.critic(latents.feature).mean(), parts.critic.slow_value(latents.feature)
    entropies = [parts.rssm.distribution(logits).entropy().sum(-1) for logits in (modelled.prior, modelled.posterior)]
    tensors = {
        **_latent("applied/carry", carry),
        "out/tokens": modelled.tokens,
        **_latent("out/feat", latents),
        "out/feat/logit": modelled.posterior,
        "out/prior_logit": modelled.prior,
        "out/kl_unclipped": kl,
        **_latent("out/carry", last_step(latents)),
        "repl/boot": learned.judged.returns[:, 0].view_as(kl),
        **({} if learned.replay_returns is None else {"repl/ret": learned.replay_returns}),
        "repl/value": value,
        "repl/slowvalue": slow,
        "metric/dyn_ent": entropies[0].mean(),
        "metric/rep_ent": entropies[1].mean(),
    }
    rows = slice(given.settings.context - 1, -1)
    return _arrays(tensors) | {
        f"applied/prevact/{key}": given.arrays[f"data/{key}"][:, rows] for key in given.actions.by_key
    }


def imagined(parts: DreamerParts, given: Given, learned: Learned) -> Arrays:
    """The dreams, what they were worth, and what the actor and the critics said along them."""
    dreamed, judged = learned.dreamed, learned.judged
    with torch.no_grad():
        deter, stoch = dreamed.feature[:, 1:].split([given.size("dyn", "deter"), parts.rssm.dims()["stoch_dim"]], -1)
        logit = parts.rssm.prior(deter)
        slow = parts.critic.slow_value(dreamed.feature)
    tensors = {
        "imag/adv": judged.advantage,
        "imag/con": judged.live,
        "imag/feat_deter": deter,
        "imag/feat_stoch": stoch.reshape(logit.shape),
        "imag/feat_logit": logit,
        "imag/policy_loss": judged.losses["policy"],
        "imag/ret": judged.returns,
        "imag/retnorm_scale": judged.scale,
        "imag/rew": judged.reward,
        "imag/slowvalue": slow,
        "imag/value": judged.value,
        "imag/value_loss": judged.losses["value"],
        "imag/weight": judged.live.cumprod(1),
        **_behaviour_metrics(judged, slow, parts.return_scale.low),
        **_policy_tensors(parts, given, dreamed),
    }
    return _arrays(tensors) | given.their_actions("imag/act", dreamed.action)


@torch.no_grad()
def _policy_tensors(parts: DreamerParts, given: Given, dreamed: Dreamed) -> dict[str, Tensor]:
    """What the actor said of each of its keys."""
    joint = parts.actor(dreamed.feature)
    assert isinstance(joint, JointPolicy)
    chances, found = joint.log_probs(dreamed.action), {}
    for key, policy in joint.by_key.items():
        entropy = policy.entropy()
        found[f"imag/policy_entropy/{key}"] = entropy
        found[f"imag/policy_logp/{key}"] = chances[key]
        for name, value in _policy_outputs(policy, given.action_shape(key)).items():
            found[f"imag/policy_{name}/{key}"] = value
        found[f"metric/ent/{key}"] = entropy[:, :-1].mean()
        if isinstance(policy, OneHot):  # the reference knows the range of a single choice only
            found[f"metric/rand/{key}"] = entropy[:, :-1].mean() / np.log(policy.logits.shape[-1])
    return found


def their_losses(learned: Learned) -> dict[str, Tensor]:
    """By their names, one number per replayed state; those of imagination are means over its steps."""
    shape = learned.modelled.losses["reward"].shape
    found = dict(learned.modelled.reconstruction)
    for theirs, ours in LOSSES.items():
        loss = learned.losses[ours]
        found[theirs] = loss.mean(1).view(shape) if ours in learned.judged.losses else loss
    return {name: found[name] for name in sorted(found)}


def losses(given: Given, learned: Learned, links: list[Link], total: Tensor) -> Arrays:
    """Each loss, and the gradient of their sum and of each of them by itself."""
    by_name = their_losses(learned)
    tensors = {f"loss/{name}": loss for name, loss in by_name.items()}
    tensors |= {f"metric/loss/{name}": loss.mean() for name, loss in by_name.items()}
    found = _arrays(tensors | {"total_loss": total, "metric/opt/loss": total})
    found |= {f"grad/{name}": value for name, value in gradients(total, links).items()}
    if given.image_keys:
        # The picture's term is so much larger than the others that it hides them.
        weights = given.settings.reconstruction_weights
        rest = total - torch.stack([weights[key] * by_name[key].mean() for key in given.image_keys]).sum()
        found |= {f"grad_noimage/{name}": value for name, value in gradients(rest, links).items()}
    norms = [[np.linalg.norm(grad) for grad in gradients(loss.mean(), links).values()] for loss in by_name.values()]
    return found | {
        "gradnorm_by_loss/norms": np.array(norms, dtype=np.float32),
        "gradnorm_by_loss/loss_names": np.array(list(by_name)),
        "gradnorm_by_loss/param_names": np.array([link.name for link in links]),
    }


def gradients(loss: Tensor, links: list[Link]) -> Arrays:
    tensors = [link.tensor for link in links]
    found = torch.autograd.grad(loss, tensors, retain_graph=True, materialize_grads=True)
    return {link.name: link.theirs(grad) for link, grad in zip(links, found, strict=True)}


def optimizer_metrics(before: Arrays, after: Arrays, grads: Arrays, metrics: Metrics) -> Arrays:
    def root_mean_square(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        flat = np.concatenate([value.reshape(-1) for value in arrays.values()]).astype(np.float64)
        return np.array(np.sqrt(np.mean(flat**2)), np.float32)

    return {
        "metric/opt/grad_norm": metrics["grad_norm"].numpy(),
        "metric/opt/grad_rms": root_mean_square(grads),
        "metric/opt/param_rms": root_mean_square({name: after[name] for name in before}),
        "metric/opt/update_rms": root_mean_square({name: after[name] - before[name] for name in before}),
        "metric/opt/param_count": np.array(sum(value.size for value in before.values()), np.float32),
        "metric/opt/updates": np.array(1, np.int32),
    }


def second_metrics(learned: Learned, total: Tensor, metrics: Metrics) -> Arrays:
    means = {f"after2_metric/loss/{name}": loss.mean() for name, loss in their_losses(learned).items()}
    return _arrays(means | {"after2_metric/opt/loss": total, "after2_metric/opt/grad_norm": metrics["grad_norm"]})


def written_back(given: Given, latents: Latent) -> Arrays:
    found = _arrays(_latent("after1_carry/dyn", last_step(latents)) | _latent("after1_replay/dyn", latents))
    if "data/stepid" in given.arrays:
        found["after1_replay/stepid"] = given.arrays["data/stepid"][:, given.settings.context :]
    return found


def last_step(latents: Latent) -> Latent:
    return Latent(deter=latents.deter[:, -1], stoch=latents.stoch[:, -1])


def _behaviour_metrics(judged: Judged, slow: Tensor, low: Tensor) -> dict[str, Tensor]:
    scaled = (judged.returns - low) / judged.scale
    return {
        "metric/adv": judged.advantage.mean(),
        "metric/adv_std": judged.advantage.std(correction=0),
        "metric/adv_mag": judged.advantage.abs().mean(),
        "metric/rew": judged.reward.mean(),
        "metric/con": judged.live.mean(),
        "metric/val": judged.value.mean(),
        "metric/tar": judged.returns.mean(),
        "metric/slowval": slow.mean(),
        "metric/weight": judged.live.cumprod(1).mean(),
        "metric/ret": scaled.mean(),
        "metric/ret_min": scaled.min(),
        "metric/ret_max": scaled.max(),
        "metric/ret_rate": (scaled.abs() >= 1).float().mean(),
    }


def _policy_outputs(policy: KeyPolicy, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """``shape``: that of the action."""
    if isinstance(policy, OneHot):
        return {"logits": policy.logits}
    if isinstance(policy, OneHots):
        logits = torch.stack([one.logits for one in policy.elements], -2)
        return {"logits": logits.view(*logits.shape[:2], *shape, -1)}
    numbers = {"mean": policy.mean, "stddev": policy.stddev}
    return {name: value.view(*value.shape[:2], *shape) for name, value in numbers.items()}


def _latent(prefix: str, latent: Latent) -> dict[str, Tensor]:
    return {f"{prefix}/deter": latent.deter, f"{prefix}/stoch": latent.stoch}


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}
