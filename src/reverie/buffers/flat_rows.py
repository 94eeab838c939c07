"""Rows as arrays by flat name (`obs/vector`, `reward`, ...), the form in which buffers keep them, and back again."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from reverie.types import Batch, Row, RowIndex

_OBS = "obs/"


def flat(row: Row) -> dict[str, Tensor]:
    return {f"{_OBS}{key}": value for key, value in row.obs.items()} | {
        "reward": row.reward,
        "is_first": row.is_first,
        "is_last": row.is_last,
        "is_terminal": row.is_terminal,
        "action": row.action,
    }


def batch_of(rows: Mapping[str, Tensor], stored: dict[str, Tensor], index: RowIndex) -> Batch:
    return Batch(
        obs={name.removeprefix(_OBS): value for name, value in rows.items() if name.startswith(_OBS)},
        reward=rows["reward"],
        is_first=rows["is_first"],
        is_last=rows["is_last"],
        is_terminal=rows["is_terminal"],
        action=rows["action"],
        stored=stored,
        index=index,
        weight=index.weight,
    )
