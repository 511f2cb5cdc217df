"""FileLayout: what a converter returns: the metadata and the tensors of the GGUF file to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from hotshoe_core.tensors.dtypes import DType

__all__ = ["FileLayout", "TensorLayout"]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """One tensor of the GGUF file, and the tensor of the checkpoint that it is made from."""

    name: str
    """Its name in the GGUF file."""
    source: str
    """The tensor of the checkpoint that it is made from, for messages."""
    shape: tuple[int, ...]
    full_precision: bool
    """True if the tensor stays f32, whatever the type of the file."""
    make: Callable[[], np.ndarray[Any, Any]]
    """Computes the values, float32, when the tensor is written; or its bytes, (..., rows, bytes of a row)."""
    blocks: DType | None = None
    """The type of the bytes that ``make`` computes: such a tensor keeps its type, whatever the type of the file."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A GGUF file to write: its architecture, metadata and tensors."""

    arch: str
    """``general.architecture``."""
    metadata: dict[str, Any]
    """Values get the GGUF type of their Python type: bool, int (uint32), float (float32), str, list."""
    tensors: tuple[TensorLayout, ...]
    """In the order in which they are written."""
