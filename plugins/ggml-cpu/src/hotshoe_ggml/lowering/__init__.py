"""Lowering: one function for each op, from core's tensors to ggml's.

ggml counts axes in reverse, and a ggml tensor always has four: a shape (batch, n, dim) is ``ne = [dim, n, batch, 1]``.
Only this package and ``native.context`` know that. Some of ggml's ops need contiguous operands: lowerings copy them
(``ggml_cont``) where necessary.

There is a module for each theme, as in ``hotshoe_core.ops``. ``@lowers("op", when=predicate)`` registers a function in
the table LOWERINGS and says which nodes it covers. A lowering never asks which device it is for: a unit with other
kernels has a subclass of Builder that overrides methods. A builder may ask whether its device runs a node, and make
another one.
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
from hotshoe_ggml.lowering.builder import Builder, Fusion
from hotshoe_ggml.lowering.routing import DeviceBuilder
from hotshoe_ggml.lowering.table import LOWERINGS, can_lower, ggml_lacks, node_budget

__all__ = ["LOWERINGS", "Builder", "DeviceBuilder", "Fusion", "can_lower", "ggml_lacks", "node_budget"]
