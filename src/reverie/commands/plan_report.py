"""A plan as a person reads it, and as JSON."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from reverie.commands.dataset_words import size_words
from reverie.orchestration.run_counts import PhaseWork
from reverie.plan import Plan
from reverie.plan_needs import Need

_MANY_PHASES = 12


def shown(plan: Plan) -> None:
    console = Console()
    console.print(f"{plan.experiment} on {plan.task}, {plan.device}: about {time_words(plan.seconds)}", highlight=False)
    if 1 < len(plan.phases) <= _MANY_PHASES:
        console.print(_phase_table(plan.phases))
    console.print(_cost_table(plan))
    console.print(_need_table(plan.needs))
    # Plain, because a sentence that is wrapped cannot be pasted.
    print(f"First bottleneck: {plan.bottleneck}")
    for remark in plan.remarks:
        print(remark)


def as_json(plan: Plan) -> dict[str, Any]:
    return {
        "experiment": plan.experiment,
        "task": plan.task,
        "device": plan.device,
        "fits": plan.fits,
        "seconds": plan.seconds,
        "bottleneck": plan.bottleneck,
        "phases": [
            {
                "name": phase.name,
                "steps": phase.steps,
                "updates": phase.count("update"),
                "evaluations": phase.count("evaluate"),
            }
            for phase in plan.phases
        ],
        "costs": [
            {
                "what": cost.what,
                "kind": cost.kind,
                "each_seconds": cost.each_seconds,
                "count": cost.count,
                "seconds": cost.seconds,
            }
            for cost in plan.costs
        ],
        "needs": [
            {
                "name": need.name,
                "needed_bytes": need.needed_bytes,
                "free_bytes": need.free_bytes,
                "fits": need.fits,
                "parts": dict(need.parts),
                "remedy": None if need.fits else need.remedy,
            }
            for need in plan.needs
        ],
        "remarks": list(plan.remarks),
    }


def time_words(seconds: float) -> str:
    """`90 ms`, `4.2 s`, `12 min`, `3.4 h`."""
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:,.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _phase_table(phases: tuple[PhaseWork, ...]) -> Table:
    table = _table("phase", "agent steps", "updates", "evaluations")
    for phase in phases:
        table.add_row(phase.name, f"{phase.steps:,}", f"{phase.count('update'):,}", f"{phase.count('evaluate'):,}")
    return table


def _cost_table(plan: Plan) -> Table:
    table = _table("what", "each", "count", "time", "share")
    total = max(plan.seconds, 1e-12)
    for cost in plan.costs:
        share = f"{cost.seconds / total:.0%}" if cost.seconds >= total / 200 else "-"
        each = time_words(cost.each_seconds)
        table.add_row(cost.what, each, f"{cost.count:,}", time_words(cost.seconds), share)
    table.add_section()
    table.add_row("in all", "", "", time_words(plan.seconds), "")
    return table


def _need_table(needs: tuple[Need, ...]) -> Table:
    table = _table("", "needed", "free", "")
    table.add_column("of which")
    for need in needs:
        free = "not known" if need.free_bytes is None else size_words(need.free_bytes)
        parts = ", ".join(f"{name} {size_words(size)}" for name, size in need.parts.items() if size)
        table.add_row(need.name, size_words(need.needed_bytes), free, "fits" if need.fits else "DOES NOT FIT", parts)
    return table


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(names[0])
    for name in names[1:]:
        table.add_column(name, justify="right")
    return table
