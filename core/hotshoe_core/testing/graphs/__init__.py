"""Cases with several ops in one graph, for errors between ops.

There is a module for each theme. Each function makes a graph and returns the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.testing.graphs import layers, states, values  # noqa: F401  (they fill the list)
from hotshoe_core.testing.graphs._graph import cases
from hotshoe_core.testing.run import GraphCase

__all__ = ["GRAPH_CASES"]

GRAPH_CASES: Sequence[GraphCase] = cases
