"""One op, or an expression of several, computed by the reference backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hotshoe_core.eager.reference import open_reference
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def run(function: Callable[..., Tensor | Sequence[Tensor]], *arrays: Array | None, **attrs: Any) -> list[Array]:
    """What ``function`` gives for these arrays as inputs, None where there is no operand."""
    with open_reference() as backend, backend.new_context() as ctx:
        tensors = [None if a is None else ctx.input(f"x{i}", a.shape, DType.of(a)) for i, a in enumerate(arrays)]
        made = function(*tensors, **attrs)
        outputs = [made] if isinstance(made, Tensor) else list(made)
        ctx.forward(*outputs).compute({t: a for t, a in zip(tensors, arrays) if t is not None})
        return [ctx.read(t) for t in outputs]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def error(got: Iterable[Any], want: Iterable[Any]) -> float:
    """The largest difference, relative to the largest number of the array it is in. Shapes must agree."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        assert g.shape == w.shape
        assert g.dtype == np.float32
        worst = max(worst, float(np.abs(g - w).max()) / max(float(np.abs(w).max()), 1e-30))
    return worst
