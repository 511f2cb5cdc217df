"""Find out whether a backend computes each op and type itself, leaves it to core to decompose, or refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from hotshoe_core.errors import HotshoeError
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor
from hotshoe_core.testing.operands import Case

__all__ = ["Outcome", "dtype_of", "outcome", "outcomes"]

Outcome = Literal["native", "decomposed", "no"]
Supports = Callable[[Tensor], bool]


def outcomes(cases: Iterable[Case], supports: Supports) -> dict[str, dict[DType, set[Outcome]]]:
    """The outcomes by op and element type; several if the outcome depends on shapes or attributes."""
    found: dict[str, dict[DType, set[Outcome]]] = {}
    for case in cases:
        found.setdefault(case.op, {}).setdefault(dtype_of(case), set()).add(outcome(case, supports))
    return found


def outcome(case: Case, supports: Supports) -> Outcome:
    """The outcome of one case according to ``supports``. Nothing is computed."""
    sources = [None if a is None else Tensor("input", (), {}, a.shape, a.dtype, name="x") for a in case.args]
    node = TABLE[case.op](*sources, **case.attrs)
    if supports(node):
        return "native"
    try:
        lower(Graph.trace([node]), supports)
    except HotshoeError:
        return "no"
    return "decomposed"


def dtype_of(case: Case) -> DType:
    """The type that distinguishes cases of an op: the first type of its operands, except indices, that is not F32."""
    indices = {i.indices for i in TABLE[case.op].indexed}
    types = [a.dtype for i, a in enumerate(case.args) if a is not None and i not in indices]
    types = [d for d in types if not d.is_integer] or types or [DType.I32]
    return next((d for d in types if d is not DType.F32), DType.F32)
