"""What a Gymnasium environment does against Gymnasium's own rules, each as a sentence with its cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from reverie.environments.gym import GymEnvironment
from reverie.environments.gym_spaces import joined, leaves


def native_problems(environment: GymEnvironment, *, steps: int, rng: np.random.Generator) -> list[str]:
    """Plays ``steps`` random steps in the simulator itself, beside our adapter, and gives every problem once."""
    found = dict.fromkeys(_reset_problems(environment))
    if found:
        return list(found)
    must_reset = True
    for step in range(steps):
        if must_reset:
            environment.native.reset(seed=step)
        action = environment.native_action(random_action(environment, rng))
        try:
            result = environment.native.step(action)
        except Exception as error:  # whatever somebody's code raises is the finding
            found[_raised("step()", error)] = None
            break
        problems = list(_step_problems(environment, result))
        found |= dict.fromkeys(problems)
        if not _is_step(result):
            break
        must_reset = bool(result[2]) or bool(result[3])
    return list(found)


def declared_ranges(environment: GymEnvironment) -> dict[str, str]:
    """The bounds that the environment itself gives its floats and bytes, by our key."""
    native = environment.native.observation_space
    keys = list(environment.spaces.obs)
    boxes = zip(keys, (space for _, space in leaves(native, environment.task)), strict=True)
    return {
        key: f"{float(space.low.min()):.4g} to {float(space.high.max()):.4g}"
        for key, space in boxes
        if isinstance(space, gym_spaces.Box)
    }


def random_action(environment: GymEnvironment, rng: np.random.Generator) -> np.ndarray:
    """One action of our space."""
    space = environment.spaces.action
    if space.classes is not None:
        return np.asarray(rng.integers(0, np.array(space.classes), size=space.shape), dtype=np.int64)
    return rng.uniform(-1.0, 1.0, space.shape).astype(np.float32)


def _reset_problems(environment: GymEnvironment) -> Iterator[str]:
    firsts: list[Any] = []
    for _ in range(2):
        try:
            result: Any = environment.native.reset(seed=0)
        except Exception as error:  # whatever somebody's code raises is the finding
            yield _raised("reset()", error)
            return
        if not (isinstance(result, tuple) and len(result) == 2):
            yield "reset() does not give two values: return (observation, info)."
            return
        if not isinstance(result[1], dict):
            yield f"reset() gives {type(result[1]).__name__} as its info: return a dict, which may be empty."
        yield from _obs_problems(environment, result[0])
        firsts.append(_copied(result[0]))
    if not _is_equal(firsts[0], firsts[1]):
        yield (
            "two resets with the same seed give different observations: call super().reset(seed=seed) first, and draw "
            "from self.np_random alone."
        )


def _step_problems(environment: GymEnvironment, result: Any) -> Iterator[str]:
    if not _is_step(result):
        count = len(result) if isinstance(result, tuple) else "no tuple of"
        yield f"step() gives {count} values: return (observation, reward, terminated, truncated, info)."
        return
    observation, reward, terminated, truncated, info = result
    yield from _obs_problems(environment, observation)
    if np.ndim(reward) > 0:
        yield f"step() gives its reward as an array of shape {np.shape(reward)}: return float(reward)."
    elif not isinstance(reward, (int, float, np.integer, np.floating)):
        yield f"step() gives its reward as {type(reward).__name__}: return a float."
    elif not np.isfinite(reward):
        yield "step() gives a reward that is NaN or infinite: return a finite number."
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, (bool, np.bool_)):
            yield f"step() gives `{name}` as {type(value).__name__}: return a bool."
    if not isinstance(info, dict):
        yield f"step() gives {type(info).__name__} as its info: return a dict, which may be empty."


def _obs_problems(environment: GymEnvironment, observation: Any) -> Iterator[str]:
    native = environment.native.observation_space
    if isinstance(native, gym_spaces.Dict) and isinstance(observation, Mapping):
        for name in observation.keys() - native.spaces.keys():
            yield f"the observation has the entry '{name}', which its space does not name: add it there or drop it."
    for path, space in leaves(native, environment.task):
        name = f"the observation '{joined(path)}'" if path else "the observation"
        try:
            value = observation
            for part in path:
                value = value[part]
        except (KeyError, IndexError, TypeError):
            yield f"{name} is missing, but its space names it: give it at every step."
            continue
        yield from _leaf_problems(name, np.asarray(value), space)


def _leaf_problems(name: str, value: np.ndarray, space: gym_spaces.Space[Any]) -> Iterator[str]:
    if value.shape != (space.shape or ()):
        yield f"{name} has shape {value.shape}, but its space says {space.shape}: make them agree."
        return
    dtype = np.dtype(space.dtype) if space.dtype is not None else value.dtype
    # Within a kind (float64 for float32) nothing is lost that matters; a float for a byte is another thing.
    if value.dtype != dtype and (value.dtype.kind != dtype.kind or not np.can_cast(value.dtype, dtype, "same_kind")):
        scaled = ", times 255 where it is a share" if value.dtype.kind == "f" and dtype == np.uint8 else ""
        yield f"{name} has dtype {value.dtype}, but its space says {dtype}: return it with .astype(np.{dtype}){scaled}."
        return
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        yield f"{name} holds NaN or infinity: find the division or the unstable step that makes it."
        return
    if isinstance(space, gym_spaces.Box):
        slack = 1e-4 * np.maximum(1.0, np.abs(value.astype(np.float64)))  # bounds and values are rounded separately
        if ((value < space.low - slack) | (value > space.high + slack)).any():
            bounds = f"{float(space.low.min()):.4g} to {float(space.high.max()):.4g}"
            yield f"{name} has values outside the bounds of its space ({bounds}): widen the bounds or clip the values."
    elif not space.contains(value if value.ndim else value[()]):
        yield f"{name} has values that are not in its space {space}: make them agree."


def _is_step(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 5


def _raised(where: str, error: Exception) -> str:
    if "values to unpack" in str(error):  # Gymnasium's time limit, on the four values of the old interface
        return "step() does not give five values: return (observation, reward, terminated, truncated, info)."
    return f"{where} raises {type(error).__name__}: {' '.join(str(error).split())}"


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in value.items()}
    return tuple(_copied(item) for item in value) if isinstance(value, tuple) else np.array(value)


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(item, other[name]) for name, item in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_is_equal(a, b) for a, b in zip(one, other, strict=True))
    return one.shape == other.shape and one.tobytes() == other.tobytes()
