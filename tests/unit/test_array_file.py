"""Arrays in files: written in pieces of bounded size, mapped without an open file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reverie.runtime import array_file
from reverie.runtime.array_file import array_pieces, mapped_arrays, read_arrays
from reverie.runtime.durable_files import replace_file

ARRAYS = {
    "picture": torch.arange(2 * 5 * 3, dtype=torch.uint8).view(2, 5, 3),
    "half": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
    "flag": torch.tensor([True, False, True]),
    "number": torch.tensor(7, dtype=torch.int64),
    "nothing": torch.zeros(0, 4),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    replace_file(tmp_path / "arrays.safetensors", array_pieces(ARRAYS))
    return tmp_path / "arrays.safetensors"


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_mapped_arrays_are_those_that_were_written(file: Path, mode: int) -> None:
    file.chmod(mode)
    found = mapped_arrays(file)
    assert found.keys() == ARRAYS.keys() == read_arrays(file).keys()
    for name, value in ARRAYS.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_a_map_keeps_no_file_open(file: Path) -> None:
    """A million rows are a thousand maps, and a process may have a thousand open files."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    maps = [mapped_arrays(file) for _ in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(maps) == 20


def test_a_file_that_cannot_be_mapped_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(OSError, match=r"device|directory"):
        mapped_arrays(tmp_path / "folder.safetensors")


@pytest.mark.parametrize("form", ["whole", "slices", "transposed"])
def test_what_is_out_of_order_is_written_in_small_pieces(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_file, "_PIECE_BYTES", 64)
    whole = torch.arange(7 * 40 * 6, dtype=torch.int16).view(7, 40, 6)
    value = {"whole": whole, "slices": whole[:, :9], "transposed": whole.transpose(0, 1)}[form]
    pieces = list(array_pieces({"value": value}))[1:]
    assert b"".join(pieces) == value.contiguous().numpy().tobytes()
    # Parts in order need no copy, and then their size does not matter.
    assert {"whole": len(pieces) == 1, "slices": len(pieces) == 7, "transposed": len(pieces) == 80}[form]
