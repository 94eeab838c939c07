"""The numbers of a published DreamerV3 configuration under our names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reverie.interop.dreamer_v3_config import PublishedConfig
from reverie.interop.dreamer_v3_norms import ACTIVATIONS, NORMS, NormForm
from reverie.types import ReverieError

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

SECTIONS = {
    "enc": "agent.enc.simple",
    "dyn": "agent.dyn.rssm",
    "dec": "agent.dec.simple",
    "rew": "agent.rewhead",
    "con": "agent.conhead",
    "pol": "agent.policy",
    "val": "agent.value",
}
"""Where the configuration speaks of the networks whose parameters have these names."""

SCALAR_OUTPUTS = ("symexp_twohot", "mse", "symlog_mse", "huber")
POLICY_OUTPUTS = ("bounded_normal", "normal_logstd")


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
    """That of the reconstruction is 1: its keys have weights of their own."""
    reconstruction_weights: dict[str, float]
    optimizer: dict[str, Any]
    forms: dict[str, NormForm]
    """Norm and activation of the networks in ``SECTIONS``."""
    reads_symlog: bool
    predicts_symlog: bool
    outputs: dict[str, str]
    """Of the networks ``rew`` and ``val``, and of continuous policies (``pol``)."""

    @classmethod
    def of(cls, config: PublishedConfig, obs_keys: Sequence[str], inputs: Mapping[str, np.ndarray]) -> Settings:
        config.check()

        def agent(name: str, default: Any) -> Any:
            return config.get(f"agent.{name}", default)

        return cls(
            horizon=agent("imag_length", 15),
            discount_horizon=agent("horizon", 333),
            free_nats=agent("dyn.rssm.free_nats", 1.0),
            entropy_scale=agent("imag_loss.actent", 3e-4),
            slow_regularizer=_slow_regularizer(config),
            replay_lambda=agent("repl_loss.lam", 0.95),
            imagined_lambda=agent("imag_loss.lam", 0.95),
            latent_unimix=agent("dyn.rssm.unimix", 0.01),
            min_stddev=agent("policy.minstd", 0.1),
            max_stddev=agent("policy.maxstd", 1.0),
            slow_rate=agent("slowvalue.rate", 0.02),
            low_quantile=agent("retnorm.perclo", 5.0) / 100,
            high_quantile=agent("retnorm.perchi", 95.0) / 100,
            scale_rate=agent("retnorm.rate", 0.01),
            context=_context(config),
            stopped=_stopped(config),
            loss_weights={"reconstruction": 1.0, **_loss_weights(config, inputs)},
            reconstruction_weights=_reconstruction_weights(config, obs_keys, inputs),
            optimizer=_optimizer(config),
            forms={part: _form(config, section) for part, section in SECTIONS.items()},
            reads_symlog=config.chosen("agent.enc.simple.symlog", (True, False)),
            predicts_symlog=config.chosen("agent.dec.simple.symlog", (True, False), is_exact=True),
            outputs=_outputs(config),
        )


def _slow_regularizer(config: PublishedConfig) -> float:
    """Imagined and replayed values have one here."""
    imagined, replayed = (config.get(f"agent.{part}_loss.slowreg", 1.0) for part in ("imag", "repl"))
    if imagined != replayed:
        raise ReverieError(
            f"`agent.imag_loss.slowreg` ({imagined}) and `agent.repl_loss.slowreg` ({replayed}) must be equal here."
        )
    return imagined


def _context(config: PublishedConfig) -> int:
    context = config.get("replay_context", 1)
    if context < 1:
        raise config.refusal("replay_context", "a step of context is needed")
    return context


def _stopped(config: PublishedConfig) -> tuple[str, ...]:
    switches = {"reward": "reward_grad", "replay_value": "repval_grad"}
    return tuple(loss for loss, switch in switches.items() if not config.get(f"agent.{switch}", True))


def _optimizer(config: PublishedConfig) -> dict[str, Any]:
    def opt(name: str, default: float) -> Any:
        return config.get(f"agent.opt.{name}", default)

    return {
        "learning_rate": opt("lr", 4e-5),
        "warmup_updates": opt("warmup", 1000),
        "clip": opt("agc", 0.3) or float("inf"),  # 0 is no clipping there
        "min_weight_norm": config.get("agent.opt.pmin", 1e-3, is_exact=True),
        "epsilon": opt("eps", 1e-20),
        "momentum": opt("beta1", 0.9),
        "rms_decay": opt("beta2", 0.999),
    }


def _form(config: PublishedConfig, section: str) -> NormForm:
    """The epsilon may stand behind the norm: ``rms1em5``."""
    name = f"{section}.norm"
    norm, _, exponent = str(config.get(name, "rms")).partition("1em")
    if norm not in NORMS or not (exponent or "4").isdigit():
        raise config.refusal(name, f"only {', '.join(NORMS)} are supported")
    activation = config.chosen(f"{section}.act", tuple(ACTIVATIONS))
    return NormForm(norm=norm, activation=activation, epsilon=10.0 ** -int(exponent or "4"))


def _outputs(config: PublishedConfig) -> dict[str, str]:
    return {
        "rew": config.chosen("agent.rewhead.output", SCALAR_OUTPUTS),
        "val": config.chosen("agent.value.output", SCALAR_OUTPUTS),
        "pol": config.chosen("agent.policy_dist_cont", POLICY_OUTPUTS),
    }


def _loss_weights(config: PublishedConfig, inputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Those of the arrays ``scale/...`` where they are given, else of the configuration, else the published ones."""
    return {
        ours: _given_scale(theirs, inputs, config.get(f"agent.loss_scales.{theirs}", SCALES[theirs]))
        for theirs, ours in LOSSES.items()
    }


def _reconstruction_weights(
    config: PublishedConfig, keys: Sequence[str], inputs: Mapping[str, np.ndarray]
) -> dict[str, float]:
    shared = config.get("agent.loss_scales.rec", SCALES["rec"])
    own = {key: config.get(f"agent.loss_scales.{key}", shared, is_exact=True) for key in keys}
    return {key: _given_scale(key, inputs, weight) for key, weight in own.items()}


def _given_scale(name: str, inputs: Mapping[str, np.ndarray], otherwise: float) -> float:
    return float(inputs.get(f"scale/{name}", otherwise))
