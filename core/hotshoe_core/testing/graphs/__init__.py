"""Several ops in one graph: what goes wrong between ops rather than in one.

A module for each theme; a function there makes the graph and returns the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.testing.graphs import layers, states, values  # noqa: F401  (they fill the list)
from hotshoe_core.testing.graphs._graph import cases
from hotshoe_core.testing.run import GraphCase

__all__ = ["GRAPH_CASES"]

GRAPH_CASES: Sequence[GraphCase] = cases
