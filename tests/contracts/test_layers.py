"""Who may know whom: imports go downwards, Hydra stops at the door, and randomness has a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import reverie

PACKAGE = Path(reverie.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    (
        "cli",
        "commands",
        "session",
        "rehearsal",
        "benchmark",
        "plan",
        "plan_needs",
        "probe",
        "probe_measures",
        "probe_replay",
        "build",
        "offline_build",
        "replay_build",
        "sections",
        "saved_agent",
        "recording",
        "configuration",
        "targets",
        "node_walk",
        "signatures",
        "__main__",
    ),
    ("viewer", "interop"),
    ("orchestration",),
    ("workflows",),
    ("components",),
    ("buffers", "environments", "datasets"),
    ("runtime", "types"),
)
"""From the door down. A module imports from its own row or from those below."""

DOOR = LAYERS[0]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

GLOBAL_DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "rand_like"}
"""Functions of torch that draw from the global generator unless they are given another."""
GLOBAL_SEEDS = {"torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.cuda.manual_seed_all"}
NUMPY_STREAMS = {"default_rng", "SeedSequence", "Generator", "PCG64"}
"""What in ``numpy.random`` has a state of its own."""


def part_of(path: Path) -> str:
    """The first name below ``reverie``; the package's own ``__init__`` is the empty text."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py") if first != "__init__.py" else ""


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of all imported modules, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            assert node.module is not None
            yield node.module
            if node.module == "reverie":
                yield from (f"reverie.{alias.name}" for alias in node.names)


def upward_imports(tree: ast.AST, part: str) -> list[str]:
    names = [name for name in imported(tree) if name.startswith("reverie.")]
    return [name for name in names if RANK[name.split(".")[1]] < RANK[part]]


def hydra_imports(tree: ast.AST) -> list[str]:
    return [name for name in imported(tree) if name.split(".")[0] in ("hydra", "omegaconf")]


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def global_randomness(tree: ast.AST) -> list[str]:
    """Calls that read or set a generator that belongs to nobody."""
    found = [name for name in imported(tree) if name.split(".")[0] == "random"]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        owner, _, last = name.rpartition(".")
        has_generator = any(keyword.arg == "generator" for keyword in node.keywords)
        is_global_draw = owner == "torch" and last in GLOBAL_DRAWS and not has_generator
        is_global_seed = name in (
            "torch.manual_seed",
            "torch.seed",
            "torch.cuda.manual_seed_all",
            "torch.set_rng_state",
        )
        is_numpy = owner in ("np.random", "numpy.random") and last not in NUMPY_STREAMS
        if is_global_draw or is_global_seed or is_numpy:
            found.append(name)
    return found


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_module_belongs_to_a_layer() -> None:
    assert len(MODULES) > 40
    assert {part_of(path) for path in MODULES} - {""} <= set(RANK)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_keeps_to_its_layer(path: Path) -> None:
    tree, part = parsed(path), part_of(path)
    if not part:
        assert [name for name in imported(tree) if name != "__future__"] == []
        return
    assert upward_imports(tree, part) == []
    if part not in DOOR:
        assert hydra_imports(tree) == []
    if path != PACKAGE / "build.py":
        assert global_randomness(tree) == []


def test_the_checks_find_what_they_look_for() -> None:
    upward = "from reverie.workflows.base import UpdateResult\nfrom reverie.types import Row"
    assert upward_imports(ast.parse(upward), "buffers") == ["reverie.workflows.base"]
    assert upward_imports(ast.parse("def f():\n    import reverie.cli"), "orchestration") == ["reverie.cli"]
    assert upward_imports(ast.parse("from reverie import session"), "types") == ["reverie.session"]
    assert hydra_imports(ast.parse("from omegaconf import DictConfig")) == ["omegaconf"]
    drawn = (
        "torch.rand(3)\ntorch.rand(3, generator=g)\nnp.random.rand()\nnp.random.default_rng(0)\ntorch.manual_seed(0)"
    )
    assert global_randomness(ast.parse(drawn)) == ["torch.rand", "np.random.rand", "torch.manual_seed"]
    assert global_randomness(ast.parse("import random")) == ["random"]


def test_build_seeds_the_global_generator_for_the_initial_weights_only() -> None:
    assert global_randomness(parsed(PACKAGE / "build.py")) == ["torch.manual_seed"]
