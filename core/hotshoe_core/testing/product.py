"""A small product and its numbers, for tests of lives and memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.graphs.context import Context
from hotshoe_core.ops import linear
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor

__all__ = ["ABSURD", "N_IN", "N_OUT", "WEIGHT", "check", "load", "numbers", "product"]

Array = np.ndarray[Any, Any]

N_IN, N_OUT = 8, 4
WEIGHT = np.linspace(-1, 1, N_OUT * N_IN, dtype=np.float32).reshape(N_OUT, N_IN)
ABSURD = (2**20, 2**28)
"""A shape that F32 needs 2^50 bytes for: more than any machine has, and more than a 47-bit address space."""


def load(backend: Backend, name: str = "w", layer: int = -1, values: Array = WEIGHT, use: str = "linear") -> Tensor:
    """``values`` as a weight of the backend. use: the op that reads it."""
    data = values.reshape(-1).view(np.uint8)
    return backend.load([WeightData(name, values.shape, DType.F32, data, (use,), layer)])[name]


def product(backend: Backend, weight: Tensor, n: int = 2) -> tuple[Context, Tensor, Tensor]:
    """A context that computes ``x @ weight.T``, its input and its output."""
    ctx = backend.new_context()
    x = ctx.input("x", (n, N_IN))
    y = linear(x, weight)
    ctx.forward(y)
    return ctx, x, y


def numbers(i: int, n: int = 2) -> Array:
    """The input number ``i`` of ``product``: float32 (n, N_IN)."""
    return np.random.default_rng(i).standard_normal((n, N_IN), np.float32)


def check(got: Array, x: Array) -> None:
    """Compare a result (n, N_OUT) of ``product`` with ``x @ WEIGHT.T``, for its input ``x`` (n, N_IN)."""
    np.testing.assert_allclose(got, x @ WEIGHT.T, rtol=1e-4, atol=1e-4)
