"""What `reverie bench` measured, as JSON and as a person reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from reverie.benchmark import LOOPS, UpdateSpeed
from reverie.commands.dataset_words import size_words
from reverie.orchestration.run_folder import hardware, source_commit, versions

_PART_WORDS = {
    "replay": "drawing a batch, writing back",
    "encoder": "encoder",
    "observe": "RSSM along the sequences",
    "model_losses": "decoder, heads and KL",
    "imagination": "imagination (forward only)",
    "actor_critic": "actor and critic",
    "optimizer": "optimiser",
    "targets": "targets of the values",
    "model": "model",
    "policy": "policy",
    "probe": "probe",
    "optimizers": "optimisers, slow copies",
    "other": "other",
}


def as_json(speed: UpdateSpeed, *, device: str, overrides: Sequence[str]) -> dict[str, Any]:
    """One document, with ``results`` for more of its kind."""
    return {
        "device": device,
        "hardware": hardware(),
        "versions": versions(),
        "commit": source_commit(),
        "overrides": list(overrides),
        "results": [_result(speed)],
    }


def _result(speed: UpdateSpeed) -> dict[str, Any]:
    parts = speed.ms_per_part
    return {
        "size": speed.size,
        "observations": speed.observations,
        "pictures": speed.pictures,
        "actions": speed.actions,
        "precision": speed.precision,
        "is_captured": speed.is_captured,
        "is_compiled": speed.is_compiled,
        "loops": LOOPS,
        "calls": speed.calls,
        "ms_per_update": round(speed.ms_per_update, 4),
        "updates_per_second": round(speed.updates_per_second, 4),
        "seconds_to_first_update": round(speed.seconds_to_first_update, 3),
        "seconds_to_captured": None if speed.seconds_to_captured is None else round(speed.seconds_to_captured, 3),
        "parameters": speed.parameters,
        "peak_memory_bytes": speed.peak_memory_bytes,
        "flops_per_update": speed.flops_per_update,
        "peak_flops_per_second": speed.peak_flops_per_second,
        "model_flop_utilisation": None if speed.utilisation is None else round(speed.utilisation, 5),
        "ms_per_part": None if parts is None else {name: round(value, 4) for name, value in parts.items()},
    }


def shown(document: dict[str, Any]) -> None:
    results = document["results"]
    one = results[0]
    how = [name for name, is_so in (("captured", one["is_captured"]), ("compiled", one["is_compiled"])) if is_so]
    console = Console()
    console.print(
        f"One update on {document['device']}: {_seen(one)}, {one['actions']} actions, {one['precision']}, "
        f"{' and '.join(how) or 'eager'}, best of {LOOPS} loops of {one['calls']}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_table(results))
    if one["model_flop_utilisation"] is None:
        print(f"No utilisation: the bfloat16 peak of {document['device']} is not known here.")
    for result in results:  # plain, because a line that is wrapped cannot be pasted
        print(json.dumps(result))


def _seen(result: dict[str, Any]) -> str:
    stack = f" ({result['pictures']} pictures behind each other)" if result["pictures"] > 1 else ""
    return f"{result['observations']}{stack}"


def _table(results: Sequence[dict[str, Any]]) -> Table:
    table = Table("", *(result["size"] for result in results), box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, words in _ROWS.items():
        table.add_row(name, *(words(result) for result in results))
    if results[0]["ms_per_part"] is not None:
        table.add_section()
        for part in results[0]["ms_per_part"]:
            cells = (f"{result['ms_per_part'][part]:,.3g} ms" for result in results)
            table.add_row(_PART_WORDS.get(part, part), *cells)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


_ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "an update": lambda one: f"{one['ms_per_update']:,.4g} ms",
    "updates per second": lambda one: f"{one['updates_per_second']:,.4g}",
    "start to first update": lambda one: _seconds(one["seconds_to_first_update"]),
    "start to captured": lambda one: _seconds(one["seconds_to_captured"]),
    "parameters": lambda one: f"{one['parameters']:,}",
    "peak memory": lambda one: size_words(one["peak_memory_bytes"]),
    "counted arithmetic": lambda one: f"{one['flops_per_update'] / 1e9:,.4g} GFLOP",
    "share of bfloat16 peak": lambda one: (
        "-" if one["model_flop_utilisation"] is None else f"{one['model_flop_utilisation']:.1%}"
    ),
}
