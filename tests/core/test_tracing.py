"""Tracing and lowering: from a tensor to the graph that a backend gets."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import GraphError, HotshoeError, UnsupportedOpError
from hotshoe_core.graphs.context import Context
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.ops import rms_norm, rsqrt, swiglu
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import TABLE, Tensor, nodes_created


def context() -> Context:
    return open_reference().new_context()


def leaf(shape: tuple[int, ...]) -> Tensor:
    return context().input("x", shape, DType.F32)


def primitives(node: Tensor) -> bool:
    return not TABLE[node.op].composite


def test_composites_become_primitives_step_by_step() -> None:
    ctx = context()
    x = ctx.input("x", (2, 4))
    with scope("blk.0", 0):
        y = swiglu(rms_norm(x, eps=1e-5), rsqrt(x))
    graph, lowered = lower(Graph.trace([y]), primitives)
    assert all(primitives(n) for n in graph.nodes)
    assert {op for _, op in graph.decomposed} == {"swiglu", "rms_norm", "rsqrt", "reciprocal"}
    assert graph.outputs == (lowered[y],)
    assert {n.layer for n in graph.nodes} == {0}
    assert {n.name.split(".")[:2] == ["blk", "0"] for n in graph.nodes} == {True}
    kept, same = lower(Graph.trace([y]), lambda node: True)
    assert (kept.decomposed, same[y]) == ((), y)


def test_a_primitive_without_a_lowering_is_named() -> None:
    x = leaf((2, 4))
    with pytest.raises(UnsupportedOpError, match=r"rms_norm.*primitive op sqrt.*F32\[2, 1\]"):
        lower(Graph.trace([rms_norm(x, eps=1e-5)]), lambda n: n.op != "sqrt" and primitives(n))


def test_a_deep_graph_meets_no_recursion_limit() -> None:
    n = 5000
    assert n > sys.getrecursionlimit()
    ctx = context()
    x = y = ctx.input("x", (2,))
    for i in range(n):
        y = rsqrt(y + 1.0) if i % 1000 == 0 else y * 0.999
    graph, lowered = lower(Graph.trace([y]), primitives)
    assert len(graph.nodes) > n
    place = {t: i for i, t in enumerate((*graph.leaves, *graph.nodes))}
    assert all(place[s] < place[t] for t in graph.nodes for s in t.sources if s is not None)
    want: Any = np.array([3.0, 0.5], np.float32)
    for i in range(n):
        want = 1 / np.sqrt(want + 1) if i % 1000 == 0 else want * np.float32(0.999)
    got = ctx.forward(y).compute({x: [3, 0.5]}).read(y)
    assert graph.outputs == (lowered[y],)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_counting_nodes_makes_none() -> None:
    before = nodes_created()
    assert nodes_created() == before
    leaf((1,))
    assert nodes_created() == before + 1


def test_an_unused_node_is_not_part_of_the_graph() -> None:
    x = leaf((2,))
    _ = x.exp()
    graph = Graph.trace([x * 2])
    assert [n.op for n in graph.nodes] == ["affine"]
    assert graph.inputs == (x,)
    assert issubclass(GraphError, HotshoeError)
