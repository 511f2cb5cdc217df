"""Integers and indices: they are exact, and no index reads memory outside its tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.errors import GraphError
from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import dequantize, quantize
from hotshoe_core.tensors.tensor import Tensor, constant
from hotshoe_ggml.lowering import can_lower, ggml_lacks, node_budget
from hotshoe_ggml.native import ffi, lib
from hotshoe_loader import load_all

I32 = DType.I32


@pytest.fixture(name="backend")
def _backend() -> Iterator[Backend]:
    with load_all().open("cpu", BackendParams(n_threads=2)) as backend:
        yield backend


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 700])
def test_argmax_is_the_first_of_equal_numbers_in_rows_of_several_pieces(backend: Backend, n: int) -> None:
    """At any index, among equal numbers, infinities and NaN, which counts as the largest."""
    x = np.sort(normal(8, n))  # each row ascends
    x[1] = x[1, ::-1]
    x[2] = 0.5
    x[3, n // 2 :] = np.inf
    x[4] = -np.inf
    x[5, [0, -1]] = np.nan
    x[6, n // 2 :] = np.nan
    x[7, -1] = np.nan
    with backend.new_context() as ctx:
        tx = ctx.input("x", x.shape)
        best = tx.argmax()
        ctx.forward(best).compute({tx: x})
        np.testing.assert_array_equal(best.read(), np.argmax(x, -1))


@pytest.mark.parametrize("shift", [-1000, -3, 0, 3, 2**30])
def test_computed_indices_stay_within_the_tensor(backend: Backend, shift: int) -> None:
    """Indices that the graph computes are limited to existing rows; ggml would abort, or read other memory."""
    x, table, weight = normal(4, 7), normal(7, 8), normal(7, 5, 8)
    with backend.new_context() as ctx:
        tx, tt, tw = ctx.input("x", x.shape), ctx.input("table", table.shape), ctx.input("weight", weight.shape)
        at = tx.argmax() + shift
        outputs = [
            tt.take(at),
            tx.take_along(tx.argsort() + shift),
            ops.linear_experts(tt[:4].reshape(4, 1, 8), tw, at.reshape(4, 1)),
            ops.add_experts(tt[:4].reshape(4, 1, 8), tt, at.reshape(4, 1)),
            (tt * 1.0).set_rows(at[:1], tt[:1] * 2),
        ]
        ctx.forward(*outputs).compute({tx: x, tt: table, tw: weight})
        got = [t.read() for t in outputs]
    best, order = (np.clip(i + shift, 0, 6) for i in (x.argmax(-1), x.argsort(-1)))
    np.testing.assert_array_equal(got[0], table[best])
    np.testing.assert_array_equal(got[1], np.take_along_axis(x, order, -1))
    np.testing.assert_allclose(got[2][:, 0], np.einsum("ni,noi->no", table[:4], weight[best]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[3][:, 0], table[:4] + table[best], rtol=1e-6)
    changed = table.copy()
    changed[best[0]] = 2 * table[0]
    np.testing.assert_array_equal(got[4], changed)


@pytest.mark.parametrize("kind", ["input", "constant"])
def test_fed_indices_are_checked(backend: Backend, kind: str) -> None:
    far = np.array([[0], [9]], np.int32)
    with backend.new_context() as ctx:
        x, bias = ctx.input("x", (2, 1, 4)), ctx.input("bias", (3, 4))
        at = ctx.input("at", far.shape, I32) if kind == "input" else constant(far)
        ctx.forward(ops.add_experts(x, bias, at))
        feeds = {x: normal(2, 1, 4), bias: normal(3, 4), **({at: far} if kind == "input" else {})}
        with pytest.raises(GraphError, match="holds the index 9; bias has 3 rows"):
            ctx.compute(feeds)


def test_indices_out_of_a_weight_or_a_state_are_limited(backend: Backend) -> None:
    far = np.array([-5, 3, 2**31 - 1], np.int32)
    weight = backend.load([WeightData("ids", (3,), I32, far.view(np.uint8))])["ids"]
    with backend.new_context() as ctx:
        x = ctx.input("x", (4, 2))
        y = x.take(weight)
        array = normal(4, 2)
        np.testing.assert_array_equal(ctx.forward(y).compute({x: array}).read(y), array[[0, 3, 3]])


@pytest.mark.parametrize(
    ("indices", "own_nodes"),
    [
        (lambda x, ids: ids, 0),
        (lambda x, ids: ids.reshape(3, 1)[1:], 0),
        (lambda x, ids: x.argmax(), 1),  # the argmax itself
        (lambda x, ids: x.top_k(2), 1),
        (lambda x, ids: x.argmax() + 1, 3),  # argmax, sum, limit
    ],
)
def test_indices_known_to_fit_cost_nothing(
    backend: Backend, indices: Callable[[Tensor, Tensor], Tensor], own_nodes: int
) -> None:
    with backend.new_context() as ctx:
        x, table, ids = ctx.input("x", (4, 7)), ctx.input("table", (7, 8)), ctx.input("ids", (3,), I32)
        ctx.forward(table.take(indices(x, ids))).reserve()
        cgraph = ctx._executable._cgraph  # type: ignore[union-attr]
        nodes = [lib().ggml_graph_node(cgraph, i) for i in range(lib().ggml_graph_n_nodes(cgraph))]
        assert sum(node.op == lib().GGML_OP_CUSTOM for node in nodes) == own_nodes


def test_nan_is_sorted_last(backend: Backend) -> None:
    """std::sort needs a total order: with NaN it reads beyond the row."""
    x = normal(6, 300)
    x[:, ::3], x[2] = np.nan, np.nan
    with backend.new_context() as ctx:
        t = ctx.input("x", x.shape)
        outputs = [t.argsort(), t.argsort(descending=True), t.top_k(250), t.top_k(5), t.argmax()]
        ctx.forward(*outputs).compute({t: x})
        up, down, many, few, best = (o.read() for o in outputs)
    np.testing.assert_array_equal(up, np.argsort(x, -1, kind="stable"))
    np.testing.assert_array_equal(down, np.argsort(-x, -1, kind="stable"))
    np.testing.assert_array_equal(many, down[:, :250])
    np.testing.assert_array_equal(few, down[:, :5])
    np.testing.assert_array_equal(best, np.argmax(x, -1))


@pytest.mark.parametrize("n", [80, 600])
def test_many_operands(backend: Backend, n: int) -> None:
    x = normal(n, 4)
    with backend.new_context() as ctx:
        t = ctx.input("x", x.shape)
        y = ops.concat(*(t[n - 1 - i] for i in range(n)))
        assert node_budget(y) >= n
        np.testing.assert_array_equal(ctx.forward(y).compute({t: x}).read(y), x[::-1].reshape(-1))


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q4_K, DType.Q8_0, DType.F32])
@pytest.mark.parametrize("per_row", [1, 3])
def test_experts_named_twice(backend: Backend, dtype: DType, per_row: int) -> None:
    """ggml's repacked product has one slot for each row and expert: an expert named twice overflows it."""
    values = normal(8, 64, 256)
    data = quantize(values, dtype) if dtype is not DType.Q4_K else _blocks(values, dtype)
    w = backend.load([WeightData("w", values.shape, dtype, data, ("linear_experts",))])["w"]
    x, experts = normal(9, per_row, 256), (np.arange(27, dtype=np.int32) % 2).reshape(9, 3)
    with backend.new_context() as ctx:
        tx, te = ctx.input("x", x.shape), ctx.input("experts", experts.shape, I32)
        y = ops.linear_experts(tx, w, te)
        got = ctx.forward(y).compute({tx: x, te: experts}).read(y)
    stored = dequantize(data, dtype, values.shape)
    want = np.einsum("nki,nkoi->nko", np.broadcast_to(x, (9, 3, 256)), stored[experts])
    assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)


