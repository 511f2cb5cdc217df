"""Tensors without a backend: shape and type rules compared with NumPy, messages, contexts, updates, decomposition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hotshoe_core.contract.backend import Backend
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import DTypeError, GraphError, HotshoeError, ShapeError
from hotshoe_core.graphs.context import Context
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.ops import add, concat, l2_norm, layer_norm, linear, rms_norm
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import TABLE, Tensor, constant

shapes = hnp.array_shapes(min_dims=0, max_dims=4, max_side=4)


def context() -> Context:
    return open_reference().new_context()


def leaf(shape: tuple[int, ...], dtype: DType = DType.F32) -> Tensor:
    return context().input("x", shape, dtype)


def value(tensor: Tensor, **arrays: Any) -> np.ndarray[Any, Any]:
    ctx = tensor.context
    assert ctx is not None
    return ctx.forward(tensor).compute({ctx.inputs[k]: v for k, v in arrays.items()}).read(tensor)


# Shapes, by NumPy


@given(shapes, shapes)
def test_broadcasting_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    ctx = context()
    x, y = ctx.input("x", a), ctx.input("y", b)
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            add(x, y)
    else:
        assert (x + y).shape == (x * y).shape == want


@given(shapes, shapes)
def test_matmul_shapes_are_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    ctx = context()
    x, y = ctx.input("x", a), ctx.input("y", b)
    try:
        if len(a) < 2 or len(b) < 2:
            raise ValueError
        want = np.matmul(np.zeros(a), np.zeros(b)).shape
    except ValueError:
        with pytest.raises(ShapeError):
            x @ y
    else:
        assert (x @ y).shape == want


@given(shapes, st.lists(st.integers(-2, 6), max_size=4))
def test_reshape_is_numpys(shape: tuple[int, ...], new: list[int]) -> None:
    x = leaf(shape)
    try:
        if min(new, default=1) < -1:
            raise ValueError  # NumPy takes any negative number for -1
        want = np.zeros(shape).reshape(new).shape
    except ValueError:
        with pytest.raises(ShapeError):
            x.reshape(*new)
    else:
        assert x.reshape(*new).shape == want


@given(shapes, st.data())
def test_permute_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    negative = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(value(leaf(shape).permute(*negative), x=x), x.transpose(axes))


@settings(max_examples=200)
@given(shapes.filter(len), st.data())
def test_indexing_is_numpys(shape: tuple[int, ...], data: st.DataObject) -> None:
    key = data.draw(hnp.basic_indices(shape, allow_ellipsis=True, allow_newaxis=True, max_dims=6))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    want = x[key]
    steps = [k.step for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, slice)]
    if want.size == 0 or any(s is not None and s < 0 for s in steps):
        with pytest.raises(ShapeError):
            leaf(shape)[key]
        return
    y = leaf(shape)[key]
    assert y.shape == want.shape
    np.testing.assert_array_equal(value(y, x=x), want)


@pytest.mark.parametrize("key", [3, -4, (0, 0, 0), (..., ...), 1.5, "a", [0, 1], slice(None, None, -1), slice(2, 2)])
def test_indices_that_are_refused(key: Any) -> None:
    with pytest.raises(ShapeError):
        leaf((3, 4))[key]


@given(shapes, st.integers(-5, 5), st.booleans(), st.sampled_from(["sum", "mean", "variance"]))
def test_reductions_are_numpys(shape: tuple[int, ...], axis: int, keepdims: bool, name: str) -> None:
    x = leaf(shape)
    if not -len(shape) <= axis < len(shape):
        with pytest.raises(ShapeError, match="out of range"):
            TABLE[name](x, axis=axis, keepdims=keepdims)
        return
    y = TABLE[name](x, axis=axis, keepdims=keepdims)
    assert y.shape == np.zeros(shape).sum(axis=axis, keepdims=keepdims).shape


@given(st.lists(hnp.array_shapes(min_dims=1, max_dims=3, max_side=3), min_size=1, max_size=3), st.integers(-4, 3))
def test_concat_is_numpys(parts: list[tuple[int, ...]], axis: int) -> None:
    ctx = context()
    tensors = [ctx.input(str(i), s) for i, s in enumerate(parts)]
    try:
        want = np.concatenate([np.zeros(s) for s in parts], axis).shape
    except ValueError:
        with pytest.raises(ShapeError):
            concat(*tensors, axis=axis)
    else:
        assert concat(*tensors, axis=axis).shape == want


def test_sizes_of_zero_cannot_be_made() -> None:
    x = leaf((1, 3))
    makes: tuple[Callable[[], Tensor], ...]
    makes = (lambda: x.expand(0, 3), lambda: x.reshape(0, 3), lambda: x[:0], lambda: constant(np.zeros((0, 2))))
    for make in makes:
        with pytest.raises(ShapeError):
            make()


# Types


def test_arithmetic_gives_f32_and_movement_keeps_the_type() -> None:
    for dtype in (DType.F16, DType.F32, DType.F64):
        x = leaf((2, 4), dtype)
        assert {t.dtype for t in (x + x, x * 2, x.exp(), x.sum(), x.softmax(), x @ x.T)} == {DType.F32}
        assert {t.dtype for t in (x.T, x[0], x.reshape(8), x.expand(3, 2, 4), concat(x, x))} == {dtype}
    assert leaf((2,)).cast(DType.F16).dtype is DType.F16
    x = leaf((2,))
    assert x.cast(DType.F32) is x
    assert {t.dtype for t in (x.argmax(), x.argsort(), x.top_k(1))} == {DType.I32}
    assert constant([1.0, 2.0]).dtype is DType.F32
    assert constant(np.zeros(2)).dtype is DType.F64


def test_blocks_of_quantized_types_stay_whole() -> None:
    w = open_reference().state((4, 64), DType.Q8_0, "w")
    assert w[1:3, 32:].shape == (2, 32)
    makes: tuple[Callable[[], Tensor], ...]
    makes = (lambda: w.T, lambda: w[:, 1:33], lambda: w[:, ::2], lambda: w.reshape(64, 4), lambda: w @ w)
    for make in makes:
        with pytest.raises((DTypeError, ShapeError), match=r"Q8_0\[4, 64\]"):
            make()


# Messages


def test_an_error_names_op_shapes_and_part_of_the_model() -> None:
    x = leaf((2, 3))
    weight = constant(np.zeros((5, 4), np.float32))
    with scope("blk.7", 7), scope("attn_q"), pytest.raises(ShapeError) as caught:
        linear(x, weight)
    message = str(caught.value)
    for part in ("linear(x F32[2, 3], weight F32[5, 4])", "in blk.7.attn_q", "(3)", "(4)"):
        assert part in message
    assert isinstance(caught.value, ValueError)


def test_wrong_calls_say_what_is_expected() -> None:
    x: Any = leaf((2, 3))
    array: Any = np.zeros(3)
    wrong: list[tuple[Any, str]] = [
        (lambda: add(x), "takes"),
        (lambda: add(x, array), "hotshoe_core.constant"),
        (lambda: rms_norm(x), "needs the attribute eps"),
        (lambda: rms_norm(x, eps=1, epsilon=2), "no attribute epsilon"),
        (lambda: concat(), "one tensor or more"),
    ]
    for call, expected in wrong:
        with pytest.raises(GraphError, match=expected):
            call()
    for norm in (l2_norm, rms_norm, layer_norm):
        for eps in (-1, float("nan"), float("inf")):
            with pytest.raises(ShapeError, match="expected a finite number of 0 or more"):
                norm(x, eps=eps)
    symbolic: list[Any] = [lambda: bool(x), lambda: list(x), lambda: np.asarray(x), lambda: len(x.sum().sum())]
    for use in symbolic:
        with pytest.raises(TypeError):
            use()
    with pytest.raises(ZeroDivisionError):
        x / 0


def test_numbers_of_numpy_mean_what_those_of_python_mean() -> None:
    """-np.uint8(3) is 253, and 1 / np.float16(2e-7) is infinite."""
    minus: list[tuple[Any, int]] = [(np.uint8(3), 7), (np.int8(-128), 138)]
    for number, expected in minus:
        assert value(leaf((1,)) - number, x=[10]) == expected
    assert np.isfinite(value(leaf((1,)) / np.float16(2e-7), x=[1]))
    whole = leaf((1,), DType.I32)
    assert value(whole.equal(np.int64(10)), x=[10]) == 1


def test_names_and_layers_come_from_the_scope() -> None:
    ctx = context()
    x = ctx.input("x", (2,))
    with scope("layer.3", 3), scope("mlp"):
        y = x * 2
    assert (y.name, y.layer) == ("layer.3.mlp.affine", 3)
    assert ((x * 2).name, (x * 2).layer) == ("affine", -1)


def test_a_failed_scope_ends_too() -> None:
    with pytest.raises(RuntimeError), scope("a", 1):
        raise RuntimeError
    assert leaf((1,)).exp().name == "exp"


# Contexts


def test_operands_of_two_contexts_do_not_mix() -> None:
    x, y = leaf((2,)), leaf((2,))
    with pytest.raises(GraphError, match="two contexts"):
        x + y
    with pytest.raises(GraphError, match="another context"):
        context().forward(x * 2)


def test_a_compiled_graph_does_not_grow() -> None:
    ctx = context()
    x = ctx.input("x", (2,))
    ctx.forward(x * 2).reserve()
    grows: list[Callable[[], object]] = [lambda: ctx.input("y", (2,)), lambda: ctx.forward(x * 3)]
    for grow in grows:
        with pytest.raises(GraphError, match="cannot grow"):
            grow()


def test_what_a_context_refuses() -> None:
    ctx = context()
    x = ctx.input("x", (2,))
    with pytest.raises(GraphError, match="already"):
        ctx.input("x", (2,))
    with pytest.raises(GraphError, match="nothing to compute"):
        ctx.reserve()
    with pytest.raises(DTypeError, match="Q8_0"):
        ctx.input("q", (2, 32), DType.Q8_0)
    y, z = x * 2, x * 3
    ctx.forward(y).compute({x: [1, 2]})
    with pytest.raises(GraphError, match="not an output"):
        ctx.read(z)
    with pytest.raises(GraphError, match="not belong to a context"):
        constant([1.0]).read()
    with pytest.raises(DTypeError, match="do not fit"):
        ctx.compute({x: [2**24 + 1, 0]})
    np.testing.assert_array_equal(ctx.compute({x: [2**24, 0]}).read(y), [2**25, 0])
    read_only = np.zeros(2, np.float32)
    read_only.flags.writeable = False
    for out in (read_only, np.zeros(3, np.float32), np.zeros(2), np.zeros(4, np.float32)[::2]):
        with pytest.raises(ShapeError, match="contiguous writable"):
            ctx.read(y, out)
    assert not read_only.any()


def test_arguments_of_the_wrong_type_are_refused_where_they_are_passed() -> None:
    ctx: Any = context()
    x = ctx.input("x", (2,))
    y, state = x * 2, ctx.backend.state((2,), DType.F32, "s")
    whole = constant(np.array([1, 2], np.int32))
    wrong: list[tuple[Any, str]] = [
        (lambda: ctx.forward(...), "the argument of forward is Ellipsis"),
        (lambda: ctx.update(x, 3), "the new value of x is 3"),
        (lambda: ctx.update(None, y), "the state to update is None"),
        (lambda: ctx.fed("x"), "the input is 'x'"),
        (lambda: ctx.input(5, (2,)), "the name of a new input is 5"),
        (lambda: ctx.input("y", 2), "the shape is 2"),
        (lambda: ctx.input("y", (1.5,)), "sizes must be integers, got 1.5"),
        (lambda: ctx.input("y", (2,), "f32"), "element type is 'f32' .* DType.F32"),
        (lambda: ctx.backend.state((2,), DType.F32, ["s"]), "the name of a new state is"),
        (lambda: ctx.backend.state((2,), DType.F32, "s", layer=1.5), "layer is 1.5"),
        (lambda: x.cast("f16"), "dtype is 'f16'; expected a DType"),
        *(
            (
                lambda value=value: whole.equal(value),
                r"cannot combine .* with .* \((float|int)\)",
            )
            for value in (float("inf"), float("nan"), 0.5, 2**31, 10**400)
        ),
        (lambda: x - 10**400, r"^10+… \(int\) is too large for a float$"),
        (lambda: x * 10**5000, r"^of type int, and cannot be shown \(int\) is too large for a float$"),
        (lambda: x / 10**400, r"^10+… \(int\) is too large for a float$"),
        (lambda: x.maximum(10**400), r"^10+… \(int\) is too large for a float$"),
        (lambda: whole / 10**5000, r"cannot combine <Tensor constant I32.* with of type int(.|\n)*x.cast\(F32\)"),
        (lambda: x * np.complex64(1j), "got complex64, expected a Tensor"),
        (lambda: x.chunk(10**300), "does not divide into 10{78}… equal parts"),
        (lambda: x.softmax(scale=10**5000), r"^softmax\(x F32\[2\], scale=of type int.*: scale is of type int"),
        (
            lambda: x.softmax(scale=10**300),
            r"^softmax\(x F32\[2\], scale=10{78}…\): scale is 10{58}…; expected a number",
        ),
        (lambda: x.sum(keepdims=np.zeros(0)), "keepdims is"),
        (lambda: x.chunk(1.5), "chunk: n is 1.5"),
        (lambda: x.chunk(2, axis=float("nan")), "chunk: axis is nan"),
        (lambda: constant(x), "is a Tensor already"),
        (lambda: DType.parse(3), "name of an element type is 3"),
        (lambda: ctx.forward(y).compute(3), "the inputs are 3"),
        (lambda: ctx.compute({"x": [1, 2]}), "an input is 'x'"),
        (lambda: ctx.compute({x: [[1], [1, 2]]}), "which is not an array"),
        (lambda: ctx.compute({x: [1, 2]}).read(y, out=[0, 0]), "out is"),
        (lambda: ctx.read(None), "the tensor to read is None"),
    ]
    for call, says in wrong:
        with pytest.raises(HotshoeError, match=says):
            call()
    np.testing.assert_array_equal(ctx.compute({x: [1, 2]}).read(y), [2, 4])
    assert state.shape == (2,)


def test_a_users_seterr_changes_nothing() -> None:
    """Values that become 0, infinite or NaN in a type do so with any setting of numpy.seterr."""
    ctx = context()
    x, y = ctx.input("x", (3,)), ctx.input("y", (3,), DType.F16)
    z, w = (x * x).cast(DType.F16), x.log()
    feeds = {x: np.array([1e-300, 1e300, -1.0]), y: np.array([1e-30, 1e30, 0.0])}
    with np.errstate(all="raise"):
        ctx.forward(z, y, w).compute(feeds)
        np.testing.assert_array_equal(z.read(), np.array([0, np.inf, 1], np.float16))
        np.testing.assert_array_equal(y.read(), np.array([0, np.inf, 0], np.float16))
        np.testing.assert_array_equal(w.read(), np.array([-np.inf, np.inf, np.nan], np.float32))


# Updates of states


def update_of(backend: Backend) -> tuple[Context, Tensor, Tensor]:
    ctx = backend.new_context()
    state = backend.state((4, 2), DType.F32, "cache")
    return ctx, state, state.set_rows(ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 2)))


def filled(backend: Backend, rows: Any) -> Tensor:
    rows = np.asarray(rows, np.float32)
    state = backend.state(rows.shape, DType.F32, "state")
    with backend.new_context() as ctx:
        x = ctx.input("x", rows.shape)
        ctx.update(state, x).compute({x: rows})
    return state


def value_of(backend: Backend, state: Tensor) -> np.ndarray[Any, Any]:
    with backend.new_context() as ctx:
        return ctx.forward(state).compute().read(state)


def test_reads_of_a_state_see_the_value_before_its_update() -> None:
    backend = open_reference()
    ctx, state, new = update_of(backend)
    before, after = state * 2.0, new * 2.0
    ctx.update(state, new).forward(after, before, state, new)
    feeds = {ctx.inputs["at"]: [1], ctx.inputs["rows"]: [[3, 4]]}
    for step in range(2):
        ctx.compute(feeds)
        old = np.zeros((4, 2)) if step == 0 else [[0, 0], [3, 4], [0, 0], [0, 0]]
        np.testing.assert_array_equal(ctx.read(state), old)
        np.testing.assert_array_equal(ctx.read(before), np.multiply(2, old))
        np.testing.assert_array_equal(ctx.read(new), [[0, 0], [3, 4], [0, 0], [0, 0]])
        np.testing.assert_array_equal(ctx.read(after), [[0, 0], [6, 8], [0, 0], [0, 0]])


def test_a_state_takes_any_value() -> None:
    backend = open_reference()
    h = filled(backend, [[1, 2], [3, 4]])
    ctx = backend.new_context()
    x = ctx.input("x", (2, 2))
    ctx.update(h, h * 0.5 + x).forward(h)
    for _ in range(3):
        ctx.compute({x: np.ones((2, 2))})
    np.testing.assert_allclose(value_of(backend, h), [[1.875, 2], [2.125, 2.25]])
    np.testing.assert_allclose(ctx.read(h), [[1.75, 2], [2.25, 2.5]])


def test_states_trade_their_values() -> None:
    backend = open_reference()
    a, b = filled(backend, [[1, 2]]), filled(backend, [[3, 4]])
    ctx = backend.new_context().update(a, b).update(b, a).forward(a)
    ctx.compute()
    np.testing.assert_array_equal(value_of(backend, a), [[3, 4]])
    np.testing.assert_array_equal(value_of(backend, b), [[1, 2]])
    shifted = backend.new_context().update(a, a.set_rows(constant(np.array([0])), b))
    shifted.update(b, a).compute()
    np.testing.assert_array_equal(value_of(backend, b), [[3, 4]])
    np.testing.assert_array_equal(value_of(backend, a), [[1, 2]])


def test_a_value_that_was_read_stays_when_the_state_changes() -> None:
    backend = open_reference()
    ctx, state, new = update_of(backend)
    seen = new[1:3]
    ctx.update(state, new).forward(seen).compute({ctx.inputs["at"]: [1], ctx.inputs["rows"]: [[3, 4]]})
    other, _, later = update_of(backend)
    later = state.set_rows(other.inputs["at"], other.inputs["rows"])
    other.update(state, later).compute({other.inputs["at"]: [1], other.inputs["rows"]: [[5, 6]]})
    np.testing.assert_array_equal(ctx.read(seen), [[3, 4], [0, 0]])


def in_place(build: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Sequence[Tensor]]]) -> list[bool]:
    """For each set_rows of a graph, in order, whether it may work in place. Also checks the order."""
    ctx, state, _ = update_of(open_reference())
    new, outputs = build(state, ctx.inputs["at"], ctx.inputs["rows"])
    graph = Graph.trace(outputs, {state: new})
    place = {t: i for i, t in enumerate((*graph.leaves, *graph.nodes))}
    assert all(place[s] < place[t] for t in graph.nodes for s in t.sources if s is not None)
    for node in graph.in_place:
        late = [t for t in graph.nodes if node.sources[0] in t.sources and place[t] > place[node]]
        assert not late, f"{late} read what {node} has overwritten"
    return [t in graph.in_place for t in graph.nodes if t.op == "set_rows"]


def test_rows_are_set_in_place_where_the_order_allows_it() -> None:
    def chain(s: Tensor, at: Tensor, rows: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        return s.set_rows(at, rows).set_rows(at, rows * 2.0), ()

    assert in_place(lambda s, at, rows: (s.set_rows(at, rows), [s * 2.0])) == [True]
    assert in_place(lambda s, at, rows: (s.set_rows(at, s.take(at) + rows), ())) == [True]
    assert in_place(chain) == [True, True]

    def read_late(s: Tensor, at: Tensor, rows: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        new = s.set_rows(at, rows)
        return new, [s * new.sum(keepdims=True)]  # depends on the update, and reads what was before it

    def read_between(s: Tensor, at: Tensor, rows: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        once = s.set_rows(at, rows)
        return once.set_rows(at, rows * 2.0), [once[:2].sum()]

    assert in_place(read_late) == [False]
    assert in_place(read_between) == [True, True]
    assert in_place(lambda s, at, rows: (s.set_rows(at, rows), [s.reshape(8)])) == [False]
    assert in_place(lambda s, at, rows: (s.set_rows(at, s[1:2]), ())) == [False]  # reads and writes the same memory
    assert in_place(lambda s, at, rows: (s.set_rows(at, rows) * 2.0, ())) == [False]


def test_updates_that_are_refused() -> None:
    ctx, state, new = update_of(open_reference())
    with pytest.raises(GraphError, match="not a state"):
        ctx.update(new, state)
    with pytest.raises(ShapeError, match="shape or type differ"):
        ctx.update(state, new.reshape(2, 4))
    with pytest.raises(ShapeError, match=r"hint: cast it: new.cast\(DType.F32\)"):
        ctx.update(state, new.cast(DType.F16))
    other, _, foreign = update_of(ctx.backend)
    with pytest.raises(GraphError, match="another context"):
        ctx.update(state, foreign)
    other.close()


def test_an_update_to_itself_changes_nothing() -> None:
    backend = open_reference()
    ctx, state, _ = update_of(backend)
    ctx.update(state, state).compute({ctx.inputs["at"]: [0], ctx.inputs["rows"]: [[1, 1]]})
    assert not backend.new_context().forward(state).compute().read(state).any()


# Decomposition
