"""`reverie bench`: how fast one update is on this machine, beside conditions that others were measured under."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from reverie.commands.arguments import Parser, positive

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from omegaconf import DictConfig

_USAGE = (
    "%(prog)s [--size SIZE ...] [--parts] [--observations KIND] [--actions KIND] [--precision NAME] [--calls N] "
    "[--eager] [--json] [KEY=VALUE ...]"
)

_DESCRIPTION = """\
Measure one whole update of an experiment's algorithm, as its training makes it, from drawing a batch out of replay to
the steps of its optimisers, on made-up rows without a simulator: milliseconds, updates per second, start-up, memory,
counted arithmetic and its share of the device's peak.

`experiment=NAME` says which: its networks, batches, losses and plans, and how many pictures it sees behind each other.
What is seen and done is not that of its task but --observations and --actions, the same for all experiments.

Without an experiment it is DreamerV3 (replay, world model, imagination, actor, critic, optimiser) under the conditions
of published comparisons: pictures of 64x64x3, 6 discrete actions, 16 sequences of 64 steps (and one of context), 15
imagined steps.

On a CUDA device: bfloat16, the whole update in a CUDA graph, and the best of four loops of 100 calls, unless settings
say otherwise. On a processor the size is `debug` and a loop is one call.

Several sizes are measured one after the other, each in a process of its own."""

_EPILOG = """\
examples:
  %(prog)s
  %(prog)s --size 12m 50m --parts
  %(prog)s --size 12m --observations vector --json
  %(prog)s --size tiny workflow.horizon=5 training.batch_size=8
  %(prog)s experiment=tdmpc_dmc --observations vector
  %(prog)s experiment=tdmpc_dmc_vision --actions continuous --parts"""

_EXPERIMENT = "dreamer_atari100k"
"""Whose numbers are measured where no other is named; its task is not needed."""


def run(arguments: list[str]) -> int:
    given = _given(arguments)
    configs = _configs(given)
    document = _documents(given, configs) if len(configs) > 1 else _document(given, *configs.popitem())
    if isinstance(document, int):
        return document
    if given.json:
        print(json.dumps(document, indent=2))
    else:
        from reverie.commands.bench_report import shown

        shown(document)
    return 0


def _given(arguments: list[str]) -> Namespace:
    parser = Parser("bench", description=_DESCRIPTION, epilog=_EPILOG, usage=_USAGE)
    parser.add_argument("words", metavar="KEY=VALUE", nargs="*", help="settings, as `train` takes them")
    size = "(default: the experiment's, 12m without one; debug on a processor)"
    parser.add_argument("--size", nargs="+", default=[], metavar="SIZE", help=size)
    parser.add_argument("--parts", action="store_true", help="also measure the parts of an update, each by itself")
    seen = "pictures (default), 24 numbers, or both"
    parser.add_argument("--observations", choices=("image", "vector", "mixed"), default="image", help=seen)
    done = "6 of them (default: continuous with vectors alone, else discrete)"
    parser.add_argument("--actions", choices=("discrete", "continuous"), help=done)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--calls", type=positive, metavar="N", help="in a loop (default: 100; 1 on a processor)")
    parser.add_argument("--eager", action="store_true", help="without capture and compilation")
    parser.add_argument("--json", action="store_true", help="print nothing but JSON")
    given = parser.parse_intermixed_args(arguments)
    # Settings may come right after the sizes, where they are taken for more of them.
    given.overrides = [*given.words, *(word for word in given.size if _is_setting(word))]
    given.size = list(dict.fromkeys(word for word in given.size if not _is_setting(word)))
    for word in given.overrides:
        if not _is_setting(word):
            parser.error(f"settings are given as key=value and sizes after --size, got '{word}'")
        if word.startswith("size="):
            parser.error(f"a size is given as --size {word.removeprefix('size=')}")
    return given


def _is_setting(word: str) -> bool:
    return "=" in word or word.startswith("~")


def _configs(given: Namespace) -> dict[str, DictConfig]:
    """By size, all of them composed before the first is measured."""
    from reverie.benchmark import device_of
    from reverie.commands.catalogue import options
    from reverie.types import ReverieError

    known = options("size")
    for size in given.size:
        if size not in known:
            raise ReverieError(f"unknown size '{size}': choose among {', '.join(known)}.")
    is_cuda = device_of(_composed(given, "debug")).type == "cuda"
    given.calls = given.calls or (100 if is_cuda else 1)
    return {size: _composed(given, size) for size in given.size or [default_size(given.overrides, is_cuda=is_cuda)]}


def default_size(overrides: list[str], *, is_cuda: bool) -> str:
    """What is measured where no size is asked for."""
    from reverie.commands.composition import chosen_option

    if not is_cuda:
        return "debug"
    return chosen_option("size", overrides) if "experiment" in _keys(overrides) else "12m"


def _keys(overrides: list[str]) -> list[str]:
    return [word.removeprefix("+").partition("=")[0] for word in overrides]


def _composed(given: Namespace, size: str) -> DictConfig:
    from reverie.commands.composition import composed_run
    from reverie.configuration import check_sections

    chosen = _keys(given.overrides)
    overrides = [f"size={size}"]
    overrides += [] if "experiment" in chosen else [f"experiment={_EXPERIMENT}"]
    overrides += [] if "runtime" in chosen else ["runtime=auto"]
    overrides += [f"runtime.precision={given.precision}"] if given.precision else []
    overrides += ["runtime.captures_updates=false", "runtime.compiles_steps=false"] if given.eager else []
    config = composed_run([*overrides, *given.overrides])
    check_sections(config)
    return config


def _document(given: Namespace, size: str, config: DictConfig) -> dict[str, Any]:
    from omegaconf.errors import OmegaConfBaseException

    from reverie.benchmark import Conditions, device_name, device_of, update_speed
    from reverie.commands.bench_report import as_json
    from reverie.configuration import omegaconf_sentence
    from reverie.types import ReverieError

    conditions = Conditions(
        size=size,
        observations=given.observations,
        actions=given.actions,
        calls=given.calls,
        has_parts=given.parts,
    )
    print(f"Measuring {size} on {device_name(device_of(config))} ...", file=sys.stderr, flush=True)
    try:
        speed = update_speed(config, conditions)
    except OmegaConfBaseException as error:  # a reference to nowhere, found when it was needed
        raise ReverieError(omegaconf_sentence(error)) from error
    return as_json(speed, device=device_name(device_of(config)), overrides=given.overrides)


def _documents(given: Namespace, sizes: Iterable[str]) -> dict[str, Any] | int:
    """Each size in a process of its own: memory, compiled code and the start are then its own too.

    The exit code of the first that fails, which has said why.
    """
    found: list[dict[str, Any]] = []
    for size in sizes:
        command = [sys.executable, "-m", "reverie", "bench", *_words(given, size), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            return done.returncode
        found.append(json.loads(done.stdout))
    return found[0] | {"results": [result for one in found for result in one["results"]]}


def _words(given: Namespace, size: str) -> list[str]:
    """The same arguments for one size."""
    words = [*given.overrides, "--size", size, "--observations", given.observations, "--calls", str(given.calls)]
    words += ["--precision", given.precision] if given.precision else []
    words += ["--actions", given.actions] if given.actions else []
    return [*words, *(f"--{name}" for name in ("parts", "eager") if getattr(given, name))]
