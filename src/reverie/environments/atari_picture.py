"""What the agent sees of an Atari screen: the last frames pooled, made smaller, perhaps gray, perhaps stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from reverie.environments.atari_console import Console
from reverie.environments.base import simulator_package
from reverie.types import ReverieError, Space, State, require

Resize = Literal["bilinear", "area", "nearest"]

_GRAY_WEIGHTS = (0.299, 0.587, 1.0 - (0.299 + 0.587))


class Picture:
    """``begin`` and ``take`` look at the screen, ``image`` gives what was seen.

    The order is that of the DreamerV3 code: maximum over the last two frames in colour, resize, then gray. Stacked
    images lie behind each other in the channels, the newest last; they begin as zeros.
    """

    def __init__(
        self,
        console: Console,
        *,
        size: Sequence[int],
        is_gray: bool,
        resize: Resize,
        has_max_pool: bool,
        stack: int,
    ) -> None:
        require("environment.simulator.frame_stack", stack, at_least=1)
        self.pool = 2 if has_max_pool else 1
        """How many frames are needed for an image."""
        self._console = console
        self._is_gray = is_gray
        height, width = checked_size(size)
        self._resized = _resizer(resize, console.screen_shape, (height, width), console.task)
        self._screens = np.zeros((self.pool, *console.screen_shape), np.uint8)
        self._pooled = np.zeros(console.screen_shape, np.uint8)
        self._newest = 0
        self._channels = 1 if is_gray else 3
        self.space = Space(shape=(height, width, self._channels * stack), dtype="uint8")
        self._stack = np.zeros(self.space.shape, np.uint8)

    def begin(self) -> None:
        """Forget what was seen; all frames are the present one."""
        self._console.draw(self._screens[0])
        self._screens[1:] = self._screens[0]
        self._stack[...] = 0

    def take(self) -> None:
        """See the present frame."""
        self._newest = (self._newest + 1) % len(self._screens)
        self._console.draw(self._screens[self._newest])

    def image(self) -> np.ndarray:
        """A fresh array. Called once for each agent step, since it moves the stack on."""
        now = self._resized(self._latest())
        if self._is_gray:
            red, green, blue = _GRAY_WEIGHTS
            now = (now[..., 0] * red + now[..., 1] * green + now[..., 2] * blue).astype(np.uint8)[..., None]
        if self._stack.shape == now.shape:
            return now
        self._stack[..., : -self._channels] = self._stack[..., self._channels :].copy()
        self._stack[..., -self._channels :] = now
        return self._stack.copy()

    def get_state(self) -> State:
        return {"screens": self._screens.copy(), "newest": self._newest, "stack": self._stack.copy()}

    def set_state(self, state: State) -> None:
        self._screens[...] = state["screens"]
        self._newest = int(state["newest"])
        self._stack[...] = state["stack"]

    def _latest(self) -> np.ndarray:
        if len(self._screens) == 1:
            return self._screens[0]
        return np.maximum(self._screens[0], self._screens[1], out=self._pooled)


def checked_size(size: Sequence[int]) -> tuple[int, int]:
    if len(size) != 2 or min(size) < 1:
        raise ReverieError(f"`environment.simulator.size` must be [height, width] in pixels, got {list(size)}.")
    return size[0], size[1]


def _resizer(
    method: Resize, screen: tuple[int, int, int], size: tuple[int, int], task: str
) -> Callable[[np.ndarray], np.ndarray]:
    """From a screen to a fresh array of ``size`` (height, width)."""
    height, width = size
    if method == "bilinear":
        pillow = simulator_package("PIL.Image", task=task, extra="atari")
        filter_ = pillow.Resampling.BILINEAR
        return lambda image: np.array(pillow.fromarray(image).resize((width, height), filter_))
    if method == "area":
        opencv = simulator_package("cv2", task=task, extra="atari")
        return lambda image: opencv.resize(image, (width, height), interpolation=opencv.INTER_AREA)
    if method == "nearest":
        # The pixel at the upper left, as OpenCV takes it: half of the size keeps rows and columns 0, 2, 4, ...
        rows = np.arange(height) * screen[0] // height
        columns = np.arange(width) * screen[1] // width
        return lambda image: image[rows[:, None], columns]
    raise ReverieError(f"`environment.simulator.resize` must be one of {', '.join(get_args(Resize))}, got {method}.")
