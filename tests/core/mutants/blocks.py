"""Errors in reading blocks of weights: changes of their bytes, (n_blocks, block_bytes), before they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.eager.reference import numpy_library
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.testing import OP_CASES
from tests.core.mutants.adapters import library, over_numpy, patched
from tests.core.mutants.mutant import Mutant

__all__ = ["mutants"]

Array = np.ndarray[Any, Any]


def _scales_shifted(b: Array) -> Array:
    return np.concatenate([np.roll(b[:, :2], 1, 0), b[:, 2:]], 1)


def _without(start: int, stop: int) -> Callable[[Array], Array]:
    return lambda b: np.concatenate([b[:, :start], b[:, start:stop] * 0, b[:, stop:]], 1)


def _nibbles_exchanged(b: Array) -> Array:
    return np.concatenate([b[:, :2], (b[:, 2:] >> 4) | (b[:, 2:] << 4)], 1)


BLOCKS: Mapping[str, tuple[DType, Callable[[Array], Array]]] = {
    "linear: Q8_0, the scale of the block before": (DType.Q8_0, _scales_shifted),
    "take: Q8_0, the scale of the block before": (DType.Q8_0, _scales_shifted),
    "linear_experts: Q8_0, the scale of the block before": (DType.Q8_0, _scales_shifted),
    "linear: Q4_0, nibbles exchanged": (DType.Q4_0, _nibbles_exchanged),
    "take: Q4_0, nibbles exchanged": (DType.Q4_0, _nibbles_exchanged),
    "linear: Q4_1, no minimum": (DType.Q4_1, _without(2, 4)),
    "linear: Q5_0, four bits of five": (DType.Q5_0, _without(2, 6)),
    "linear: Q5_1, four bits of five": (DType.Q5_1, _without(4, 8)),
    "linear: Q2_K, no minimum": (DType.Q2_K, _without(82, 84)),
    "linear: Q3_K, two bits of three": (DType.Q3_K, _without(0, 32)),
    "linear: Q4_K, no minimum": (DType.Q4_K, _without(2, 4)),
    "take: Q5_K, four bits of five": (DType.Q5_K, _without(16, 48)),
    "take: Q6_K, four bits of six": (DType.Q6_K, _without(128, 192)),
    "linear: IQ4_NL, nibbles exchanged": (DType.IQ4_NL, _nibbles_exchanged),
    "linear: IQ4_XS, four bits of six of a scale": (DType.IQ4_XS, _without(2, 4)),
}


def _rows_exchanged(w: WeightData) -> Array:
    rows = w.data.reshape(-1, w.dtype.nbytes(w.shape[-1:]))
    order = np.arange(len(rows))
    order[32:34] = order[32:34][::-1]
    return rows[order]


def _rest_of_eight_lost(w: WeightData) -> Array:
    """Repacked by groups of 8 rows; the rows of a last, partial group are lost."""
    n = w.shape[-2] if "linear" in w.uses else 0
    rows = w.data.reshape(-1, max(n, 1), w.data.size // max(n, 1))
    return np.where(np.arange(max(n, 1))[:, None] < n - n % 8, rows, 0) if n else w.data


def _last_scale_of_long_rows(w: WeightData) -> Array:
    """The last block of a row of more than 512 elements has the scale of the block before."""
    blocks = np.array(w.data.reshape(-1, w.shape[-1] // w.dtype.block_size, w.dtype.block_bytes))
    if w.shape[-1] > 512:
        blocks[:, -1, :2] = blocks[:, -2, :2]
    return blocks


WEIGHTS: Mapping[str, tuple[DType, Callable[[WeightData], Array]]] = {
    "linear: Q8_0, rows 32 and 33 exchanged": (DType.Q8_0, _rows_exchanged),
    "take: Q8_0, rows 32 and 33 exchanged": (DType.Q8_0, _rows_exchanged),
    "linear: Q4_0, rows beyond a multiple of 8 lost": (DType.Q4_0, _rest_of_eight_lost),
    "linear: Q4_K, rows beyond a multiple of 8 lost": (DType.Q4_K, _rest_of_eight_lost),
    "linear: Q8_0, a wrong last scale in long rows": (DType.Q8_0, _last_scale_of_long_rows),
}


def _misread(dtype: DType, change: Callable[[WeightData], Array]) -> Any:
    right = numpy_library().weight

    def weight(w: WeightData) -> Any:
        if w.dtype is not dtype:
            return right(w)
        return right(replace(w, data=np.asarray(change(w), np.uint8).reshape(-1)))

    return library(weight=weight)


def _each_block(dtype: DType, change: Callable[[Array], Array]) -> Callable[[WeightData], Array]:
    return lambda w: change(w.data.reshape(-1, dtype.block_bytes))


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    made = {}
    by_block = {name: (dtype, _each_block(dtype, change)) for name, (dtype, change) in BLOCKS.items()}
    for name, (dtype, change) in (by_block | WEIGHTS).items():
        op = name.partition(":")[0]
        cases = [c for c in OP_CASES if c.op == op and any(a and a.dtype is dtype for a in c.args)]
        made[name] = Mutant(patched(over_numpy, _misread(dtype, change)), over_numpy, cases, op)
    return made
