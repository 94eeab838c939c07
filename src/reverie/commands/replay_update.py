"""`reverie replay-update FOLDER`: execute the update of a black box again, and name what is not finite in it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.commands.arguments import Parser

if TYPE_CHECKING:  # imports torch, which --help must not wait for
    from omegaconf import DictConfig

    from reverie.orchestration.nonfinite_search import Replayed
    from reverie.runtime.rng import RandomStreams
    from reverie.types import State
    from reverie.workflows.base import WorldModelWorkflow

_DESCRIPTION = """\
Execute the update whose black box lies in FOLDER again, on the CPU, and name the first tensor that is not finite.

A run writes such a folder into RUN/blackbox when it stops because too many updates in a row were skipped.
Nothing else is needed: neither the run nor its simulator. The folder is only read.

The exit code is 0 when a tensor was found, and 1 when everything is finite here."""

_EPILOG = """\
examples:
  %(prog)s runs/dreamer_cartpole-20260101-120000/blackbox/0000001024-0000000077
  %(prog)s FOLDER --json
  %(prog)s FOLDER --allow my_package"""


def run(arguments: list[str]) -> int:
    parser = Parser("replay-update", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a folder in RUN/blackbox")
    parser.add_allow()
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of sentences")
    given = parser.parse_args(arguments)

    from reverie.orchestration.black_box import read_black_box

    box = read_black_box(given.folder)
    replayed, has_same_draws = _replayed(box, str(given.folder), given.allow)
    if given.json:
        print(json.dumps(_record(box, replayed, has_same_draws)))
    else:
        print("\n".join(_sentences(box, replayed, has_same_draws)))
    return 1 if replayed.finding is None else 0


def _replayed(box: State, where: str, allow: list[str]) -> tuple[Replayed, bool]:
    """The update of ``box``, and whether it drew the same random numbers as in the run."""
    import torch
    from omegaconf import DictConfig

    from reverie.build import phases_of
    from reverie.configuration import checked_config, section
    from reverie.orchestration.black_box import batch_from, phase_from
    from reverie.orchestration.nonfinite_search import replayed_update
    from reverie.runtime.device import RuntimeConfig, prepare_torch
    from reverie.runtime.rng import RandomStreams
    from reverie.types import ReverieError

    config = DictConfig(checked_config(box["config"], where=where))
    hooks = {hook.name for phase in phases_of(config) for hook in phase.hooks if hook.kind == "update"}
    if box["hook"] not in hooks:
        raise ReverieError(f"`{where}` names the hook '{box['hook']}', which no phase of its config has.")
    # Without torch's own search, which would end the update at the first NaN gradient.
    cpu = torch.device("cpu")
    prepare_torch(section(RuntimeConfig, {**config.runtime, "finds_anomalies": False}, path="runtime"), cpu)
    rng = RandomStreams(config.experiment.seed, device=cpu)
    workflow = _workflow(box["workflow"], config, rng, where=where, allow=allow)
    has_same_draws = torch.device(box["device"]).type == "cpu"  # another device has generators of another kind
    if has_same_draws:
        rng.set_state(box["random_streams"])
    batch = None if box["batch"] is None else batch_from(box["batch"])
    return replayed_update(workflow, box["hook"], batch, phase_from(box["phase"], cpu)), has_same_draws


def _workflow(
    state: State, config: DictConfig, rng: RandomStreams, *, where: str, allow: list[str]
) -> WorldModelWorkflow:
    """The workflow of ``config`` without its simulator, standing at ``state``."""
    import torch

    from reverie.build import assemble_workflow
    from reverie.configuration import instantiate
    from reverie.orchestration.parts import SHAPED
    from reverie.orchestration.state_tree import compare_shapes
    from reverie.types import Spaces

    dims = config["_dims"]
    obs = {str(key): instantiate(node, path=f"_dims.obs.{key}", allow=allow) for key, node in dims.obs.items()}
    spaces = Spaces(obs=obs, action=instantiate(dims.action, path="_dims.action", allow=allow))
    device = torch.device("cpu")
    workflow = assemble_workflow(config, spaces=spaces, train_env=None, rng=rng, device=device, allow=allow)
    current = workflow.get_state()
    compare_shapes(
        {part: current[part] for part in SHAPED},
        {part: state.get(part) for part in SHAPED},
        where=f"the black box {where}",
    )
    workflow.set_state(state)
    return workflow


def _sentences(box: State, replayed: Replayed, has_same_draws: bool) -> list[str]:
    where = f"agent step {box['agent_steps']:,}, update {box['updates']:,}, phase {box['phase']['name']}"
    lines = [f"{box['config']['experiment']['name']} on {box['config']['task']}: {where}, hook {box['hook']}"]
    if replayed.finding is None:
        lines.append(
            f"everything is finite on the CPU: the problem depends on the device of the run ({box['device']}), "
            "on its precision or on its random draws"
        )
    else:
        lines.append(f"first non-finite tensor: {replayed.finding}")
        lines.append(f"the update is {'skipped' if replayed.is_skipped else 'not skipped'} here")
    if not has_same_draws:
        lines.append(f"the run was on {box['device']}: the random draws of this update are others here")
    return lines


def _record(box: State, replayed: Replayed, has_same_draws: bool) -> dict[str, Any]:
    finding = None if replayed.finding is None else asdict(replayed.finding)
    if finding is not None:
        finding["value"] = str(finding["value"])  # JSON has no NaN
    metrics = {name: float(value) for name, value in replayed.result.metrics.items()}
    return {
        **{name: box[name] for name in ("agent_steps", "updates", "hook", "device")},
        "phase": box["phase"]["name"],
        "finding": finding,
        "is_skipped": replayed.is_skipped,
        "has_same_draws": has_same_draws,
        "metrics": {name: value if math.isfinite(value) else str(value) for name, value in metrics.items()},
    }
