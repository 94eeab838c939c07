"""How fast one update is: milliseconds, parts, arithmetic, memory and start-up, on made-up rows without a simulator."""

from __future__ import annotations

import copy
import gc
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from omegaconf import DictConfig
from torch.utils.flop_counter import FlopCounterMode

from reverie.configuration import section
from reverie.orchestration.device_faults import is_want_of_memory
from reverie.rehearsal import Rehearsal, rehearsal
from reverie.runtime.capture import WARM_UP_CALLS, Captured, is_capturable
from reverie.runtime.compilation import eager_steps, steps_are_compiled
from reverie.runtime.device import RuntimeConfig, chosen_device
from reverie.runtime.precision import Precision
from reverie.runtime.process_memory import peak_bytes
from reverie.sections import ExperimentConfig, TrainingConfig
from reverie.types import Metrics, ReverieError, RunStoppedError, Space, Spaces
from reverie.workflows.update_parts import HasParts, Part

LOOPS = 4
_STREAMS = 16
_MIN_ROWS = 128

_PICTURE = Space(shape=(64, 64, 3), dtype="uint8")
_VECTOR = Space(shape=(24,), dtype="float32")
ACTIONS = {
    "discrete": Space(shape=(), dtype="int64", classes=6),
    "continuous": Space(shape=(6,), dtype="float32"),
}
SPACES = {
    "image": Spaces(obs={"image": _PICTURE}, action=ACTIONS["discrete"]),
    "vector": Spaces(obs={"vector": _VECTOR}, action=ACTIONS["continuous"]),
    "mixed": Spaces(obs={"image": _PICTURE, "vector": _VECTOR}, action=ACTIONS["discrete"]),
}
"""What may be observed: the pictures of the published comparisons, the state of a walking robot, or both."""

_PEAK_TFLOPS = {
    r"H[12]00( \d+GB HBM3e?)?": 989.0,
    r"A100[\w -]*": 312.0,
    r"GeForce RTX 4090": 165.0,
    r"GeForce RTX 3090": 71.0,
}
"""Dense bfloat16 by the device's name, as its maker states it. Slower relatives (PCIe, NVL, a slice) are not meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    size: str
    """What the size of the configuration is called."""
    observations: str
    calls: int
    """In each of the four loops, of which the best counts."""
    has_parts: bool = False
    actions: str | None = None
    """Discrete or continuous; None for those that ``SPACES`` has beside the observations."""

    def spaces(self, *, pictures: int) -> Spaces:
        """``pictures`` of them are behind each other in one observation."""
        found = SPACES[self.observations]
        obs = {key: _stacked(space, pictures) if space.is_image else space for key, space in found.obs.items()}
        return Spaces(obs=obs, action=ACTIONS[self.actions] if self.actions else found.action)


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSpeed:
    """One size under one set of conditions."""

    size: str
    observations: str
    pictures: int
    """Those behind each other in one observation; 0 where none are seen."""
    actions: str
    precision: str
    is_captured: bool
    is_compiled: bool
    calls: int
    ms_per_update: float
    seconds_to_first_update: float
    """From the beginning of assembling; made-up rows are in it."""
    seconds_to_captured: float | None
    """From the same moment to the end of the first replay; None where nothing was recorded."""
    parameters: int
    """Those that learn."""
    peak_memory_bytes: int
    """Of torch on a CUDA device, else of the process."""
    flops_per_update: int
    """In matrix products and convolutions of one eager update, where a multiplication and an addition count two."""
    peak_flops_per_second: float | None
    """Dense bfloat16 of the device; None where it is not known."""
    ms_per_part: Mapping[str, float] | None = None

    @property
    def updates_per_second(self) -> float:
        return 1000 / self.ms_per_update

    @property
    def utilisation(self) -> float | None:
        """The share of the device's peak that the counted arithmetic takes."""
        if self.peak_flops_per_second is None:
            return None
        return self.flops_per_update * self.updates_per_second / self.peak_flops_per_second


def device_of(config: DictConfig) -> torch.device:
    return chosen_device(section(ExperimentConfig, config.experiment, path="experiment").device)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_flops_per_second(name: str) -> float | None:
    """Of a device with this name."""
    short = name.removeprefix("NVIDIA ")
    return next((peak * 1e12 for pattern, peak in _PEAK_TFLOPS.items() if re.fullmatch(pattern, short)), None)


