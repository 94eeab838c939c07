"""Actions as the suites take them: what lies outside its space is refused, and continuous values are clipped."""

from __future__ import annotations

import math

import numpy as np


def class_index(action: np.ndarray, num_classes: int) -> int:
    """A single discrete action. Many simulators would count a negative one from the end."""
    index = int(action)
    if not 0 <= index < num_classes:
        raise ValueError(f"the action {index} is outside 0 to {num_classes - 1}")
    return index


def class_indices(action: np.ndarray, num_classes: int) -> np.ndarray:
    """The discrete actions of a batch, as they came."""
    if action.min() < 0 or action.max() >= num_classes:
        raise ValueError(f"an action is outside 0 to {num_classes - 1}")
    return action


def clipped(action: np.ndarray) -> np.ndarray:
    """Continuous actions in [-1, 1], in their own dtype."""
    require_finite(action)
    return np.minimum(np.maximum(action, -1.0), 1.0)  # np.clip takes longer than a step of a small simulator


def require_finite(action: np.ndarray) -> None:
    # The sum of Python's own numbers: for the few that an action has, numpy needs ten times as long.
    if not math.isfinite(sum(action.ravel().tolist())):
        raise ValueError(f"the action {action} is not finite")
