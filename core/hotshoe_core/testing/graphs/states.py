"""Graphs that read and update states."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.ops import (
    RoPE,
    attention,
    cast,
    concat,
    linear,
    rope,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing.graphs._graph import F16, Q8_0, cases, graph
from hotshoe_core.testing.run import F32, GraphCase, Maker

# States


def _state(dtype: DType) -> GraphCase:
    def body(m: Maker) -> Sequence[Tensor]:
        state = m.state((8, 64), dtype)
        new = m.update(state, state.set_rows(m.indices(3, 8), m.input((3, 64))))
        return [new.cast(F32), linear(m.input((2, 64)), new), new.take(m.indices(2, 8))]

    return GraphCase(f"a_state_of_{dtype.name}_updated_and_read", body, frozenset({dtype}))


cases += [_state(d) for d in (F32, F16, Q8_0, DType.BF16)]


@graph()
def an_update_without_readers(m: Maker) -> Sequence[Tensor]:
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
    """set_rows gives a new value; the state keeps its value, also in the next step."""
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


@graph(DType.BF16)
def results_equal_to_a_state(m: Maker) -> Sequence[Tensor]:
    """An op that changes nothing still gives a value with its own memory: it stays when the state is overwritten."""
    half, plain = m.state((4, 3), DType.BF16), m.state((4, 3))
    halves, ids = [half.cast(F32)], m.indices(2, 4)
    plains = [cast(plain, dtype=F32), plain.sum(()), plain.clamp(), plain.pad((0, 0), (0, 0)), concat(plain)]
    new_half = m.update(half, half.set_rows(ids, m.input((2, 3))))
    new_plain = m.update(plain, plain.set_rows(ids, m.input((2, 3))))
    changes = [new_half.cast(F32) - y for y in halves] + [new_plain - y for y in plains]
    return [*halves, *plains, *changes]


@graph()
def a_part_of_a_state_set(m: Maker) -> Sequence[Tensor]:
    state, other = m.operand((6, 4), kind="state"), m.operand((6, 4), kind="state")
    new = m.update(state, state.set((slice(1, 4), slice(0, None, 2)), m.input((3, 2))))
    once = other.set(slice(0, 2), m.input((2, 4)))
    m.update(other, once.set(slice(1, 3), other[:2]))
    return [new, state * 2.0, once.sum(0), other]


@graph()
def a_state_read_late(m: Maker) -> Sequence[Tensor]:
    """The reader of the old value depends on the new value, so it cannot run first: a copy is needed."""
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
    """The last inputs of a causal convolution: the new value is a view of a tensor that contains the old value."""
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
def a_state_that_takes_the_old_value_of_another(m: Maker) -> Sequence[Tensor]:
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
    """Recurrent states, one row for each sequence: some rows are read, others are written."""
    state, x = m.operand((6, 2, 4), kind="state"), m.input((3, 2, 4))
    read, write = m.indices(3, 6), m.indices(3, 6)
    old = state.take(read)
    new = m.update(state, state.set_rows(write, (old * 0.5 + x).tanh()))
    return [old, new.take(write), new.sum(-1)]


@graph()
def rows_of_a_state_copied_to_other_rows(m: Maker) -> Sequence[Tensor]:
    state = m.operand((6, 4), kind="state")
    m.update(state, state.set_rows(m.indices(2, 6), state[1:3]))
    return [state.sum(0)]


@graph(F16)
def keys_rotated_in_place(m: Maker) -> Sequence[Tensor]:
    """A context shift: RoPE turns some rows of a cache, in one graph."""
    keys, ids, by = m.operand((8, 32), F16, kind="state"), m.indices(3, 8), m.indices(3, 50)
    turned = rope(keys.take(ids).reshape(3, 2, 16), by, config=RoPE(16))
    new = m.update(keys, keys.set_rows(ids, turned.reshape(3, 32)))
    return [new.cast(F32)]