def fastest_call(
    function: Callable[[], object],
    *,
    calls: int,
    wait: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Milliseconds of one call: the mean of a loop of ``calls``, in the best of four loops."""
    means = []
    for _ in range(LOOPS):
        wait()
        start = clock()
        for _ in range(calls):
            function()
        wait()
        means.append((clock() - start) / calls * 1000)
    return min(means)


def with_other(parts: Mapping[str, float], whole: float) -> dict[str, float]:
    """The parts, and as ``other`` what the whole takes beyond their sum: below zero where it takes less."""
    return {**parts, "other": whole - sum(parts.values())}


def update_speed(config: DictConfig, conditions: Conditions) -> UpdateSpeed:
    """Measure the first updating hook of ``config``."""
    device = device_of(config)
    try:
        return _measured(copy.deepcopy(config), conditions, device)  # `_dims` is filled in
    except (torch.OutOfMemoryError, ReverieError) as error:
        if not is_want_of_memory(error):
            raise
        where = device_name(device)
        raise RunStoppedError(f"size {conditions.size} does not fit in the memory of {where}.") from error


def _measured(config: DictConfig, conditions: Conditions, device: torch.device) -> UpdateSpeed:
    runtime = section(RuntimeConfig, config.runtime, path="runtime")
    spaces, calls, wait = conditions.spaces(pictures=_pictures(config)), conditions.calls, partial(_wait, device)
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    made = rehearsal(config, spaces=spaces, device=device, streams=_STREAMS, rows=_rows(config))
    if conditions.has_parts:
        _refuse_without_parts(made)
    is_captured = is_cuda and runtime.captures_updates and is_capturable(made.update.hook)
    update = made.captured() if is_captured else made.update
    update()
    wait()
    first = time.perf_counter() - start
    for _ in range(WARM_UP_CALLS if is_cuda else 0):  # the last of these records, and replays for the first time
        update()
    wait()
    recorded = time.perf_counter() - start
    whole = fastest_call(update, calls=calls, wait=wait)
    peak = torch.cuda.max_memory_allocated(device) if is_cuda else peak_bytes()
    del update  # a recorded update keeps its memory
    parts = _part_times(made, calls=calls, wait=wait, is_captured=is_captured) if conditions.has_parts else None
    return UpdateSpeed(
        size=conditions.size,
        observations=conditions.observations,
        pictures=_pictures(config) if any(space.is_image for space in spaces.obs.values()) else 0,
        actions="continuous" if spaces.action.classes is None else "discrete",
        precision=str(Precision(runtime.precision, device).dtype).removeprefix("torch."),
        is_captured=is_captured,
        is_compiled=steps_are_compiled(),
        calls=calls,
        ms_per_update=whole,
        seconds_to_first_update=first,
        seconds_to_captured=recorded if is_captured else None,
        parameters=_parameters(made),
        peak_memory_bytes=peak,
        flops_per_update=counted_flops(made.update),
        peak_flops_per_second=peak_flops_per_second(device_name(device)),
        ms_per_part=None if parts is None else with_other(parts, whole),
    )


def counted_flops(update: Callable[[], object]) -> int:
    """Of the update as it is written. A compiled or hand-written kernel would hide its products from the counter."""
    with eager_steps(), FlopCounterMode(display=False) as counter:
        update()
    return counter.get_total_flops()


def _part_times(made: Rehearsal, *, calls: int, wait: Callable[[], None], is_captured: bool) -> dict[str, float]:
    """Milliseconds of each part by itself, measured as the whole is."""
    found: dict[str, float] = {}
    for name, part in _parts(made).items():
        call = _recordable(part, made) if is_captured else part
        for _ in range(WARM_UP_CALLS + 1 if is_captured else 1):
            call()
        found[name] = fastest_call(call, calls=calls, wait=wait)
        del call
        gc.collect()
    return found


def _refuse_without_parts(made: Rehearsal) -> None:
    if made.update.batch is None or not isinstance(made.workflow, HasParts):
        name = type(made.workflow).__name__
        raise ReverieError(f"the update of {name} cannot be measured in parts: leave out --parts.")


def _parts(made: Rehearsal) -> dict[str, Part]:
    """Drawing a batch and writing back, and the workflow's own parts."""
    update, workflow = made.update, made.workflow
    assert isinstance(workflow, HasParts), "refused before anything was measured"
    batch = update.drawn()
    result = update.hook(batch, phase=update.phase)
    replay = {"replay": lambda: update.keep(update.drawn(), result)}
    return replay | workflow.update_parts(batch, phase=update.phase)


def _recordable(part: Part, made: Rehearsal) -> Captured:
    def call() -> Metrics:
        part()
        return {}

    return Captured(call, name="update", generators=made.rng.streams)


def _pictures(config: DictConfig) -> int:
    """How many of the last pictures an observation of the configured environment has behind each other."""
    environment = config.environment
    return environment.get("frame_stack", 1) * (environment.get("simulator") or {}).get("frame_stack", 1)


def _stacked(picture: Space, count: int) -> Space:
    height, width, channels = picture.shape
    return replace(picture, shape=(height, width, channels * count))


def _rows(config: DictConfig) -> int:
    """Enough for the windows of a batch to differ."""
    length = section(TrainingConfig, config.training, path="training").batch_length
    return _STREAMS * max(_MIN_ROWS, 2 * (length + 1))


def _parameters(made: Rehearsal) -> int:
    found = {id(one): one for module in made.workflow.modules().values() for one in module.parameters()}
    return sum(one.numel() for one in found.values() if one.requires_grad)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
