"""A GGUF file with something changed: for tests of what the reader cannot know to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

__all__ = ["Stored", "rewrite"]

Stored = tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]


def rewrite(
    source: Path,
    target: Path,
    metadata: Mapping[str, Any] | None = None,
    *,
    drop: str = "",
    rename: tuple[str, str] = ("", ""),
    transpose: str = "",
    narrow: tuple[str, int] = ("", 0),
    add: Mapping[str, np.ndarray] | None = None,
    edit: Callable[[dict[str, Stored]], None] | None = None,
) -> Path:
    """Copies ``source`` with metadata replaced, added or (None) left out, and one tensor dropped, renamed, transposed,
    or narrowed to one element along an axis; ``add`` are further ones. ``edit`` changes all tensors by name at last."""
    changes = dict(metadata or {})
    reader = gguf.GGUFReader(source)
    architecture = changes.pop("general.architecture", reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = changes.pop(key, field.contents())
        if value is None:
            continue
        kind = field.types[0]
        if isinstance(value, (str, list)):  # perhaps in place of a number
            kind = gguf.GGUFValueType.get_type(value)
        elif kind == gguf.GGUFValueType.UINT32 and not 0 <= value < 2**32:
            kind = gguf.GGUFValueType.INT64
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    for key, value in changes.items():
        large = isinstance(value, int) and value >= 2**31
        writer.add_key_value(key, value, gguf.GGUFValueType.INT64 if large else gguf.GGUFValueType.get_type(value))
    tensors: dict[str, Stored] = {}
    for t in reader.tensors:
        if t.name == drop:
            continue
        name = rename[1] if t.name == rename[0] else t.name
        data = np.ascontiguousarray(t.data.T) if name == transpose else t.data
        if name == narrow[0]:
            data = np.ascontiguousarray(data.take([0], narrow[1]))
        tensors[name] = (data, t.tensor_type)
    for name, data in (add or {}).items():
        tensors[name] = (data, gguf.GGMLQuantizationType[{"float32": "F32", "float16": "F16"}[data.dtype.name]])
    if edit is not None:
        edit(tensors)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
