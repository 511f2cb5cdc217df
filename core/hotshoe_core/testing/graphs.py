"""Several ops in one graph: what goes wrong between ops rather than in one. Each function returns the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotshoe_core.dtypes import DType
from hotshoe_core.ops import RoPE, attention, concat, linear, linear_experts, one_hot, rms_norm, rope, stack, swiglu
from hotshoe_core.tensor import Shape, Tensor, constant
from hotshoe_core.testing.run import F32, I32, GraphCase, Maker

__all__ = ["GRAPH_CASES"]

F16, Q8_0 = DType.F16, DType.Q8_0

_cases: list[GraphCase] = []
GRAPH_CASES: Sequence[GraphCase] = _cases

Body = Callable[[Maker], Sequence[Tensor]]


def graph(*dtypes: DType) -> Callable[[Body], Body]:
    def add(body: Body) -> Body:
        _cases.append(GraphCase(body.__name__, body, frozenset({F32, *dtypes})))
        return body

    return add


# Values and who reads them


@graph()
def an_output_that_is_also_consumed(m: Maker) -> Sequence[Tensor]:
    x = m.input((3, 4))
    y = x * 2.0
    z = y + 1.0
    return [z.sqr(), y, z]


@graph()
def the_same_tensor_as_both_operands(m: Maker) -> Sequence[Tensor]:
    x = m.input((4, 4))
    return [x + x, x * x, x - x + 1.0, x @ x, x.matmul(x, transpose=True), concat(x, x, x), swiglu(x, x)]


@graph()
def an_operand_used_again_after_ops_that_may_overwrite(m: Maker) -> Sequence[Tensor]:
    x = m.input((3, 4))
    h = x * 1.5
    done = [h.clamp(min=0.0), h.relu(), h.exp(), h.softmax(), -h, h.reshape(12).clamp(max=0.0)]
    return [*done, h]


@graph()
def many_outputs_of_one_tensor(m: Maker) -> Sequence[Tensor]:
    x = m.input((2, 3, 4))
    h = x.exp()
    return [h, h.reshape(6, 4), h.permute(2, 0, 1), h[1], h[:, 1:], h[..., ::2], h.T]


@graph()
def inputs_as_outputs(m: Maker) -> Sequence[Tensor]:
    x, y = m.input((2, 3)), m.input((3,), I32, lambda rng, shape: rng.integers(0, 9, shape))
    return [x, y, x * 2.0]


@graph()
def weights_and_states_as_outputs(m: Maker) -> Sequence[Tensor]:
    w, s, c = m.weight((3, 4)), m.state((2, 4)), constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    x = m.input((4,))
    return [w, s, c, w[1:], c.T, w + x]


@graph(Q8_0)
def quantized_weights_read_whole(m: Maker) -> Sequence[Tensor]:
    w = m.weight((3, 64), Q8_0)
    return [w.cast(F32), w[1:].cast(F32), linear(m.input((2, 64)), w)]


@graph(Q8_0)
def a_repackable_weight_used_by_several_ops(m: Maker) -> Sequence[Tensor]:
    w = m.weight((32, 256), Q8_0, uses=("take", "linear"))
    ids = m.indices(3, 32)
    return [linear(m.input((2, 256)), w), w.take(ids)]


@graph()
def inputs_nobody_reads(m: Maker) -> Sequence[Tensor]:
    x, _ = m.input((3,)), m.input((1000,))
    m.input((2, 2), I32, lambda rng, shape: rng.integers(0, 9, shape))
    return [x + 1.0]


@graph()
def dead_branches(m: Maker) -> Sequence[Tensor]:
    x = m.input((3, 4))
    _ = (x @ x.T).exp()
    return [x.sum()]


@graph()
def constants_only(m: Maker) -> Sequence[Tensor]:
    c = constant(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "c")
    d = constant([1.0, 2.0, 3.0], "c")
    return [c + d, c.T.exp(), (c * d).sum()]


@graph()
def constants_of_every_plain_type(m: Maker) -> Sequence[Tensor]:
    x = m.input((3,))
    half = constant(np.array([0.5, 1.5, 2.5], np.float16))
    whole = constant(np.array([2, 0, 1], np.int32))
    scalar = constant(np.float32(3.0))
    return [x + half, x * whole.cast(F32), x.reshape(3, 1).take(whole), x * scalar]


@graph()
def weights_only(m: Maker) -> Sequence[Tensor]:
    return [m.weight((3, 4)) @ m.weight((4, 2))]


# Views


@graph()
def chains_of_views(m: Maker) -> Sequence[Tensor]:
    x = m.input((4, 6, 8))
    a = x.permute(1, 0, 2)[2:5].reshape(3, 32)[:, 4:20].T
    b = x[1:3, ::2].permute(2, 0, 1)[::2, :, 1:]
    c = x.reshape(24, 8)[3:17].T.reshape(8, 2, 7).permute(1, 2, 0)
    return [a, b, c, a + 1.0, b.exp(), c.sum(0), c.softmax()]


@graph()
def views_of_views_written_to(m: Maker) -> Sequence[Tensor]:
    x, ids = m.input((6, 8)), m.indices(2, 3)
    part = x[::2, 2:6]
    changed = part.set_rows(ids, m.input((2, 4)))
    return [changed, part, x]


@graph()
def steps_in_every_axis(m: Maker) -> Sequence[Tensor]:
    x = m.input((5, 6, 7))
    return [x[::2, 1::3, ::3], x[1::2], x[:, :, 1::2], x[4, ::5, 6], x[:, None, 2, ...]]


@graph()
def parts_joined_again(m: Maker) -> Sequence[Tensor]:
    x = m.input((4, 6))
    left, middle, right = x.chunk(3)
    return [concat(right, middle, left, axis=-1), left * right, concat(*x.chunk(2, axis=0), axis=1)]


@graph()
def indexing_without_axes(m: Maker) -> Sequence[Tensor]:
    x = m.input((3, 4))
    element = x[1, 2]
    return [element, element * 2.0, x * element, x / element.exp(), element.reshape(1, 1).expand(2, 2)]


@graph()
def reductions_in_a_row(m: Maker) -> Sequence[Tensor]:
    x = m.input((2, 3, 4, 5))
    return [x.sum().sum().sum().sum(), x.mean(0).mean(-1), x.stddev(1), x.sum(2, keepdims=True) + x]


@graph()
def an_index_computed_by_the_graph(m: Maker) -> Sequence[Tensor]:
    x, table = m.input((3, 7)), m.weight((7, 8))
    best = x.top_k(2)
    return [table.take(x.argmax()), table.take(best), table.take(best[:, 1]), best]


# States


def _state(dtype: DType) -> GraphCase:
    def body(m: Maker) -> Sequence[Tensor]:
        state = m.state((8, 64), dtype)
        new = m.update(state, state.set_rows(m.indices(3, 8), m.input((3, 64))))
        return [new.cast(F32), linear(m.input((2, 64)), new), new.take(m.indices(2, 8))]

    return GraphCase(f"a_state_of_{dtype.name}_updated_and_read", body, frozenset({dtype}))


_cases += [_state(d) for d in (F32, F16, Q8_0, DType.BF16)]


@graph()
def an_update_nobody_reads(m: Maker) -> Sequence[Tensor]:
    state, other, x = m.state((4, 3)), m.state((4, 3)), m.input((2, 3))
    m.update(state, state.set_rows(m.indices(2, 4), x))
    new = m.update(other, other.set_rows(m.indices(2, 4), x * 2.0))
    return [new + 1.0]


@graph()
def an_update_in_two_parts(m: Maker) -> Sequence[Tensor]:
    state = m.state((6, 3))
    once = state.set_rows(m.indices(2, 6), m.input((2, 3)))
    twice = m.update(state, once.set_rows(m.indices(2, 6), m.input((2, 3))))
    return [twice, twice.sum(0)]


@graph()
def a_state_changed_but_not_updated(m: Maker) -> Sequence[Tensor]:
    """set_rows gives a new value; the state keeps its own, also for the next step."""
    state, ids = m.operand((6, 4), kind="state"), m.indices(3, 6)
    changed = state.set_rows(ids, m.input((3, 4)))
    return [changed, state, state * 2.0, changed - state]


@graph()
def a_value_changed_twice_and_read_between(m: Maker) -> Sequence[Tensor]:
    x = m.input((6, 4)) * 1.0
    once = x.set_rows(m.indices(2, 6), m.input((2, 4)))
    twice = once.set_rows(m.indices(2, 6), m.input((2, 4)))
    return [x.sum(), once.sum(), twice.sum(), once, twice, x]


@graph()
def rows_computed_from_the_value_they_replace(m: Maker) -> Sequence[Tensor]:
    x, ids = m.input((6, 4)).exp(), m.indices(3, 6)
    return [x.set_rows(ids, x.take(ids) * 2.0), x.set_rows(ids, x[:3])]


@graph(F16)
def a_state_of_three_axes(m: Maker) -> Sequence[Tensor]:
    state = m.state((8, 2, 16), F16)
    new = m.update(state, state.set_rows(m.indices(3, 8), m.input((3, 2, 16))))
    first = new[:4]
    return [first.permute(1, 0, 2).cast(F32), attention(m.input((2, 4, 16)), first, first, scale=0.25)]


@graph()
def a_state_read_before_and_after_its_update(m: Maker) -> Sequence[Tensor]:
    state, ids = m.operand((6, 4), kind="state"), m.indices(3, 6)
    new = m.update(state, state.set_rows(ids, m.input((3, 4))))
    return [new * 2.0, state * 2.0, new - state, state, new, state[1:3], new[1:3]]


@graph()
def a_state_read_late(m: Maker) -> Sequence[Tensor]:
    """What reads the old value depends on the new one: it cannot be computed before, so there must be a copy."""
    state = m.operand((6, 4), kind="state")
    new = m.update(state, state.set_rows(m.indices(2, 6), m.input((2, 4))))
    return [state * new.sum(0), new]


@graph()
def a_state_that_is_a_function_of_itself(m: Maker) -> Sequence[Tensor]:
    h, x = m.operand((2, 3, 4), kind="state"), m.input((2, 3, 4))
    new = m.update(h, h * 0.5 + x)
    return [new.sum(-1), h.sum(-1), h]


@graph(F16)
def a_state_of_half_precision_that_is_a_function_of_itself(m: Maker) -> Sequence[Tensor]:
    h, x = m.operand((3, 4), F16, kind="state"), m.input((3, 4))
    new = m.update(h, (h * 0.5 + x).cast(F16))
    return [new.cast(F32), h.cast(F32)]


@graph()
def a_window_that_moves(m: Maker) -> Sequence[Tensor]:
    """The last inputs of a causal convolution: the new value is a view of what the old one is part of."""
    state, x = m.operand((4, 3), kind="state"), m.input((2, 3))
    seen = concat(state, x)
    m.update(state, seen[2:])
    return [seen.sum(0), state]


@graph()
def a_state_that_becomes_a_view_of_itself(m: Maker) -> Sequence[Tensor]:
    state, other = m.operand((4, 4), kind="state"), m.operand((2, 3), kind="state")
    m.update(state, state.permute(1, 0))
    m.update(other, other[1:].expand(2, 3))
    return [state.sum(0), other]


@graph()
def states_that_trade_their_values(m: Maker) -> Sequence[Tensor]:
    a, b = m.operand((3, 4), kind="state"), m.operand((3, 4), kind="state")
    c = m.operand((3, 4), kind="state")
    ids, rows = m.indices(2, 3), m.input((2, 4))
    m.update(a, b)
    m.update(b, a)
    m.update(c, c.set_rows(ids, rows))
    return [a - b, c, a]


@graph()
def a_state_that_takes_what_another_was(m: Maker) -> Sequence[Tensor]:
    a, b = m.operand((3, 4), kind="state"), m.operand((3, 4), kind="state")
    m.update(a, a.set_rows(m.indices(2, 3), m.input((2, 4))))
    m.update(b, a)
    return [b * 1.0, a * 1.0]


@graph()
def states_that_take_the_same_value(m: Maker) -> Sequence[Tensor]:
    a, b, x = m.state((2, 3)), m.state((2, 3)), m.input((2, 3))
    new = x.exp()
    m.update(a, new)
    m.update(b, new)
    return [a + b, new]


@graph()
def rows_of_a_state_computed_from_other_rows_of_it(m: Maker) -> Sequence[Tensor]:
    """Recurrent states, one row a sequence: read here, written there."""
    state, x = m.operand((6, 2, 4), kind="state"), m.input((3, 2, 4))
    read, write = m.indices(3, 6), m.indices(3, 6)
    old = state.take(read)
    new = m.update(state, state.set_rows(write, (old * 0.5 + x).tanh()))
    return [old, new.take(write), new.sum(-1)]


@graph()
def rows_of_a_state_that_are_other_rows_of_it(m: Maker) -> Sequence[Tensor]:
    state = m.operand((6, 4), kind="state")
    m.update(state, state.set_rows(m.indices(2, 6), state[1:3]))
    return [state.sum(0)]


@graph(F16)
def keys_turned_where_they_lie(m: Maker) -> Sequence[Tensor]:
    """How a context is shifted: some rows of a cache are turned by RoPE, in one graph."""
    keys, ids, by = m.operand((8, 32), F16, kind="state"), m.indices(3, 8), m.indices(3, 50)
    turned = rope(keys.take(ids).reshape(3, 2, 16), by, config=RoPE(16))
    new = m.update(keys, keys.set_rows(ids, turned.reshape(3, 32)))
    return [new.cast(F32)]


# Indices

_TIES = (9, 12)


def _ties(rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
    return rng.integers(0, 4, shape).astype(np.float32)


@graph()
def an_order_of_equal_elements(m: Maker) -> Sequence[Tensor]:
    """Which order is not defined; that it sorts, and names each once, is."""
    x = m.input(_TIES, values=_ties)
    outputs = []
    for order in (x.argsort(), x.argsort(descending=True)):
        outputs += [x.take_along(order), one_hot(order, n=_TIES[1]).sum(-2)]
    for k in (1, 3, 8, 12):
        best = x.top_k(k)
        outputs += [x.take_along(best), one_hot(best, n=_TIES[1]).sum(-2).max()]
    return outputs


@graph()
def indices_from_integer_arithmetic(m: Maker) -> Sequence[Tensor]:
    """Positions in a ring, buckets, and a neighbour's row, limited to what there is."""
    x, table = m.input((3, 7)), m.weight((7, 8))
    best = x.argmax()
    ring, before = (best + 3) % 7, (best - 1).clamp(min=0, max=6)
    buckets = (best * 5 // 2).minimum(6)
    return [table.take(ring), table.take(before), table.take(buckets), ring, before, buckets, best.equal(ring)]


@graph(DType.Q4_0)
def experts_chosen_by_a_router(m: Maker) -> Sequence[Tensor]:
    x, weight = m.input((5, 256)), m.weight((4, 32, 256), DType.Q4_0, uses=("linear_experts",))
    chosen = m.input((5, 4)).top_k(2)
    rows = x.reshape(5, 1, 256)
    return [linear_experts(rows, weight, chosen), linear_experts(rows, weight, (chosen + chosen) % 4)]


# Many operands, and parts of the whole


@graph()
def a_concatenation_of_a_hundred(m: Maker) -> Sequence[Tensor]:
    x = m.input((100, 3))
    parts = [x[i : i + 1] * float(i) for i in range(100)]
    return [
        concat(*parts),
        concat(*(p.reshape(3, 1) for p in parts), axis=1),
        stack(*(x[i] for i in range(90)), axis=-1),
    ]


@graph()
def values_set_over_slices(m: Maker) -> Sequence[Tensor]:
    x, part = m.input((4, 6)), m.input((2, 3))
    h = x.exp()
    changed = h.set(np.s_[1:3, ::2], part)
    again = changed.set(np.s_[0], 7.0).set(np.s_[..., -1], part[:, 0].sum())
    return [changed, again, h, changed - h]


@graph(F16)
def a_state_set_over_a_slice(m: Maker) -> Sequence[Tensor]:
    state = m.operand((4, 6), F16, kind="state")
    new = m.update(state, state.set(np.s_[1:3], m.input((2, 6))))
    return [new.cast(F32), new[1].cast(F32)]


@graph()
def keys_that_hold_the_values(m: Maker) -> Sequence[Tensor]:
    """Latent attention (DeepSeek-V2): the values are the first part of each key."""
    outputs = []
    for dim, v_dim in ((576, 512), (24, 16)):
        keys, mask = m.input((7, 1, dim)), m.input((5, 7))
        outputs += [attention(m.input((n, 4, dim)), keys, keys[..., :v_dim], mask[:n], scale=dim**-0.5) for n in (1, 5)]
    return outputs


# A layer as models have them


@graph(F16)
def a_decoder_layer(m: Maker) -> Sequence[Tensor]:
    n, heads, kv_heads, dim, cells = 3, 4, 2, 16, 32
    width = heads * dim
    x, positions, at = m.input((n, width)), m.indices(n, 40), m.indices(n, cells)
    mask = m.input((n, cells), values=lambda rng, shape: np.where(rng.random(shape) < 0.3, -1e9, 0.0))
    config = RoPE(dim)
    h = rms_norm(x, m.weight((width,)), eps=1e-5)
    q = linear(h, m.weight((width, width), uses=("linear",))).reshape(n, heads, dim)
    k = linear(h, m.weight((kv_heads * dim, width))).reshape(n, kv_heads, dim)
    v = linear(h, m.weight((kv_heads * dim, width))).reshape(n, kv_heads, dim)
    q, k = rope(q, positions, config=config), rope(k, positions, config=config)
    keys, values = m.state((cells, kv_heads, dim), F16), m.state((cells, kv_heads, dim), F16)
    k, v = m.update(keys, keys.set_rows(at, k)), m.update(values, values.set_rows(at, v))
    y = attention(q, k, v, mask, scale=dim**-0.5).reshape(n, width)
    x = x + linear(y, m.weight((width, width)))
    h = rms_norm(x, m.weight((width,)), eps=1e-5)
    gate, up = linear(h, m.weight((2 * width, width))), linear(h, m.weight((2 * width, width)))
    return [x + linear(swiglu(gate, up), m.weight((width, 2 * width)))]


@graph()
def a_deep_graph(m: Maker) -> Sequence[Tensor]:
    x = y = m.input((4,))
    for i in range(300):
        y = (y * 0.5 + x).tanh() if i % 3 else y + x
    return [y]
