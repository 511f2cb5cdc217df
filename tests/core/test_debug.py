"""dump and to_dot."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hotshoe_core.debug import dump, to_dot
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import GraphError
from hotshoe_core.reference import open_reference
from hotshoe_core.tensor import constant, scope


def test_dump_of_an_array_and_a_tensor() -> None:
    assert dump(np.array([1.0, 2.25]), precision=1) == "[1.0, 2.2]"
    assert dump(np.arange(2000.0), edge_items=1, precision=0) == "[   0., ..., 1999.]"
    ctx = open_reference().new_context()
    x = ctx.input("x", (2,))
    y = x * 2.0
    ctx.forward(y)
    with pytest.raises(GraphError, match="no value yet"):
        dump(y)
    ctx.compute({x: [1, 2]})
    assert dump(y, precision=1) == "<Tensor affine F32[2]>\n[2.0, 4.0]"


@pytest.mark.parametrize("wrong", [{"edge_items": 0}, {"precision": -1}])
def test_dump_refuses_senseless_options(wrong: dict[str, int]) -> None:
    with pytest.raises(GraphError, match="expected"):
        dump(np.zeros(3), **wrong)


def test_dot_has_every_node_and_every_edge() -> None:
    backend = open_reference()
    ctx = backend.new_context()
    x, at = ctx.input('the "x"', (1, 3)), ctx.input("at", (1,), DType.I32)
    state = backend.state((4, 3), DType.F32, "cache")
    with scope("blk.0", 0):
        rows = x * constant([1.0, 2.0, 3.0]) + x
    new = state.set_rows(at, rows)
    graph = ctx.update(state, new).forward(rows).graph()
    lines = [line.strip() for line in to_dot(graph).splitlines()]
    nodes = {m[1]: m[2] for m in map(re.compile(r'^(n\d+) \[label="([^"]*)".*\];$').match, lines) if m}
    edges = {m.groups() for m in map(re.compile(r"^(n\d+) -> (n\d+);$").match, lines) if m}
    dashed = re.compile(r"^(n\d+) -> (n\d+) \[style=dashed, label=update\];$")
    updates = {m.groups() for m in map(dashed.match, lines) if m}
    tensors = (*graph.leaves, *graph.nodes)
    assert nodes.keys() == {f"n{t.id}" for t in tensors}
    assert nodes[f"n{x.id}"] == "the 'x'\\nF32 [1, 3]"
    assert nodes[f"n{new.id}"] == "set_rows\\nF32 [4, 3]"
    assert edges == {(f"n{s.id}", f"n{t.id}") for t in graph.nodes for s in t.sources if s is not None}
    assert updates == {(f"n{new.id}", f"n{state.id}")}
    assert 'label="blk.0"; color=grey;' in lines
    assert lines[0] == "digraph hotshoe {"
    opened, closed = (sum(line.count(c) for line in lines) for c in "{}")
    assert opened == closed
