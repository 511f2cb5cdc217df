"""Random graphs: any ops of the table, one on another, states included, as cases of the conformance kit.

A graph is made by a seed and a number of nodes, and one of fewer nodes is the beginning of it: so a failure shrinks to
the node that brings it about. Values stay bounded, and what jumps (rounding, comparing, sorting) is applied to values
that no backend rounds: then two right backends differ by rounding only. Graphs of an even seed hold nothing below F32
that a product rounds its operands to, so that they may be compared closely.
"""

from __future__ import annotations

from collections.abc import Sequence

import tests.fuzz.graph_layers
import tests.fuzz.graph_values  # noqa: F401  (they fill the table of steps)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing import GraphCase, Maker
from tests.fuzz.grower import Grower

__all__ = ["random_graph"]


def random_graph(seed: int, n_nodes: int) -> GraphCase:
    """A graph of about ``n_nodes`` steps, each of one op or a few."""

    def body(make: Maker) -> Sequence[Tensor]:
        return Grower(make, seed).grow(n_nodes)

    dtypes = frozenset({DType.F32, DType.F16, DType.BF16, DType.Q8_0})
    return GraphCase(f"seed {seed}, {n_nodes} nodes", body, dtypes)
