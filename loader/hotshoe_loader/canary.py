"""The canary: one small graph computed on a device, and its numbers compared with what they must be.

A product, a bias and a softmax of whole numbers: exact in F16 and TF32 too, so that only the exponential is rounded.
The expected numbers are computed here with ``math``, not by a backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotshoe_core.device import BackendParams, Device, Provider
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["check_canary", "check_memory"]

_ROWS, _COLUMNS, _INNER = 2, 3, 32
_X = [[(i * 7 + k * 3) % 5 - 2 for k in range(_INNER)] for i in range(_ROWS)]
_W = [[(j * 5 + k * 2) % 3 - 1 for k in range(_INNER)] for j in range(_COLUMNS)]
_BIAS = [1, -2, 3]
_TOLERANCE = 2e-3  # F16 exponentials are right to about 1e-3

_PIB = 1 << 50


def expected() -> list[list[float]]:
    """softmax((x @ w.T + bias) / 8), by rows."""
    rows = []
    for x in _X:
        logits = [(sum(a * b for a, b in zip(x, w)) + bias) / 8 for w, bias in zip(_W, _BIAS)]
        powers = [math.exp(value) for value in logits]
        rows.append([power / sum(powers) for power in powers])
    return rows


def check_canary(provider: Provider, device: Device) -> None:
    """Computes on one device. Raises Rejected for wrong numbers, and whatever the backend raises."""
    import numpy as np

    from hotshoe_core import DType, ops
    from hotshoe_core.backend import Backend, WeightData

    backend = provider.open([device], BackendParams())
    if not isinstance(backend, Backend):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its open() returned {type(backend).__name__}; expected a hotshoe_core Backend",
            f"report it to the authors of provider {provider.name!r}",
        )
    with backend:
        data = np.array(_W, np.float32).reshape(-1).view(np.uint8)
        weight = WeightData("canary", (_COLUMNS, _INNER), DType.F32, data, uses=("linear",))
        w = backend.load([weight])["canary"]
        context = backend.new_context()
        x = context.input("x", (_ROWS, _INNER), DType.F32)
        bias = context.input("bias", (_COLUMNS,), DType.F32)
        out = ops.softmax((ops.linear(x, w) + bias) * 0.125)
        context.forward(out)
        feeds = {x: np.array(_X, np.float32), bias: np.array(_BIAS, np.float32)}
        found = context.compute(feeds).read(out)
        context.close()
    wanted = np.array(expected(), np.float32)
    off = float(np.abs(found - wanted).max())
    if not off <= _TOLERANCE:  # NaN is not
        raise Rejected(
            Outcome.WRONG_RESULT,
            f"{device.name} computes wrong numbers: {_show(found[0])} where {_show(wanted[0])} is right",
            f"update the driver of {device.description or device.name}, or block={device.name!r}",
        )


def _show(row: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in row) + "]"


def check_memory(device: Device) -> None:
    """Raises Rejected for an amount of memory that no device has."""
    total, free = device.memory_total, device.memory_free
    wrong = None
    if not all(isinstance(size, int) and 0 <= size <= _PIB for size in (total, free)):
        wrong = f"{total} bytes of memory, {free} of them free"
    elif total and free > total:
        wrong = f"{free} free bytes of memory out of {total}"
    if wrong is not None:
        raise Rejected(
            Outcome.WRONG_RESULT,
            f"{device.name} reports {wrong}",
            f"update the driver of {device.description or device.name}, or block={device.name!r}",
        )
