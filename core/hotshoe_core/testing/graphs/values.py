"""Graphs of values, views and indices: several readers of a value, and different layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.ops import (
    attention,
    concat,
    linear,
    linear_experts,
    one_hot,
    stack,
    swiglu,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape, Tensor, constant
from hotshoe_core.testing.graphs._graph import F16, Q8_0, graph
from hotshoe_core.testing.run import F32, I32, Maker

# Values and their readers


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


@graph()
def a_view_of_an_input_as_the_output(m: Maker) -> Sequence[Tensor]:
    return [m.input((4, 6)).reshape(24)]


@graph()
def a_view_of_a_constant_as_an_output(m: Maker) -> Sequence[Tensor]:
    return [constant(np.arange(6, dtype=np.float32).reshape(2, 3)).reshape(6), m.input((3,)) * 2.0]


@graph()
def a_view_of_a_weight_as_the_output(m: Maker) -> Sequence[Tensor]:
    return [m.weight((3, 4))[0]]


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
def inputs_without_readers(m: Maker) -> Sequence[Tensor]:
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


# Indices

_TIES = (9, 12)


def _ties(rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
    return rng.integers(0, 4, shape).astype(np.float32)


@graph()
def an_order_of_equal_elements(m: Maker) -> Sequence[Tensor]:
    """The order of equal elements is undefined, but the result is sorted and contains each index once."""
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
    """Positions in a ring, buckets, and the row of a neighbour, limited to the existing rows."""
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
def products_of_the_beginnings_of_rows(m: Maker) -> Sequence[Tensor]:
    """One row or several for each matrix: between the matrices, and not only between rows, are elements of others."""
    of_one, of_three = (m.input((n, 4, 96))[..., :64].permute(1, 0, 2) for n in (1, 3))
    weights, columns = m.weight((4, 64, 5)), m.input((4, 5, 96))[..., :64]
    expert = linear_experts(m.input((3, 1, 96))[..., :64], m.weight((4, 5, 64)), m.input((3, 4)).top_k(2))
    products = [x.matmul(weights) for x in (of_one, of_three)]
    return [*products, of_one.matmul(columns, transpose=True), of_three.matmul(of_one, transpose=True), expert]


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
