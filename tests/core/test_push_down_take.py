"""Rows that nothing reads are not computed, and the other rows do not change."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hotshoe_core import DType, Tensor, ops
from hotshoe_core.contract.backend import Backend
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.graphs import push_down_take
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.graphs.push_down_take import narrowed
from hotshoe_core.tensors.tensor import TABLE, constant
from hotshoe_core.testing.cases import OP_CASES
from hotshoe_core.testing.operands import Case
from hotshoe_core.testing.run import Maker, error

I32 = DType.I32


def _cases() -> list[Case]:
    """Cases with float32 and integers, of ops that work row by row; other types do not matter here."""
    plain = {DType.F32, I32, DType.I64}
    return [case for case in OP_CASES if TABLE[case.op].by_row is not None and case.dtypes <= plain]


def _graph_of_rows(case: Case, make: Maker) -> tuple[Graph, Tensor] | None:
    """A graph that takes the last row of a case's result, and the first one if it has several; None without rows."""
    (y,) = case.build(make)
    if y.ndim < 2 or len(y) < 2 or y.dtype.is_quantized:
        return None
    taken = y.take(constant(np.array([len(y) - 1, 0][: len(y) - 1], np.int32)))
    return Graph.trace([taken]), taken


def _compute(backend: Backend, graph: Graph, output: Tensor, make: Maker) -> np.ndarray:
    graph, lowered = lower(graph, backend.supports)
    executable = backend.compile(graph)
    try:
        for tensor, array in make.feeds(0).items():
            if tensor in graph.inputs:
                executable.write(tensor, np.ascontiguousarray(array).reshape(tensor.shape))
        executable.run()
        out = np.empty(output.shape, output.dtype.numpy)
        executable.read(lowered[output], out)
        return out
    finally:
        executable.close()


@pytest.fixture
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Push down every take, even if it saves only a few rows."""
    monkeypatch.setattr(push_down_take, "_takes_few", lambda node: node.op == "take" and not node.sources[0].is_leaf)


@pytest.mark.usefixtures("any_number")
@pytest.mark.parametrize("op", sorted({case.op for case in _cases()}))
def test_rows_of_an_op_are_the_op_of_rows(op: str) -> None:
    """The row operands in the op table are correct for the kit's cases, and each op has a case with rows."""
    n_narrow = 0
    with open_reference() as backend:
        for case in (case for case in _cases() if case.op == op):
            make = Maker(backend, case.id)
            try:
                if (built := _graph_of_rows(case, make)) is None:
                    continue
                graph, taken = built
                narrow, stands_for = narrowed(graph)
                if all(node.shape[:1] != taken.sources[0].shape[:1] for node in narrow.nodes if node.op == op):
                    n_narrow += 1
                expected = _compute(backend, graph, taken, make)
                got = _compute(backend, narrow, stands_for[taken], make)
                assert error(got, expected) < 1e-5, case.id
            finally:
                make.close()
    assert n_narrow