def _blocks(values: np.ndarray, dtype: DType) -> np.ndarray:
    data = np.empty(dtype.nbytes(values.shape), np.uint8)
    rows = values.size // values.shape[-1]
    source, target = ffi.from_buffer("float[]", values), ffi.from_buffer(data)
    lib().ggml_quantize_chunk(dtype.id, source, target, 0, rows, values.shape[-1], ffi.NULL)
    return data


def test_ggml_does_not_rotate_odd_heads() -> None:
    at = Tensor("input", (), {}, (3,), I32, name="positions")
    for dim, native in ((8, True), (9, False), (10, True)):
        x = Tensor("input", (), {}, (3, 2, dim), DType.F32, name="x")
        assert can_lower(ops.rope(x, at, config=RoPE(8))) is native


def test_nodes_that_ggml_lacks() -> None:
    x = Tensor("input", (), {}, (3, 2), DType.F32, name="x")
    i = Tensor("input", (), {}, (3, 2), I32, name="i")
    rest = ((x < 1, True), (i < 1, False), (x <= 1, False), (x.round(), False), (x.clamp(0), True))
    for node, elsewhere in ((x + x, True), (i + i, False), *rest):
        assert can_lower(node)
        assert ggml_lacks(node) is not elsewhere


def test_large_integers_are_exact(backend: Backend) -> None:
    i = np.array([2**24 + 1, 2**31 - 1, -(2**31), 7], np.int32)
    with backend.new_context() as ctx:
        t = ctx.input("i", i.shape, I32)
        two = constant(np.array(2, np.int32))
        outputs = [t + 1, t * 3, t // 2, t % 1000, -t, t.equal(t + two), abs(t), t.minimum(2**24)]
        ctx.forward(*outputs).compute({t: i})
        got = [o.read() for o in outputs]
    with np.errstate(all="ignore"):
        want = [i + 1, i * 3, i // 2, i % 1000, -i, (i == i + 2).astype("f4"), np.abs(i), np.minimum(i, 2**24)]
    for g, w in zip(got, want):
        np.testing.assert_array_equal(g, w)
