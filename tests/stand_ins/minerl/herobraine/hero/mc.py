"""As in MineRL: the names of items (a few of its 392, in no order) and of keys."""

from __future__ import annotations

ALL_ITEMS = [
    *("stone_pickaxe", "diamond", "log2", "furnace", "planks", "air", "iron_ore", "dirt", "crafting_table", "stick"),
    *("log", "iron_ingot", "cobblestone", "wooden_pickaxe", "iron_pickaxe", "leather"),
]
INVERSE_KEYMAP = {
    "forward": "17",
    "left": "30",
    "back": "31",
    "right": "32",
    "jump": "57",
    "sneak": "42",
    "attack": "-100",
}
