"""Trees come back equal with their types, whatever memory they came from; what cannot be held is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from safetensors.torch import load_file
from torch import Tensor

from reverie.orchestration.state_tree import compare_shapes, flattened, unflattened
from reverie.runtime.array_file import array_pieces, read_arrays
from reverie.runtime.durable_files import write_synced
from reverie.types import ReverieError, State


def same(left: object, right: object) -> bool:
    """Equal in type and bits, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        raw = [value.contiguous().as_strided((value.numel(),), (1,)).view(torch.uint8) for value in (left, right)]
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*raw)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return left == right


def through_files(state: State, folder: Path) -> State:
    text, arrays = flattened(state)
    write_synced(folder / "arrays", array_pieces(arrays))
    return unflattened(text, read_arrays(folder / "arrays"))


TENSOR_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16,
    torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TENSOR_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape_comes_back(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    # The odd neighbour would misalign its successors if arrays were laid out by name.
    tree = {"a": torch.ones(3, dtype=torch.uint8), "value": tensor, "z": torch.ones(1, dtype=torch.float64)}
    assert same(through_files(tree, tmp_path), tree)


arrays = nps.arrays(
    st.sampled_from(["bool", "uint8", "int16", "uint64", "int64", "float16", "float32", "float64"]),
    nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), arrays, arrays.map(torch.from_numpy)
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(tree=st.dictionaries(st.text(max_size=4), trees, max_size=4))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree_comes_back_and_its_bytes_repeat(tree: State, tmp_path: Path) -> None:
    again = through_files(tree, tmp_path)
    assert same(again, tree)
    text, pieces = flattened(again)
    assert text == flattened(tree)[0]
    assert b"".join(array_pieces(pieces)) == (tmp_path / "arrays").read_bytes()


def test_special_values_come_back(tmp_path: Path) -> None:
    tree = {
        "floats": [math.nan, math.inf, -math.inf, -0.0, 5e-324],
        "ints": [2**63, -(2**63) - 1, 2**20_000, True, 0],
        "keys": {"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a~1b": torch.ones(2), "__metadata__": np.zeros(2)},
        "kinds like the format's own": {"dict": {"tensor": "/x"}, "tuple": [()]},
        "lone surrogate": "\ud800",
    }
    assert same(through_files(tree, tmp_path), tree)


def test_shared_strided_and_read_only_memory_comes_back(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    frozen = np.arange(6, dtype=np.uint64)
    frozen.flags.writeable = False
    tree = {
        "base": base,
        "again": base,
        "transposed": base.T,
        "column": base[:, 1],
        "one of a column": base[1:2, 1:2].T[0],
        "one with a gap": base.reshape(-1)[5::24],
        "expanded": base[:1].expand(3, 6),
        "parameter": torch.nn.Parameter(base).data,
        "backwards": np.arange(6)[::-1],
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "frozen": frozen,
    }
    again = through_files(tree, tmp_path)
    assert same(again, tree)
    again["base"].add_(1)  # what comes back belongs to the caller, and nobody else sees the change
    again["frozen"][0] = 7
    assert torch.equal(again["again"], base)


def test_the_array_file_is_plain_safetensors(tmp_path: Path) -> None:
    tensors = {"odd": torch.ones(3, dtype=torch.bool), "wide": torch.arange(4, dtype=torch.float64)}
    write_synced(tmp_path / "file", array_pieces(tensors))
    assert same(dict(sorted(load_file(tmp_path / "file").items())), tensors)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: 2}, "keys must be strings"),
        (object(), "object"),
        (np.float64(1.0), "float64"),
        ({1, 2}, "set"),
        (np.array(["a"]), "<U1"),
        (b"raw", "bytes"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_with_its_place(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        flattened({"outer": [value]})
    assert "/outer/0" in str(caught.value)


@pytest.mark.parametrize(
    "text", [b"[]", b'{"dict": {"a": {"pickle": "x"}}}', b'{"dict": {"a": {"tensor": "/no"}}}', b"{", b'{"dict": 3}']
)
def test_text_that_is_no_tree_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a state tree|Expecting"):
        unflattened(text, {})


def test_other_sizes_are_refused_by_name_and_shape() -> None:
    here: State = {"net": {"w": torch.zeros(2, 3), "b": torch.zeros(2)}, "n": np.zeros(1), "step": 1}
    compare_shapes(here, {"net": {"w": torch.ones(2, 3), "b": torch.ones(2)}, "n": np.ones(1), "step": 9}, where="x")
    there: State = {
        "net": {"w": torch.zeros(4, 3), "extra": torch.zeros(1)},
        "n": np.zeros(1, dtype=np.float32),
        "step": 1,
    }
    with pytest.raises(ReverieError) as caught:
        compare_shapes(here, there, where="checkpoint 000010")
    text = str(caught.value)
    assert text.startswith("checkpoint 000010 ")
    assert "net.w is [4, 3] float32 there and [2, 3] float32 here" in text
    assert "net.b is missing there" in text
    assert "n is [1] float32 there and [1] float64 here" in text
    assert "and 1 more" in text
    assert "`size=`" in text
