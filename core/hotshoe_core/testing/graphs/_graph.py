"""The list of graph cases, and the decorator that adds a function to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing.run import F32, GraphCase, Maker

F16, Q8_0 = DType.F16, DType.Q8_0

cases: list[GraphCase] = []

Body = Callable[[Maker], Sequence[Tensor]]


def graph(*dtypes: DType) -> Callable[[Body], Body]:
    """Add a function to the cases. ``dtypes``: the types, in addition to F32, that decide the tolerance."""

    def add(body: Body) -> Body:
        cases.append(GraphCase(body.__name__, body, frozenset({F32, *dtypes})))
        return body

    return add
