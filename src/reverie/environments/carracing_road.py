"""The road of CarRacing, drawn when it is asked for and without looking at what is far away: Gymnasium's pixels.

Gymnasium draws at every frame and turns each of some 700 shapes in Python to find the 50 that are in sight, which takes
it 60 times as long as the physics. Here one product of numpy finds them, the library's own code draws them, and frames
that nobody sees are not drawn.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from reverie.environments.base import simulator_package

_MARGIN = 2.0
"""Pixels around the screen, so that a shape which rounding moves into sight is drawn too."""


@cache
def quick_car_racing(task: str) -> type:
    """Gymnasium's class, but its steps and resets show nothing: ``draw_road()`` draws what is there now."""
    game = simulator_package("gymnasium.envs.box2d.car_racing", task=task, extra="carracing")
    pygame = simulator_package("pygame", task=task, extra="carracing")
    width, height, dashboard = game.WINDOW_W, game.WINDOW_H, game.WINDOW_H // 8
    half, diagonal = np.array([width, height]) / 2, math.hypot(width, height)
    rows, columns = game.STATE_H * 7 // 8, game.STATE_W
    field = [(x * game.PLAYFIELD, y * game.PLAYFIELD) for x, y in ((1, 1), (1, -1), (-1, -1), (-1, 1))]
    tile = game.GRASS_DIM
    grass = [
        [(tile * (x + 1), tile * y), (tile * x, tile * y), (tile * x, tile * (y + 1)), (tile * (x + 1), tile * (y + 1))]
        for x in range(-20, 20, 2)
        for y in range(-20, 20, 2)
    ]

    class QuickCarRacing(game.CarRacing):
        _shapes: list[tuple[Any, Any]]
        """Corners and colour of what lies on the field, in the order of drawing. The colour of a tile is an array that
        the game changes when a wheel touches it."""
        _middles: np.ndarray
        """Of the shapes [shapes, 2]."""
        _reaches: np.ndarray
        """From the middle of each shape to its farthest corner."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.surf = pygame.Surface((width, height))

        def reset(self, **arguments: Any) -> Any:
            result = super().reset(**arguments)
            self._shapes = [(corners, self.grass_color) for corners in grass] + self.road_poly
            corners = np.array([corners for corners, _ in self._shapes])
            self._middles = corners.mean(1)
            self._reaches = np.linalg.norm(corners - self._middles[:, None], axis=-1).max(1)
            return result

        def draw_road(self) -> np.ndarray:
            """The rows of the screen above the dashboard."""
            angle, zoom = -self.car.hull.angle, game.SCALE * (0.1 * max(1 - self.t, 0) + game.ZOOM * min(self.t, 1))
            place = self.car.hull.position
            middle = pygame.math.Vector2(-place[0] * zoom, -place[1] * zoom).rotate_rad(angle)
            shift = (width / 2 + middle[0], height / 4 + middle[1])
            if max(abs(place[0]), abs(place[1])) + diagonal / zoom < game.PLAYFIELD:
                self.surf.fill(self.bg_color)
            else:  # the border of the field may be in sight
                self.surf.fill(0)
                self._draw_colored_polygon(self.surf, field, self.bg_color, zoom, shift, angle, clip=False)
            for index in self._in_sight(zoom, shift, angle):
                corners, color = self._shapes[index]
                self._draw_colored_polygon(self.surf, corners, [int(one) for one in color], zoom, shift, angle)
            self.car.draw(self.surf, zoom, shift, angle, False)
            # The screen is upside down until here, so that the dashboard lies above it.
            above = self.surf.subsurface((0, dashboard, width, height - dashboard))
            scaled = pygame.transform.smoothscale(pygame.transform.flip(above, False, True), (columns, rows))
            return pygame.surfarray.array3d(scaled).transpose(1, 0, 2)

        def _in_sight(self, zoom: float, shift: tuple[float, float], angle: float) -> np.ndarray:
            turned = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
            middles = self._middles @ (turned * zoom) + shift
            reaches = self._reaches[:, None] * zoom + _MARGIN
            return np.flatnonzero(np.all(np.abs(middles - half) <= half + reaches, axis=1))

        def _render(self, mode: str) -> None:
            """What Gymnasium calls at every frame."""

    return QuickCarRacing
