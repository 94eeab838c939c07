"""Named tensors as one safetensors file: arrays only, so that reading a stranger's file executes nothing.

Written piece by piece rather than with ``safetensors.torch.save``, which would hold two more copies of everything in
memory and hides the system's error number when the disk is full. Read with the library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

_DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_DTYPES = {name: dtype for dtype, name in _DTYPE_NAMES.items()}
_PIECE_BYTES = 1 << 24
_LENGTH_BYTES = 8
"""A file begins with the length of its header."""


def array_pieces(arrays: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of the file, one tensor at a time. Equal tensors under equal names give equal bytes."""
    # Widest elements first: then every array starts at a multiple of its element size, as readers expect.
    names = sorted(arrays, key=lambda name: (-arrays[name].element_size(), name))
    yield _header({name: arrays[name] for name in names})
    for name in names:
        yield from _raw(arrays[name])


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU. The caller has checked the file's digest."""
    return load_file(path, device="cpu")


def mapped_arrays(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, of which only what is looked at is read. They must not be written."""
    try:
        with safe_open(path, framework="pt"):
            pass  # the library has checked the header: every array lies inside the file
        # Shared: a private map counts as memory of the process. Unlike numpy's it keeps no file open.
        size, is_shared = path.stat().st_size, os.access(path, os.W_OK)
        data = torch.from_file(str(path), shared=is_shared, size=size, dtype=torch.uint8)
    except RuntimeError as error:  # torch hides the system's error number in a sentence
        raise OSError(None, f"cannot map {path.name} ({error})") from error
    start = _LENGTH_BYTES + int.from_bytes(bytes(data[:_LENGTH_BYTES].tolist()), "little")
    entries = json.loads(data[_LENGTH_BYTES:start].numpy().tobytes())
    body = data[start:]
    return {
        name: body[slice(*entry["data_offsets"])].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def _header(arrays: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, object] = {}
    end = 0
    for name, tensor in arrays.items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise TypeError(f"array {name!r} has dtype {tensor.dtype}, which a checkpoint cannot hold")
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = _DTYPE_NAMES[tensor.dtype]
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _raw(tensor: Tensor) -> Iterator[memoryview]:
    """In pieces of bounded size where it must be copied first: all together may be larger than memory."""
    is_plain = tensor.is_contiguous() and tensor.device.type == "cpu"
    if is_plain or tensor.nbytes <= _PIECE_BYTES:
        if tensor.numel() > 0:
            yield _piece(tensor)
        return
    width = tensor.nbytes // len(tensor)
    if width > _PIECE_BYTES:
        for part in tensor:
            yield from _raw(part)
        return
    for part in tensor.split(_PIECE_BYTES // width):
        yield _piece(part)


def _piece(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Not reshape(-1): a single element may keep any stride and count as contiguous, and then refuses the view.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().data
