"""Products of BF16: whether the CPU has them, and which F16 weights have only numbers of BF16."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_ggml.native import ffi, kernels
from hotshoe_ggml.parallel import run_all

__all__ = ["multiplies_bf16", "which_hold_bf16"]

_PART = 16 << 20  # bytes that a thread checks at once


def multiplies_bf16() -> bool:
    """Whether this CPU has a product of BF16 with BF16."""
    return bool(kernels().hotshoe_linear_pairs())


def which_hold_bf16(weights: Sequence[np.ndarray[Any, Any]], n_threads: int) -> list[bool]:
    """For the bytes of each F16 weight: whether all numbers are BF16 numbers, as in a model that was published in BF16.

    A weight that has others is read up to the first one.
    """
    hold = [True] * len(weights)

    def check(i: int, start: int) -> None:
        if hold[i]:
            part = np.ascontiguousarray(weights[i][start : start + _PART])
            if not kernels().hotshoe_holds_bf16(ffi.from_buffer(part), part.nbytes // 2):
                hold[i] = False  # never True again: other threads check other parts

    starts = [(i, start) for i, weight in enumerate(weights) for start in range(0, weight.nbytes, _PART)]
    run_all([functools.partial(check, *at) for at in starts], n_threads)
    return hold
