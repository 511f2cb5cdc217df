"""The canary: computes a few ops on a device and compares the numbers with the expected ones.

Each op reads inputs and weights only, so an error is attributed to the right op. Matrix products use whole numbers,
which are exact in F16 and TF32 too. The expected numbers are computed with ``math``, not by a backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotshoe_core.contract.device import BackendParams, Device, Provider
from hotshoe_loader.catalog import owner_of_provider
from hotshoe_loader.contract_checks import backend_problem
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["check_canary"]

_ROWS, _COLUMNS, _INNER = 2, 3, 32
_X = [[(i * 7 + k * 3) % 5 - 2 for k in range(_INNER)] for i in range(_ROWS)]
_W = [[(j * 5 + k * 2) % 3 - 1 for k in range(_INNER)] for j in range(_COLUMNS)]
_BIAS = [k % 4 - 1 for k in range(_INNER)]
_INDICES = [2, 0]
_EPS = 1e-5
_TOLERANCE = 4e-3  # relative to the largest expected number: F16 is right to 1e-3, and an error of 1 % is found

Matrix = list[list[float]]


def expected() -> dict[str, Matrix]:
    """The expected result of each op, by its name; simple ops first, because others may be composed of them."""
    return {
        "add": [[float(a + b) for a, b in zip(x, _BIAS)] for x in _X],
        "mul": [[float(a * b) for a, b in zip(x, _BIAS)] for x in _X],
        "take": [[float(value) for value in _W[index]] for index in _INDICES],
        "linear": [[float(sum(a * b for a, b in zip(x, w))) for w in _W] for x in _X],
        "silu": [[a / (1 + math.exp(-a)) for a in x] for x in _X],
        "softmax": [_softmax(x) for x in _X],
        "rms_norm": [[a / math.sqrt(sum(b * b for b in x) / _INNER + _EPS) for a in x] for x in _X],
    }


def _softmax(row: Sequence[int]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def check_canary(provider: Provider, device: Device) -> None:
    """Compute the ops on one device. Raise Rejected for wrong numbers; the backend's exceptions pass through."""
    import numpy as np

    from hotshoe_core import DType, ops
    from hotshoe_core.contract.backend import WeightData

    backend = provider.open([device], BackendParams())
    problem = backend_problem(backend)
    if problem is not None:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its open() {problem}",
            f"report it to the authors of provider {provider.name!r}",
        )
    with backend:
        data = np.array(_W, np.float32).reshape(-1).view(np.uint8)
        shape = (_COLUMNS, _INNER)
        weights = [WeightData(op, shape, DType.F32, data, uses=(op,)) for op in ("linear", "take")]
        loaded = backend.load(weights)
        context = backend.new_context()
        x = context.input("x", (_ROWS, _INNER), DType.F32)
        bias = context.input("bias", (_INNER,), DType.F32)
        indices = context.input("indices", (len(_INDICES),), DType.I32)
        outputs = {
            "add": ops.add(x, bias),
            "mul": ops.mul(x, bias),
            "take": ops.take(loaded["take"], indices),
            "linear": ops.linear(x, loaded["linear"]),
            "silu": ops.silu(x),
            "softmax": ops.softmax(x),
            "rms_norm": ops.rms_norm(x, eps=_EPS),
        }
        context.forward(*outputs.values())
        feeds = {x: np.array(_X, np.float32), bias: np.array(_BIAS, np.float32)}
        context.compute({**feeds, indices: np.array(_INDICES, np.int32)})
        found = {op: np.array(output.read()) for op, output in outputs.items()}
        context.close()
    wrong: dict[str, str] = {}
    for op, rows in expected().items():
        wanted = np.array(rows, np.float32)
        error = np.abs(found[op] - wanted).max(axis=-1)  # (rows,)
        if not error.max() <= _TOLERANCE * np.abs(wanted).max():  # also true for NaN
            row = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
            wrong[op] = f"{op} gives {_show(found[op][row])}, expected {_show(wanted[row])}"
    if wrong:
        first, *others = wrong
        more = f"; also wrong: {', '.join(others)}" if others else ""
        raise Rejected(
            Outcome.WRONG_RESULT,
            f"{device.name} computes wrong numbers: {wrong[first]}{more}",
            _remedy(device, first),
            ops=list(wrong),
        )


def _remedy(device: Device, op: str) -> str:
    if owner_of_provider(device.provider) is not None:
        return f"update the driver of {device.name}, or do not use it: HOTSHOE_BLOCK={device.name}"
    return (
        f"report it to the authors of {device.provider}, and do not use it: HOTSHOE_BLOCK={device.name}; if you write "
        f"it: python -m pytest -q -k {op} in its folder"
    )


def _show(row: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in row[:4]) + (", …]" if len(row) > 4 else "]")
