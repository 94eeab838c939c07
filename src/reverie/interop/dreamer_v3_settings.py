"""The numbers of a published DreamerV3 configuration under our names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reverie.types import ReverieError

FIXED: dict[str, Any] = {
    "agent.contdisc": True,
    "agent.ac_grads": False,
    "agent.imag_last": 0,
    "agent.repval_loss": True,
    "agent.imag_loss.slowtar": False,
    "agent.repl_loss.slowtar": False,
    "agent.slowvalue.every": 1,
    "agent.retnorm.impl": "perc",
    "agent.retnorm.limit": 1.0,
    "agent.retnorm.debias": False,
    "agent.valnorm.impl": "none",
    "agent.advnorm.impl": "none",
    "agent.dyn.rssm.absolute": False,
    "agent.enc.simple.outer": False,
    "agent.enc.simple.strided": False,
    "agent.enc.simple.symlog": True,
    "agent.dec.simple.outer": False,
    "agent.dec.simple.strided": False,
    "agent.opt.momentum": True,
    "agent.opt.nesterov": False,
    "agent.opt.wd": 0.0,
    "agent.opt.schedule": "const",
}
"""Published switches that our workflow has in this position only."""

LOSSES = {
    "rew": "reward",
    "con": "continue",
    "dyn": "dynamics",
    "rep": "representation",
    "policy": "policy",
    "value": "value",
    "repval": "replay_value",
}
"""Their names of our losses; reconstructions carry the name of their key."""

SCALES = {"rec": 1.0, "rew": 1.0, "con": 1.0, "dyn": 1.0, "rep": 0.1, "policy": 1.0, "value": 1.0, "repval": 0.3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    horizon: int
    discount_horizon: int
    free_nats: float
    entropy_scale: float
    slow_regularizer: float
    replay_lambda: float
    imagined_lambda: float
    latent_unimix: float
    min_stddev: float
    max_stddev: float
    slow_rate: float
    low_quantile: float
    high_quantile: float
    scale_rate: float
    context: int
    stopped: tuple[str, ...]
    """Losses whose gradient ends at their head."""
    loss_weights: dict[str, float]
    optimizer: dict[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any], obs_keys: Sequence[str], inputs: Mapping[str, np.ndarray]) -> Settings:
        """``config`` is flat (``agent.opt.lr``) and holds what differs from the published defaults."""
        for key, value in FIXED.items():
            if config.get(key, value) != value:
                raise ReverieError(f"`{key}` is {config[key]}, but only {value} is supported.")
        agent = {key.removeprefix("agent."): value for key, value in config.items() if key.startswith("agent.")}
        if agent.get("imag_loss.slowreg", 1.0) != agent.get("repl_loss.slowreg", 1.0):
            raise ReverieError("`agent.imag_loss.slowreg` and `agent.repl_loss.slowreg` must be equal.")
        return cls(
            horizon=agent.get("imag_length", 15),
            discount_horizon=agent.get("horizon", 333),
            free_nats=agent.get("dyn.rssm.free_nats", 1.0),
            entropy_scale=agent.get("imag_loss.actent", 3e-4),
            slow_regularizer=agent.get("imag_loss.slowreg", 1.0),
            replay_lambda=agent.get("repl_loss.lam", 0.95),
            imagined_lambda=agent.get("imag_loss.lam", 0.95),
            latent_unimix=agent.get("dyn.rssm.unimix", 0.01),
            min_stddev=agent.get("policy.minstd", 0.1),
            max_stddev=agent.get("policy.maxstd", 1.0),
            slow_rate=agent.get("slowvalue.rate", 0.02),
            low_quantile=agent.get("retnorm.perclo", 5.0) / 100,
            high_quantile=agent.get("retnorm.perchi", 95.0) / 100,
            scale_rate=agent.get("retnorm.rate", 0.01),
            context=_context(config),
            stopped=_stopped(agent),
            loss_weights=_loss_weights(agent, obs_keys, inputs),
            optimizer={
                "learning_rate": agent.get("opt.lr", 4e-5),
                "warmup_updates": agent.get("opt.warmup", 1000),
                "clip": agent.get("opt.agc", 0.3),
                "epsilon": agent.get("opt.eps", 1e-20),
                "momentum": agent.get("opt.beta1", 0.9),
                "rms_decay": agent.get("opt.beta2", 0.999),
            },
        )


def _context(config: Mapping[str, Any]) -> int:
    context = config.get("replay_context", 1)
    if context < 1:
        raise ReverieError(f"`replay_context` is {context}, but a step of context is needed.")
    return context


def _stopped(agent: Mapping[str, Any]) -> tuple[str, ...]:
    switches = {"reward": "reward_grad", "replay_value": "repval_grad"}
    return tuple(loss for loss, switch in switches.items() if not agent.get(switch, True))


def _loss_weights(agent: Mapping[str, Any], keys: Sequence[str], inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Those of the arrays ``scale/...`` where they are given, else of the configuration, else the published ones."""

    def weight(name: str, kind: str) -> float:
        given = inputs.get(f"scale/{name}")
        return float(agent.get(f"loss_scales.{kind}", SCALES[kind])) if given is None else float(given)

    reconstruction = {key: weight(key, "rec") for key in keys}
    if len(set(reconstruction.values())) != 1:
        raise ReverieError(f"all reconstructions must have one weight, got {reconstruction}.")
    weights = {ours: weight(theirs, theirs) for theirs, ours in LOSSES.items()}
    return {"reconstruction": next(iter(reconstruction.values()))} | weights