def _layers(ctx, n: int, n_layers: int, indices: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Attention and a product for each layer, and the keys, which have another reader."""
    weight = constant(np.eye(8, dtype=np.float32), "w")
    x, keys = ctx.input("x", (n, 8)), []
    mask = ctx.input("mask", (n, n))
    positions = ctx.input("positions", (n,), I32)
    rope = ops.RoPE(dim=4)
    for _ in range(n_layers):
        h = ops.rms_norm(x, eps=1e-6)
        q, k, v = (ops.linear(h, weight).reshape(n, 2, 4) for _ in range(3))
        q, k = (ops.rope(t, positions, config=rope) for t in (q, k))
        keys.append(k)
        x = x + ops.linear(ops.attention(q, k, v, mask, scale=0.5).reshape(n, 8), weight)
        x = x + ops.swiglu(ops.linear(x, weight), ops.linear(x, weight))
    return (x if indices is None else x.take(indices)), keys


@pytest.mark.parametrize(("n", "k"), [(40, 1), (40, 2), (20, 16), (9, 1), (8, 1)])
def test_in_the_last_layer_only_keys_and_values_have_all_rows(n: int, k: int) -> None:
    with open_reference() as backend, backend.new_context() as ctx:
        y, _ = _layers(ctx, n, 2, ctx.input("indices", (k,), I32))
        graph, _ = narrowed(Graph.trace([y]))
        of_rows = Counter(node.shape[0] for node in graph.nodes if node.op == "linear")
        few = n - k >= 8 and 2 * k <= n
        # 6 products a layer; the first layer's and the last one's keys and values are whole
        assert of_rows == (Counter({n: 6 + 2, k: 4}) if few else Counter({n: 12}))


def test_a_value_with_other_readers_keeps_all_rows() -> None:
    """Other readers are an output, an update of a state, and another ``take``."""
    with open_reference() as backend, backend.new_context() as ctx:
        a, b = ctx.input("a", (1,), I32), ctx.input("b", (1,), I32)
        x = ctx.input("x", (32, 8))
        h = x.silu()
        first, second, summed = h.exp(), h.sin(), h.cos()
        state = backend.state((32, 8), DType.F32, "s")
        outputs = [first.take(a), second.take(b), summed.take(a), summed.sum()]
        ctx.forward(*outputs)
        ctx.update(state, second)
        graph, _ = narrowed(ctx.graph())
        shapes = {node.op: node.shape for node in graph.nodes if node.op in ("silu", "exp", "sin", "cos")}
        assert shapes == {"silu": (32, 8), "exp": (1, 8), "sin": (32, 8), "cos": (32, 8)}
        values = np.random.default_rng(0).standard_normal((32, 8), np.float32)
        ctx.compute({x: values, a: np.array([3]), b: np.array([5])})
        silu = values / (1 + np.exp(-values))
        for output, expected in zip(outputs, (np.exp(silu)[[3]], np.sin(silu)[[5]], np.cos(silu)[[3]])):
            np.testing.assert_allclose(ctx.read(output), expected, rtol=1e-5)
        np.testing.assert_allclose(_value(backend, state), np.sin(silu), rtol=1e-5)


def _value(backend: Backend, state: Tensor) -> np.ndarray:
    with backend.new_context() as ctx:
        read = state.cast(DType.F32) * 1.0
        return ctx.forward(read).compute().read(read)


def test_a_take_of_a_value_with_all_rows_does_not_change() -> None:
    """Its source is float16 and has another reader. A second take in the graph is pushed down."""
    with open_reference() as backend, backend.new_context() as ctx:
        x, a = ctx.input("x", (32, 8)), ctx.input("a", (1,), I32)
        half = x.cast(DType.F16)
        of_half, of_exp = half.take(a), x.exp().take(a)
        graph, _ = narrowed(Graph.trace([half, of_half, of_exp]))
        assert of_half in graph.nodes
        assert of_exp not in graph.nodes
        assert [node.op for node in graph.nodes].count("cast") == 1


def test_a_take_by_computed_indices_is_not_pushed_down() -> None:
    """The indices may depend on the rows that would not be computed."""
    with open_reference() as backend, backend.new_context() as ctx:
        x = ctx.input("x", (32, 8))
        y = x.exp()
        graph = Graph.trace([y.take(y.sum().reshape(1, 32).argmax())])
        assert narrowed(graph)[0] is graph


def test_half_types_keep_their_type() -> None:
    with open_reference() as backend, backend.new_context() as ctx:
        x, indices = ctx.input("x", (32, 8)), ctx.input("indices", (2,), I32)
        y = (x.cast(DType.F16) + x.exp().cast(DType.F16)).cast(DType.F16)
        ctx.forward(out := y.take(indices))
        values = np.random.default_rng(0).standard_normal((32, 8), np.float32)
        ctx.compute({x: values, indices: np.array([31, 4])})
        half = values.astype(np.float16).astype(np.float32) + np.exp(values).astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(ctx.read(out), half.astype(np.float16).astype(np.float32)[[31, 4]])


def test_a_take_out_of_range_is_refused_as_before() -> None:
    with open_reference() as backend, backend.new_context() as ctx:
        x, indices = ctx.input("x", (32, 8)), ctx.input("indices", (1,), I32)
        ctx.forward(x.exp().take(indices))
        with pytest.raises(Exception, match="32"):
            ctx.compute({x: np.zeros((32, 8), np.float32), indices: np.array([32])})
