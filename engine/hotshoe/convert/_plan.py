"""What a family says about a file to be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Plan", "PlannedTensor"]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    name: str  # in the GGUF file
    source: str  # in the checkpoint
    shape: tuple[int, ...]
    full_precision: bool  # stays f32 whatever the type of the file
    make: Callable[[], np.ndarray[Any, np.dtype[np.float32]]] | None = None  # None: ``source`` as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """``metadata`` values become the GGUF type of their Python type: bool, int (uint32), float (float32), str, list."""

    arch: str
    metadata: dict[str, Any]
    tensors: tuple[PlannedTensor, ...]
