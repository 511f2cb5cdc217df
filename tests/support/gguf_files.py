"""GGUF files for tests: honest ones by ``gguf.GGUFWriter``, dishonest ones byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Array = np.ndarray[Any, Any]


def write_gguf(
    path: Path,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | tuple[Array, gguf.GGMLQuantizationType]] | None = None,
    *,
    arch: str = "llama",
    setup: Callable[[gguf.GGUFWriter], None] | None = None,
    **writer: Any,
) -> Path:
    """Writes a file and returns its path.

    Of ``keys`` an int becomes u32, a float f32; bool, str and non-empty lists are themselves. Of ``tensors`` a pair is
    the bytes of quantized rows and their type. ``setup`` adds what this does not cover; ``writer`` goes to GGUFWriter.
    """
    w = gguf.GGUFWriter(path, arch, **writer)
    for key, value in (keys or {}).items():
        add = {bool: w.add_bool, int: w.add_uint32, float: w.add_float32, str: w.add_string, list: w.add_array}
        add[type(value)](key, value)
    for name, tensor in (tensors or {}).items():
        array, raw_dtype = tensor if isinstance(tensor, tuple) else (tensor, None)
        w.add_tensor(name, array, raw_dtype=raw_dtype)
    if setup is not None:
        setup(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def text(s: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, type: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", type) + payload


def array(type: int, count: int, payload: bytes = b"") -> bytes:
    """What follows a key of type 9."""
    return struct.pack("<IQ", type, count) + payload


def tensor(
    name: str | bytes, dims: Iterable[int], type: int = 0, offset: int = 0, *, n_dims: int | None = None
) -> bytes:
    """A row of the tensor table; ``dims`` in file order, the reverse of NumPy's."""
    dims = list(dims)
    n = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", n, *dims, type, offset)


def gguf_bytes(
    keys: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of ready-made parts, whatever they are; the counts can be made to lie."""
    keys, tensors = list(keys), list(tensors)
    n_keys = len(keys) if n_keys is None else n_keys
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def put(folder: Path, raw: bytes, name: str = "x.gguf") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path
