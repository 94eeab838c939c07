"""A published TD-MPC2 configuration: its numbers, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reverie.types import ReverieError

PUBLISHED: Mapping[str, float] = {
    **{"horizon": 3, "rho": 0.5, "lr": 3e-4, "enc_lr_scale": 0.3, "grad_clip_norm": 20, "tau": 0.01},
    **{"consistency_coef": 20, "reward_coef": 0.1, "value_coef": 0.1, "termination_coef": 1},
    **{"discount_denom": 5, "discount_min": 0.95, "discount_max": 0.995, "episode_length": 500},
    **{"log_std_min": -10, "log_std_max": 2, "entropy_coef": 1e-4, "num_bins": 101, "vmin": -10, "vmax": 10},
    **{"simnorm_dim": 8, "min_std": 0.05, "max_std": 2, "temperature": 0.5},
}
"""What counts where a configuration is silent."""

_SIZES = ("num_enc_layers", "enc_dim", "mlp_dim", "latent_dim", "num_q", "obs_dim", "action_dim")
_PLANS = ("iterations", "num_samples", "num_elites", "num_pi_trajs")
_SWITCHES = ("episodic", "multitask", "dropout", "task_dim", "bin_size", "batch_size")
_KNOWN = {*PUBLISHED, *_SIZES, *_PLANS, *_SWITCHES}


class Settings:
    """Numbers by their published names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        unknown = sorted(config.keys() - _KNOWN)
        if unknown:
            raise _refused(f"`{unknown[0]}`, which is none of the keys that are followed here")
        self._config = dict(config)
        self.episodic = bool(config.get("episodic", False))
        if config.get("multitask") or config.get("task_dim"):
            raise _refused("`multitask`: an agent for one task is compared here")
        if config.get("dropout"):
            raise _refused(f"`dropout` {config['dropout']}, which draws what was not given: set it to 0")
        if self["num_bins"] < 2:
            raise _refused(f"`num_bins` {config['num_bins']}: numbers are predicted over two bins or more here")
        width = (self["vmax"] - self["vmin"]) / (self["num_bins"] - 1)
        if abs(float(config.get("bin_size", width)) - width) > 1e-6 * abs(width):
            raise _refused(f"`bin_size` {config['bin_size']}, where vmin, vmax and num_bins give {width:g}")

    def __getitem__(self, name: str) -> float:
        return self._config.get(name, PUBLISHED[name])

    def integer(self, name: str) -> int:
        return int(self[name])

    def check(self, **sizes: int) -> None:
        """Sizes of the given arrays must be what the configuration says, where it says anything."""
        for name, size in sizes.items():
            if name in self._config and int(self._config[name]) != size:
                raise ReverieError(
                    f"the given arrays have `{name}` {size}, but the configuration says {self._config[name]}."
                )


def _refused(what: str) -> ReverieError:
    return ReverieError(f"this TD-MPC2 configuration cannot be followed: it has {what}.")
