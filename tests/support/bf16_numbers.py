"""16-bit weights whose numbers F16 and BF16 both have, and their product with random activations."""

from __future__ import annotations

import numpy as np

from hotshoe_core import Backend, DType, WeightData, ops

__all__ = ["M", "activations", "numbers", "product", "stored"]

M, N = 96, 20


def numbers(k: int = 64) -> np.ndarray:
    """A weight (M, k) of F32 numbers that F16 and BF16 have."""
    values = np.random.default_rng(0).standard_normal((M, k), np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return values.view(np.float32).astype(np.float16).astype(np.float32)


def activations(k: int = 64) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((N, k), np.float32)


def stored(values: np.ndarray, dtype: DType = DType.F16) -> WeightData:
    """The weight as a file has it."""
    data = values.astype(np.float16) if dtype is DType.F16 else (values.view(np.uint32) >> 16).astype(np.uint16)
    return WeightData("w", values.shape, dtype, data.reshape(-1).view(np.uint8), ("linear",))


def product(backend: Backend, weight: WeightData) -> np.ndarray:
    """``activations() @ weight.T`` by the backend."""
    w = backend.load([weight])["w"]
    k = weight.shape[1]
    with backend.new_context() as ctx:
        x = ctx.input("x", (N, k))
        return ctx.forward(y := ops.linear(x, w)).compute({x: activations(k)}).read(y)
