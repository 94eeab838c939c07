"""How policies are asked: eagerly or in a recorded step, with the weights of now or with those of one update ago."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.runtime.acting_weights import LaggedWeights
from reverie.runtime.capture import is_capturable
from reverie.runtime.recorded_step import RecordedStep
from reverie.runtime.rng import RandomStreams
from reverie.types import Carry, Mode, Observation, Policy, Row, State


class Acted(NamedTuple):
    carry: Carry
    """For the next step, which may overwrite it."""
    action: Tensor
    """On the host. The next step may overwrite it."""
    row: Row
    """The step as a buffer keeps it. Belongs to the caller."""


class Acting:
    """``step`` asks a policy once. Policies are told apart by identity and live as long as this.

    With lagged weights, ``train`` steps use those from before the last update, so that a device can make them beside
    that update; what they give does not depend on whether it does. Evaluations use the weights of now, and so does a
    policy with ``can_lag = False``: one that somebody else than an update changes.
    """

    def __init__(self, rng: RandomStreams, device: torch.device, *, lags: bool = False, captures: bool = False) -> None:
        """``rng`` holds the streams that policies draw from. ``captures`` needs a CUDA device."""
        self._rng, self._device = rng, device
        self._weights = LaggedWeights(rng, device) if lags else None
        self._captures, self._is_host = captures, device.type == "cpu"
        can_overlap = captures and lags and device.type == "cuda"
        # Of another priority than all other streams of this process, so that it is none of them.
        self._beside = torch.cuda.Stream(device, priority=-1) if can_overlap else None
        self._recorded: dict[_Key, RecordedStep] = {}
        self._policies: list[Policy] = []
        """Kept, so that no other policy gets the identity of one of them."""
        self._rows_on_host = False

    @property
    def lags(self) -> bool:
        return self._weights is not None

    def follow(self, modules: Callable[[], Mapping[str, nn.Module]]) -> None:
        """Which networks updates change; asked when lagged weights are first needed."""
        if self._weights is not None:
            self._weights.follow(modules)

    def keep_rows_on_host(self) -> None:
        """Rows go to a buffer in the memory of the host: they need not come from the device."""
        self._rows_on_host = True

    def step(self, policy: Policy, carry: Carry, seen: Observation, *, mode: Mode) -> Acted:
        """``seen`` lies on the host. Waits for the action, and for nothing that is not needed for it."""
        acting = policy
        if self._weights is not None and mode == "train" and getattr(policy, "can_lag", True):
            acting = self._weights.policy(policy)
        if self._captures and is_capturable(acting.act):
            beside = None if acting is policy else self._beside
            return Acted(*self._recorded_step(acting, carry, seen, mode, beside))
        if self._is_host:
            carry, action, stored = acting.act(carry, seen, mode=mode)
            return Acted(carry, action, Row.complete(seen, action, stored))
        on_device = seen.to(self._device)
        carry, action, stored = acting.act(carry, on_device, mode=mode)
        host = action.cpu()
        if self._rows_on_host:
            return Acted(carry, host, Row.complete(seen, host, {name: value.cpu() for name, value in stored.items()}))
        return Acted(carry, host, Row.complete(on_device, action, stored))

    def before_update(self) -> None:
        """From now on ``train`` steps use the weights as they are at this point of the device's work."""
        if self._weights is not None:
            self._weights.refresh()

    def get_state(self) -> State:
        return {} if self._weights is None else self._weights.get_state()

    def set_state(self, state: State) -> None:
        if self._weights is not None:
            self._weights.set_state(state)

    def _recorded_step(
        self, policy: Policy, carry: Carry, seen: Observation, mode: Mode, beside: torch.cuda.Stream | None
    ) -> tuple[Carry, Tensor, Row]:
        key = _Key(id(policy), mode, len(seen.reward))
        if key not in self._recorded:
            self._policies.append(policy)
            self._recorded[key] = RecordedStep(
                policy,
                carry,
                seen,
                mode=mode,
                device=self._device,
                generators=partial(self._rng.acting_streams, mode),
                beside=beside,
                row_on_host=self._rows_on_host,
            )
        return self._recorded[key](carry, seen, after=None if self._weights is None else self._weights.refreshed)


class _Key(NamedTuple):
    policy: int
    mode: Mode
    num_envs: int
