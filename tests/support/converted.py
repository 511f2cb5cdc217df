"""What is in a GGUF file, for tests of the converter."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from hotshoe_core.gguf import GGUFFile

__all__ = ["f16_digests", "keys", "tensors"]


def keys(path: Path) -> dict[str, Any]:
    with GGUFFile(path) as file:
        return {k: v if isinstance(v, (str, int, float, bool)) else list(v) for k, v in file.metadata.items()}


def tensors(path: Path) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    """Type name and values as float32, by another reader than hotshoe's."""
    reader = gguf.GGUFReader(path)
    return {t.name: (t.tensor_type.name, gguf.dequantize(t.data, t.tensor_type)) for t in reader.tensors}


def f16_digests(path: Path) -> dict[str, str]:
    """Type, shape and hash of the bytes of each tensor: what a file holds, in less than the file."""
    found: dict[str, str] = {}
    for t in gguf.GGUFReader(path).tensors:
        shape = "x".join(map(str, reversed(t.shape)))
        found[t.name] = f"{t.tensor_type.name} {shape} {hashlib.sha256(t.data).hexdigest()[:16]}"
    return found
