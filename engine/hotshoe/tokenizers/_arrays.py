"""Arrays in the metadata of a file as NumPy's arrays and tables of strings, without Python objects for the items.

``_vocabulary`` imports this when it reads a file, because NumPy takes 50 ms to import.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from hotshoe.tokenizers._strings import StringTable
from hotshoe_core.gguf import GGUFArray, ValueType

__all__ = ["floats", "integers", "string_table"]


def string_table(array: Any) -> StringTable:
    """Strings. Raises TypeError with the index and the first item that is not one, ValueError for a lone surrogate."""
    if isinstance(array, GGUFArray) and array.type is ValueType.STRING:
        return StringTable(array)
    strings = tuple(array)
    wrong = next((i for i, item in enumerate(strings) if not isinstance(item, str)), None)
    if wrong is not None:
        raise TypeError(wrong, strings[wrong])
    return StringTable(strings)


def floats(array: Any) -> npt.NDArray[np.float64]:
    """Numbers. Raises TypeError, ValueError or OverflowError for anything else."""
    found = np.array(_numbers(array), np.float64)
    if found.ndim != 1:
        raise ValueError(found.shape)
    return found


def integers(array: Any) -> npt.NDArray[Any]:
    """Integers of any size. Raises TypeError for anything else."""
    numbers = _numbers(array)
    if isinstance(numbers, np.ndarray) and numbers.dtype.kind in "iu" and numbers.ndim == 1:
        return numbers
    found = list(map(operator.index, numbers))
    return np.array(found, np.int64 if all(-(2**63) <= i < 2**63 for i in found) else object)


def _numbers(array: Any) -> Any:
    return array.numpy() if isinstance(array, GGUFArray) and array.type.code else array
