"""Crafter's worlds, as Crafter makes them but in a tenth of the time, for which the other environments wait too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from reverie.environments.base import simulator_package
from reverie.environments.crafter_noise import FixedNoise

_FIELDS = (
    "start", "water_wide", "water_narrow", "mountain_wide", "mountain_narrow", "cave", "tunnel_x", "tunnel_y",
    "coal", "iron", "lava", "sand", "tree",
)  # fmt: skip


def generate_world(world: Any, player: Any) -> None:
    """The world that ``crafter.worldgen.generate_world`` makes: the same ground, creatures and draws, in its order."""
    package = simulator_package("opensimplex", task="crafter", extra="crafter")
    if not hasattr(package.OpenSimplex, "noise3d"):  # a release that Reverie does not ask for
        simulator_package("crafter.worldgen", task="crafter", extra="crafter").generate_world(world, player)
        return
    noise = _noise(*world.area).values(world.random.randint(0, 2**31 - 1)).reshape(len(_FIELDS), *world.area)
    distance = _distance(world.area, player.pos)
    tunnels = _lay_ground(world, dict(zip(_FIELDS, noise, strict=True)), distance)
    _add_creatures(world, player, tunnels, distance)


@cache
def _noise(width: int, height: int) -> FixedNoise:
    """The fields of `_FIELDS` at every place of the world, one after the other."""
    x, y = np.meshgrid(np.arange(width), np.arange(height), indexing="ij")
    fields = (
        (x / 3, y / 3, 8), (x / 15, y / 15, 3), (x / 5, y / 5, 3), (x / 15, y / 15, 0), (x / 5, y / 5, 0),
        (x / 7, y / 7, 6), (2 * x / 3, y / 5 / 3, 7), (x / 5 / 3, 2 * y / 3, 7),
        (x / 8, y / 8, 1), (x / 6, y / 6, 2), (x / 5, y / 5, 6), (x / 9, y / 9, 4), (x / 7, y / 7, 5),
    )  # fmt: skip
    package = simulator_package("opensimplex", task="crafter", extra="crafter")
    return FixedNoise(
        package,
        [(x, y, z) for xs, ys, z in fields for x, y in zip(xs.ravel().tolist(), ys.ravel().tolist(), strict=True)],
    )


def _distance(area: tuple[int, int], center: np.ndarray) -> np.ndarray:
    x, y = np.meshgrid(np.arange(area[0]), np.arange(area[1]), indexing="ij")
    return np.sqrt((x - center[0]) ** 2 + (y - center[1]) ** 2)


def _lay_ground(world: Any, noise: dict[str, np.ndarray], distance: np.ndarray) -> np.ndarray:
    """Write the materials and return where the tunnels are."""
    ids = world._mat_ids
    start = 1 / (1 + np.exp(-(4 - distance + 2 * noise["start"])))
    water = noise["water_wide"] + 0.15 * noise["water_narrow"] + 0.1 - 2 * start
    mountain = (noise["mountain_wide"] + 0.3 * noise["mountain_narrow"]) / 1.3 - (4 * start + 0.3 * water)
    is_meadow = start > 0.5
    is_rock = ~is_meadow & (mountain > 0.15)
    is_cave = is_rock & (noise["cave"] > 0.15) & (mountain > 0.3)
    tunnels = is_rock & ~is_cave & ((noise["tunnel_x"] > 0.4) | (noise["tunnel_y"] > 0.4))
    is_solid = is_rock & ~is_cave & ~tunnels
    is_low = ~is_meadow & ~is_rock
    is_sand = is_low & (water > 0.25) & (water <= 0.35) & (noise["sand"] > -0.2)
    is_water = is_low & ~is_sand & (water > 0.3)
    ground = np.full(world.area, ids["grass"], np.uint8)
    ground[is_cave | tunnels] = ids["path"]
    ground[is_solid] = ids["stone"]
    ground[is_solid & (mountain > 0.3) & (noise["lava"] > 0.35)] = ids["lava"]
    ground[is_sand], ground[is_water] = ids["sand"], ids["water"]
    is_wood = is_low & ~is_sand & ~is_water & (noise["tree"] > 0)
    finds = {
        "coal": (is_solid & (noise["coal"] > 0), 0.85),
        "iron": (is_solid & (noise["iron"] > 0.4), 0.75),
        "diamond": (is_solid & (mountain > 0.18), 0.994),
        "tree": (is_wood, 0.8),
    }
    for place, name in _draws(world.random, finds):
        ground[place] = ids[name]
    world._mat_map[...] = ground
    return tunnels


def _add_creatures(world: Any, player: Any, tunnels: np.ndarray, distance: np.ndarray) -> None:
    objects = simulator_package("crafter.objects", task="crafter", extra="crafter")
    is_grass, is_path, is_sand = (world._mat_map == world._mat_ids[name] for name in ("grass", "path", "sand"))
    chances = {
        "cow": (is_grass & (distance > 3), 0.985),
        "zombie": ((is_grass | is_path | is_sand) & (distance > 10), 0.993),
        "skeleton": (is_path & tunnels, 0.95),
    }
    for place, name in _draws(world.random, chances):
        if name == "cow":
            world.add(objects.Cow(world, place))
        else:
            world.add({"zombie": objects.Zombie, "skeleton": objects.Skeleton}[name](world, place, player))


def _draws(
    random: np.random.RandomState, chances: Mapping[str, tuple[np.ndarray, float]]
) -> list[tuple[tuple[int, int], str]]:
    """What chance puts where: place by place, one draw for each thing that may be there, until one is above its limit.

    The limits are written as Crafter has them, and so is the order of the draws.
    """
    kinds = np.sum([mask.astype(np.uint8) << bit for bit, (mask, _) in enumerate(chances.values())], axis=0)
    limits = [(name, limit) for name, (_, limit) in chances.items()]
    tries = [[one for bit, one in enumerate(limits) if kind >> bit & 1] for kind in range(2 ** len(limits))]
    draw = random.random_sample  # the same number as uniform(), in a third of the time
    hits: list[tuple[tuple[int, int], str]] = []
    xs, ys = kinds.nonzero()
    for x, y, kind in zip(xs.tolist(), ys.tolist(), kinds[xs, ys].tolist(), strict=True):
        for name, limit in tries[kind]:
            if draw() > limit:
                hits.append(((x, y), name))
                break
    return hits
