"""Lowering: one function an op, from core's tensors to ggml's.

ggml counts axes the other way round, and a ggml tensor always has four: a shape (batch, n, dim) is
``ne = [dim, n, batch, 1]``. That stays inside this package. What an op of ggml demands of the memory of its
operands is met here, by a copy (``ggml_cont``) where it must be and only there.

A module for each theme, as in ``hotshoe_core.ops``. ``@lowers("op")`` enters a function in the table LOWERINGS;
``@lowers("op", when=predicate)`` says which nodes it covers.
"""

from hotshoe_ggml.lowering import (  # noqa: F401  (they fill the table)
    attention,
    convolution,
    elementwise,
    matrix,
    movement,
    recurrent,
    reduce,
)
from hotshoe_ggml.lowering.builder import LOWERINGS, Builder, can_lower, extents, node_budget
from hotshoe_ggml.lowering.matrix import lower_fused

__all__ = ["LOWERINGS", "Builder", "can_lower", "extents", "lower_fused", "node_budget"]
