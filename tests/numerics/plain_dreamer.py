"""The losses of DreamerV3 once more, in float64 and written from the paper's formulas without any of our modules.

It reads published parameters and arrays as ``train_step`` does, so that agents can be checked of which the published
code left no numbers: with several observations and actions of all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from plain_networks import PlainNetworks
from torch import Tensor
from torch.nn import functional as F

Arrays = Mapping[str, np.ndarray]
GAMMA, LAMBDA, UNIMIX, ENTROPY = 1 - 1 / 333, 0.95, 0.01, 3e-4


def symlog(x: Tensor) -> Tensor:
    return x.sign() * x.abs().log1p()


class PlainDreamer:
    """``losses`` and ``total`` have graphs to ``params``; ``seen`` holds other results by their published names."""

    def __init__(
        self,
        params: Arrays,
        inputs: Arrays,
        *,
        obs: Mapping[str, tuple[tuple[int, ...], int | None]],
        actions: Mapping[str, tuple[tuple[int, ...], int | None]],
        act: Callable[[Tensor], Tensor] = F.silu,
        has_symlog: bool = True,
        horizon: int = 3,
    ) -> None:
        self._nets = PlainNetworks(params, act)
        self.params = self._nets.params
        self._inputs, self._obs, self._actions = inputs, obs, actions
        self._has_symlog, self._horizon = has_symlog, horizon
        self.losses: dict[str, Tensor] = {}
        self.seen: dict[str, Tensor] = {}
        self._learn_model()
        self._learn_behaviour()
        scales = {"rep": 0.1, "repval": 0.3}
        self.total = torch.stack([scales.get(name, 1.0) * loss.mean() for name, loss in self.losses.items()]).sum()

    def _rows(self, name: str, rows: slice = slice(1, None)) -> Tensor:
        return torch.tensor(self._inputs[f"data/{name}"]).double()[:, rows]

    def _vector(self, key: str, shape: tuple[int, ...], classes: int | None, rows: slice) -> Tensor:
        value = self._rows(key, rows)
        if classes is not None:
            value = F.one_hot(value.long(), classes).double()
        return value.reshape(*value.shape[:2], -1)

    def _tokens(self) -> Tensor:
        found, kept = [], slice(1, None)
        vectors = {key: space for key, space in sorted(self._obs.items()) if len(space[0]) < 3}
        if vectors:
            parts = [(self._vector(key, *space, kept), space[1] is None) for key, space in vectors.items()]
            flat = [symlog(part) if is_number and self._has_symlog else part for part, is_number in parts]
            found.append(self._nets.stack("enc/mlp{}", "enc/mlp{}norm", torch.cat(flat, -1)))
        pictures = [key for key, space in sorted(self._obs.items()) if len(space[0]) == 3]
        if pictures:
            x = torch.cat([self._rows(key) for key in pictures], -1) / 255 - 0.5
            lead, x, index = x.shape[:2], x.flatten(0, 1), 0
            while f"enc/cnn{index}/kernel" in self.params:
                x = (
                    self._nets.convolution(f"enc/cnn{index}", x)
                    .unflatten(2, (-1, 2))
                    .unflatten(1, (-1, 2))
                    .amax((2, 4))
                )
                x = self._nets.normed(f"enc/cnn{index}norm", x)
                index += 1
            found.append(x.reshape(*lead, -1))
        return torch.cat(found, -1)

    def _core(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        action = action / action.abs().clamp(min=1).detach()
        inputs = [
            self._nets.normed(f"dyn/dynin{index}norm", self._nets.linear(f"dyn/dynin{index}", x))
            for index, x in enumerate((deter, stoch.flatten(1), action))
        ]
        groups = len(self.params["dyn/dynhid0/kernel"])
        x = torch.cat([torch.cat([part, *inputs], -1) for part in deter.chunk(groups, -1)], -1)
        x = self._nets.blocks("dyn/dyngru", self._nets.normed("dyn/dynhid0norm", self._nets.blocks("dyn/dynhid0", x)))
        gates = [part.chunk(3, -1) for part in x.chunk(groups, -1)]
        reset, candidate, update = (torch.cat([gate[index] for gate in gates], -1) for index in range(3))
        update = (update - 1).sigmoid()
        return update * (reset.sigmoid() * candidate).tanh() + (1 - update) * deter

    def _logits(self, kind: str, x: Tensor) -> Tensor:
        hidden = self._nets.stack(f"dyn/{kind}{{}}", f"dyn/{kind}{{}}norm", x)
        stoch = self._inputs["data/dyn/stoch"].shape[-2:]
        return self._nets.linear(f"dyn/{kind}logit", hidden).unflatten(-1, stoch)

    def _probs(self, logits: Tensor) -> Tensor:
        return (1 - UNIMIX) * logits.softmax(-1) + UNIMIX / logits.shape[-1]

    def _sample(self, logits: Tensor) -> Tensor:
        probs = self._probs(logits)
        return F.one_hot(logits.argmax(-1), logits.shape[-1]) + probs - probs.detach()

    def _learn_model(self) -> None:
        tokens, is_first, before = self._tokens(), self._rows("is_first"), slice(0, -1)
        action = torch.cat([self._vector(key, *space, before) for key, space in sorted(self._actions.items())], -1)
        goes_on = torch.tensor(self._inputs["data/consec"][:, 0] != 0)
        deter, stoch = (
            torch.where(goes_on.view(-1, *[1] * (kept.dim() - 2)), torch.tensor(carried).double(), kept[:, 0])
            for kept, carried in (
                (self._rows(f"dyn/{part}", slice(0, 1)), self._inputs[f"carry/dyn/{part}"])
                for part in ("deter", "stoch")
            )
        )
        deters, stochs, posts = [], [], []
        for t in range(tokens.shape[1]):
            keep = 1 - is_first[:, t, None]
            deter = self._core(deter * keep, stoch * keep[..., None], action[:, t] * keep)
            post = self._logits("obs", torch.cat([deter, tokens[:, t]], -1))
            stoch = self._sample(post)
            for kept, value in ((deters, deter), (stochs, stoch), (posts, post)):
                kept.append(value)
        self._deter, self._stoch = torch.stack(deters, 1), torch.stack(stochs, 1)
        post, prior = torch.stack(posts, 1), self._logits("prior", self._deter)
        self.losses["dyn"] = self._kl(post.detach(), prior).clamp(min=1)
        self.losses["rep"] = self._kl(post, prior.detach()).clamp(min=1)
        self.seen |= {"out/tokens": tokens, "out/feat/deter": self._deter, "out/feat/logit": post}
        self._decode()
        feature = self._feature = torch.cat([self._deter, self._stoch.flatten(-2)], -1)
        self.losses["rew"] = self._scalar("rew", feature, self._rows("reward"))[1]
        live = (1 - self._rows("is_terminal")) * GAMMA
        logit = self._nets.linear("con/head/logit", self._nets.mlp("con", feature)).squeeze(-1)
        self.losses["con"] = -(live * F.logsigmoid(logit) + (1 - live) * F.logsigmoid(-logit))

    def _kl(self, one: Tensor, other: Tensor) -> Tensor:
        one, other = self._probs(one), self._probs(other)
        return (one * (one.log() - other.log())).sum((-2, -1))

    def _decode(self) -> None:
        stoch = self._stoch.flatten(-2)
        hidden = self._nets.mlp("dec", torch.cat([stoch, self._deter], -1))
        for key, (shape, classes) in self._obs.items():
            if len(shape) == 3:
                continue
            if classes is None:
                goal, guess = self._rows(key), self._nets.linear(f"dec/vec/{key}/pred", hidden)
                goal = (symlog(goal) if self._has_symlog else goal).reshape(guess.shape)
                self.losses[key] = (guess - goal).square().sum(-1)
            else:
                logits = self._nets.linear(f"dec/vec/{key}/logits", hidden).unflatten(-1, (-1, classes))
                chosen = self._vector(key, shape, classes, slice(1, None)).view_as(logits)
                self.losses[key] = -(chosen * logits.log_softmax(-1)).sum((-2, -1))
        pictures = [key for key, (shape, _) in self._obs.items() if len(shape) == 3]
        if pictures:
            parts = self._picture(stoch).split([self._obs[key][0][-1] for key in pictures], -1)
            for key, part in zip(pictures, parts, strict=True):
                self.losses[key] = (part - self._rows(key) / 255).square().sum((-3, -2, -1))

    def _picture(self, stoch: Tensor) -> Tensor:
        stages = 1 + sum(name.startswith("dec/conv") and name.endswith("/kernel") for name in self.params)
        height, width = (side >> stages for side in next(s for s, _ in self._obs.values() if len(s) == 3)[:2])
        groups = len(self.params["dec/sp0/kernel"])
        one = self._nets.blocks("dec/sp0", self._deter).unflatten(-1, (groups, height, width, -1))
        one = torch.cat([one[..., group, :, :, :] for group in range(groups)], -1)
        other = self._nets.normed("dec/sp1norm", self._nets.linear("dec/sp1", stoch))
        x = self._nets.normed("dec/spnorm", one + self._nets.linear("dec/sp2", other).view_as(one)).flatten(0, 1)
        for index in reversed(range(stages - 1)):
            x = self._nets.convolution(f"dec/conv{index}", x.repeat_interleave(2, 1).repeat_interleave(2, 2))
            x = self._nets.normed(f"dec/conv{index}norm", x)
        x = self._nets.convolution("dec/imgout", x.repeat_interleave(2, 1).repeat_interleave(2, 2)).sigmoid()
        return x.unflatten(0, stoch.shape[:2])

    def _scalar(self, name: str, feature: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The prediction, and its loss where there is a target."""
        hidden, none = self._nets.mlp(name, feature), torch.zeros(())
        if f"{name}/head/pred/kernel" in self.params:
            guess = self._nets.linear(f"{name}/head/pred", hidden).squeeze(-1)
            return guess, none if target is None else (guess - target).square()
        logits = self._nets.linear(f"{name}/head/logits", hidden)
        half = -torch.linspace(-20, 0, logits.shape[-1] // 2 + 1, dtype=torch.float64).abs().expm1()
        bins = torch.cat([half, -half[:-1].flip(0)])
        if target is None:
            return (logits.softmax(-1) * bins).sum(-1), none
        above = (bins <= target[..., None]).sum(-1).clamp(1, len(bins) - 1)
        share = ((target - bins[above - 1]) / (bins[above] - bins[above - 1])).unsqueeze(-1)
        weights = F.one_hot(above - 1, len(bins)) * (1 - share) + F.one_hot(above, len(bins)) * share
        return (logits.softmax(-1) * bins).sum(-1), -(weights * logits.log_softmax(-1)).sum(-1)

    def _policy(self, feature: Tensor, action: Tensor | None = None) -> dict[str, Tensor]:
        """The action as one vector with its log-probability and entropy; a given action, or the one that is drawn."""
        hidden, drawn, used, at = self._nets.mlp("pol", feature), [], 0, 0
        noise = torch.tensor(self._inputs["sample_eps"]).double()
        found: dict[str, Any] = {"logp": 0.0, "entropy": 0.0}
        for key, (shape, classes) in sorted(self._actions.items()):
            size, head = math.prod(shape) * (classes or 1), f"pol/head/{key}"
            given = None if action is None else action[..., at : at + size]
            at += size
            if classes is None:
                mean = self._nets.linear(f"{head}/mean", hidden).tanh()
                stddev = 0.9 * (self._nets.linear(f"{head}/stddev", hidden) + 2).sigmoid() + 0.1
                value = (mean + stddev * noise[used : used + size]).detach() if given is None else given
                used += size
                normal = torch.distributions.Normal(mean, stddev)
                logp, entropy = normal.log_prob(value).sum(-1), normal.entropy().sum(-1)
            else:
                logs = self._nets.linear(f"{head}/logits", hidden).unflatten(-1, (-1, classes)).log_softmax(-1)
                value = F.one_hot(logs.argmax(-1), classes).double().flatten(-2) if given is None else given
                logp, entropy = (logs * value.view_as(logs)).sum((-2, -1)), -(logs.exp() * logs).sum((-2, -1))
            drawn.append(value)
            found |= {"logp": found["logp"] + logp, "entropy": found["entropy"] + entropy}
            found |= {f"logp/{key}": logp, f"entropy/{key}": entropy}
        return found | {"action": torch.cat(drawn, -1)}

    @torch.no_grad()
    def _dream(self) -> tuple[Tensor, Tensor]:
        deter, stoch = self._deter.flatten(0, 1), self._stoch.flatten(0, 1)
        features, actions = [torch.cat([deter, stoch.flatten(1)], -1)], []
        for _ in range(self._horizon):
            actions.append(self._policy(features[-1])["action"])
            deter = self._core(deter, stoch, actions[-1])
            stoch = self._sample(self._logits("prior", deter))
            features.append(torch.cat([deter, stoch.flatten(1)], -1))
        actions.append(self._policy(features[-1])["action"])
        return torch.stack(features, 1), torch.stack(actions, 1)

    def _learn_behaviour(self) -> None:
        feature, action = self._dream()
        with torch.no_grad():
            reward, value, slow = (self._scalar(name, feature)[0] for name in ("rew", "val", "slowval"))
            live = self._nets.linear("con/head/logit", self._nets.mlp("con", feature)).squeeze(-1).sigmoid()
            returns = [value[:, -1]]
            for t in reversed(range(self._horizon)):
                later = (1 - LAMBDA) * value[:, t + 1] + LAMBDA * returns[0]
                returns.insert(0, reward[:, t + 1] + live[:, t + 1] * later)
            target, weight = torch.stack(returns[:-1], 1), live.cumprod(1)[:, :-1]
            ends = zip(("lo", "hi"), target.quantile(torch.tensor([0.05, 0.95]).double()), strict=True)
            low, high = (0.99 * self.params[f"retnorm/{end}/value"] + 0.01 * new for end, new in ends)
            advantage = (target - value[:, :-1]) / (high - low).clamp(min=1)
        shape = self._feature.shape[:2]
        policy = self._policy(feature[:, :-1], action[:, :-1])
        gain = policy["logp"] * advantage + ENTROPY * policy["entropy"]
        self.losses["policy"] = -(weight * gain).mean(1).view(shape)
        losses = [self._scalar("val", feature[:, :-1], goal)[1] for goal in (target, slow[:, :-1])]
        self.losses["value"] = (weight * (losses[0] + losses[1])).mean(1).view(shape)
        self.seen |= {"imag/ret": target, "imag/adv": advantage, "imag/weight": live.cumprod(1)}
        spoken = self._policy(feature, action)
        for key in self._actions:
            self.seen[f"metric/ent/{key}"] = policy[f"entropy/{key}"].mean()
            self.seen |= {f"imag/policy_{name}/{key}": spoken[f"{name}/{key}"] for name in ("logp", "entropy")}
        self.losses["repval"] = self._replay_value(target[:, 0].view(shape))

    def _replay_value(self, start: Tensor) -> Tensor:
        reward, is_last = self._rows("reward"), self._rows("is_last")
        live, goes_on = (1 - self._rows("is_terminal")) * GAMMA, (1 - is_last) * LAMBDA
        returns = [start[:, -1]]
        for t in reversed(range(start.shape[1] - 1)):
            later = (1 - goes_on[:, t + 1]) * start[:, t + 1] + goes_on[:, t + 1] * returns[0]
            returns.insert(0, reward[:, t + 1] + live[:, t + 1] * later)
        target, feature = torch.stack(returns[:-1], 1), self._feature[:, :-1]
        slow = self._scalar("slowval", feature)[0].detach()
        losses = [self._scalar("val", feature, goal)[1] for goal in (target, slow)]
        return (1 - is_last[:, :-1]) * (losses[0] + losses[1])
