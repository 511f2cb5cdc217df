"""What a family says about a file to be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DTYPES", "Plan", "PlannedTensor"]

DTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
"""Element types that a file's large weights may have."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    name: str  # in the GGUF file
    source: str  # in the checkpoint
    shape: tuple[int, ...]
    full_precision: bool  # stays f32 whatever the element type of the file
    output: bool = False  # gives the logits, so it is never quantized to less than 8 bits
    make: Callable[[], np.ndarray[Any, np.dtype[np.float32]]] | None = None  # None: ``source`` as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """``metadata`` values become the GGUF type of their Python type: bool, int (uint32), float (float32), str, list."""

    arch: str
    metadata: dict[str, Any]
    tensors: tuple[PlannedTensor, ...]
