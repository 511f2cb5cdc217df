"""LifecycleConformance: tests of contexts, graphs, closing, threads and errors, and those of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import (
    ClosedError,
    DTypeError,
    GraphError,
    HotshoeError,
    ShapeError,
    UnsupportedOpError,
)
from hotshoe_core.ops import linear, linear_experts
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import dequantize, quantize
from hotshoe_core.tensors.tensor import Tensor, constant, nodes_created
from hotshoe_core.testing.memory import MemoryConformance
from hotshoe_core.testing.product import N_IN, N_OUT, WEIGHT, check, load, numbers, product
from hotshoe_core.testing.run import I32

__all__ = ["LifecycleConformance"]

Array = np.ndarray[Any, Any]
N_THREADS, N_ROUNDS = 4, 25
DTYPES = {np.float32: DType.F32, np.float16: DType.F16, np.int32: I32}

# Graphs of tensors or of arrays. ``leaf`` makes a constant of their type
ALIKE: Sequence[Callable[[Any, Any, Any], Sequence[Any]]] = (
    lambda a, b, leaf: [a - b],
    lambda a, b, leaf: [b - a],
    lambda a, b, leaf: [a - b, b - a],
    lambda a, b, leaf: [b - a, a - b],
    lambda a, b, leaf: [a - b + a],
    lambda a, b, leaf: [a - b + b],
    lambda a, b, leaf: (lambda d: [d, d + a])(a - b),
    lambda a, b, leaf: (lambda d: [d + a, d])(a - b),
    lambda a, b, leaf: [a[:1] - b],
    lambda a, b, leaf: [a[1:2] - b],
    lambda a, b, leaf: [a - leaf([1, 2])],
    lambda a, b, leaf: [a - leaf([2, 1])],
)


def _leaf(kind: type, values: Sequence[int]) -> Tensor:
    return constant(np.array(values, kind))


class LifecycleConformance(MemoryConformance):
    """Tests of a backend's lifecycle. A subclass defines ``open``, as for OpConformance."""

    @classmethod
    def setup_class(cls) -> None:
        cls.backend = cls.open(cls.params)

    @classmethod
    def teardown_class(cls) -> None:
        cls.backend.close()

    # Build once, compute many

    def test_computing_again_builds_nothing(self) -> None:
        ctx, x, y = product(self.backend, load(self.backend))
        ctx.compute({x: numbers(0)})
        before = (nodes_created(), replace(self.backend.counters))
        for i in range(5):
            check(ctx.compute({x: numbers(i)}).read(y), numbers(i))
        assert (nodes_created(), self.backend.counters) == before

    def test_reserving_is_counted_and_runs_nothing(self) -> None:
        before = replace(self.backend.counters)
        ctx, _, y = product(self.backend, load(self.backend))
        ctx.reserve().reserve()
        assert self.backend.counters.compiled == before.compiled + 1
        assert self.backend.counters.lowered > before.lowered
        with pytest.raises(GraphError, match="no value yet"):
            ctx.read(y)
        state = self.backend.state((4, 3), DType.F32, "untouched")
        counting, reader = self.backend.new_context(), self.backend.new_context()
        counting.update(state, state + 1.0)
        counting.reserve()
        assert not reader.forward(state).compute().read(state).any()

    def test_inputs_do_not_leak_from_one_compute_to_the_next(self) -> None:
        ctx = self.backend.new_context()
        a, b = ctx.input("a", (3,)), ctx.input("b", (3,))
        h = (a + b).exp()
        ctx.forward(h, h * 2.0 - a)
        for i in range(4):
            u, v = np.full(3, i, np.float32), np.array([0, -i, 1], np.float32)
            ctx.compute({a: u, b: v})
            u_before, got = u.copy(), ctx.read(h)
            np.testing.assert_allclose(got, np.exp(u_before + v), rtol=1e-4)

    def test_a_fed_array_may_be_changed_afterwards(self) -> None:
        ctx = self.backend.new_context()
        x = ctx.input("x", (3,))
        y = x * 2.0
        ctx.forward(x, y)
        fed = np.ones(3, np.float32)
        ctx.compute({x: fed})
        fed[:] = 7
        assert ctx.read(x).tolist() == [1, 1, 1]
        assert ctx.read(y).tolist() == [2, 2, 2]

    def test_an_output_that_is_read_once_belongs_to_the_caller(self) -> None:
        ctx = self.backend.new_context()
        x = ctx.input("x", (3,))
        double, triple = x * 2.0, x * 3.0
        ctx.forward(double, triple).compute({x: [1, 2, 3]})
        assert ctx.read(triple).tolist() == [3, 6, 9]
        mine = ctx.read_once(double)
        assert mine.tolist() == [2, 4, 6]
        for read in (ctx.read, ctx.read_once):
            with pytest.raises(GraphError, match="read_once"):
                read(double)
        mine[0] = 50
        ctx.compute({x: [2, 2, 2]})
        assert ctx.read_once(double).tolist() == [4, 4, 4]
        assert ctx.read(triple).tolist() == ctx.read(triple).tolist() == [6, 6, 6]
        assert mine.tolist() == [50, 4, 6]

    def test_what_was_started_is_computed_before_all_that_follows(self) -> None:
        state = self.backend.state((4, 3), DType.F32, "shared")
        ctx, other = self.backend.new_context(), self.backend.new_context()
        x = ctx.input("x", (4, 3))
        new = (state + x).exp().log()
        ctx.update(state, new)
        ctx.forward(total := new.sum(0))
        other.forward(seen := state.sum(0))
        for i in range(1, 4):
            fed = np.ones((4, 3), np.float32)
            ctx.start({x: fed})
            assert other.compute().read(seen).tolist() == pytest.approx([4 * i] * 3, rel=1e-4)
            if i == 2:
                ctx.wait()
                ctx.wait()
            assert ctx.read(total).tolist() == pytest.approx([4 * i] * 3, rel=1e-4)
        ctx.start({x: np.ones((4, 3))})
        ctx.start({x: np.ones((4, 3))})
        third = self.backend.new_context()
        third.forward(later := state * 2.0).reserve()
        ctx.close()
        assert third.compute().read(later).max() == pytest.approx(10, rel=1e-4)

    def test_a_read_array_is_a_copy(self) -> None:
        ctx = self.backend.new_context()
        x = ctx.input("x", (3,))
        y = x * 2.0
        ctx.forward(y)
        first = ctx.compute({x: np.ones(3)}).read(y)
        ctx.compute({x: np.zeros(3)})
        assert first.tolist() == [2, 2, 2]
        first[:] = 9
        assert ctx.read(y).tolist() == [0, 0, 0]

    def test_contexts_of_one_backend_do_not_disturb_each_other(self) -> None:
        weight = load(self.backend)
        (one, x1, y1), (two, x2, y2) = product(self.backend, weight), product(self.backend, weight, n=3)
        for i in range(4):
            one.compute({x1: numbers(i)})
            two.compute({x2: numbers(i + 10, 3)})
            check(one.read(y1), numbers(i))  # unchanged after the other context has run
            check(two.read(y2), numbers(i + 10, 3))
        two.close()
        check(one.read(y1), numbers(3))
        check(one.compute({x1: numbers(4)}).read(y1), numbers(4))

    def test_a_weight_can_be_an_output_of_several_contexts(self) -> None:
        weight = load(self.backend, use="take")
        for _ in range(2):
            ctx, x, y = product(self.backend, weight)
            ctx.forward(weight).compute({x: numbers(1)})
            np.testing.assert_array_equal(ctx.read(weight), WEIGHT)
            check(ctx.read(y), numbers(1))

    def test_contexts_share_a_state(self) -> None:
        state = self.backend.state((4, 3), DType.F32, "shared")
        writer, reader = self.backend.new_context(), self.backend.new_context()
        at, rows = writer.input("at", (1,), I32), writer.input("rows", (1, 3))
        writer.update(state, state.set_rows(at, rows))
        total = state.sum(0)
        reader.forward(total)
        assert reader.compute().read(total).tolist() == [0, 0, 0]
        for i in range(4):
            writer.compute({at: [i], rows: np.full((1, 3), i + 1.0)})
            assert reader.compute().read(total)[0] == sum(range(i + 2))

    def test_an_output_keeps_its_value_when_its_state_goes_on(self) -> None:
        state = self.backend.state((4, 3), DType.F32, "goes on")
        ctx, other = self.backend.new_context(), self.backend.new_context()
        outputs: list[Tensor] = []
        for context in (ctx, other):
            new = state.set_rows(context.input("at", (1,), I32), context.input("rows", (1, 3)))
            context.update(state, new)
            outputs += [new, new[1:3]]
            context.forward(*outputs[-2:])
        for context, value in ((ctx, 1.0), (other, 5.0)):
            context.compute({context.inputs["at"]: [1], context.inputs["rows"]: np.full((1, 3), value)})
        assert [ctx.read(output).max() for output in outputs[:2]] == [1, 1]

    def test_states_that_took_one_value_part_again(self) -> None:
        a, b = (self.backend.state((4, 3), DType.F32, name) for name in "ab")
        ctx, writer, reader = (self.backend.new_context() for _ in range(3))
        new = ctx.input("x", (4, 3)) * 2.0
        ctx.update(a, new)
        ctx.update(b, new)
        ctx.compute({ctx.inputs["x"]: np.ones((4, 3))})
        writer.update(a, a.set_rows(writer.input("at", (1,), I32), writer.input("rows", (1, 3))))
        writer.compute({writer.inputs["at"]: [0], writer.inputs["rows"]: np.zeros((1, 3))})
        sums = [a.sum(), b.sum()]
        reader.forward(*sums).compute()
        assert [reader.read(t).tolist() for t in sums] == [[0, 6, 6, 6], [6, 6, 6, 6]]

    def test_graphs_that_differ_in_one_thing(self) -> None:
        """A cache of compiled graphs must tell them apart: by wiring, attributes, outputs, types, shapes."""
        made = []
        for kind, shape in ((np.float32, (2, 2)), (np.float16, (2, 2)), (np.int32, (2, 2)), (np.float32, (4, 1))):
            for function in ALIKE:
                x, y = np.arange(4).reshape(shape).astype(kind), np.full(shape, 1.1).astype(kind)
                ctx = self.backend.new_context()
                a, b = (ctx.input(name, shape, DTYPES[kind]) for name in "ab")
                outputs = function(a, b, partial(_leaf, kind))
                ctx.forward(*outputs)
                expected = function(x.astype(np.float64), y.astype(np.float64), np.array)
                made.append((ctx, {a: x, b: y}, outputs, expected))
        for _ in range(2):
            for ctx, feeds, outputs, expected in made:
                ctx.compute(feeds)
                for y, wanted in zip(outputs, expected):
                    np.testing.assert_allclose(ctx.read(y), wanted, rtol=1e-5, atol=1e-6)
        for ctx, *_ in made:
            ctx.close()

    def test_graphs_that_differ_in_what_they_update(self) -> None:
        a, b = (self.backend.state((2, 2), DType.F32, name) for name in "ab")
        made = []
        for plus in ({a: 1}, {b: 1}, {}, {a: 1, b: 1}, {a: 0, b: 1}, {a: 1, b: 0}):
            ctx, total = self.backend.new_context(), a + b
            new = (total, total + 1.0)
            for state, i in plus.items():
                ctx.update(state, new[i])
            made.append((ctx.forward(total), total, plus))
        values = {a: 0, b: 0}
        for ctx, total, plus in (*made, *made):
            expected = sum(values.values())
            assert (ctx.compute().read(total) == expected).all()
            values |= {state: expected + i for state, i in plus.items()}
        for ctx, *_ in made:
            ctx.close()
        self.backend.release([a, b])

    def test_out_is_filled(self) -> None:
        ctx, x, y = product(self.backend, load(self.backend))
        out = np.full((2, N_OUT), np.nan, np.float32)
        assert ctx.compute({x: numbers(5)}).read(y, out) is out
        check(out, numbers(5))
        for wrong in (np.empty((N_OUT, 2), np.float32), np.empty((2, N_OUT)), np.empty((N_OUT, 2), np.float32).T):
            with pytest.raises(ShapeError, match="out is"):
                ctx.read(y, wrong)

    def test_placements_name_every_node_and_a_device(self) -> None:
        ctx, _, _ = product(self.backend, load(self.backend))
        placed = ctx.reserve().placements()
        assert [p.op for p in placed] == ["linear"]
        assert {p.device for p in placed} <= {d.name for d in self.backend.devices}
        assert {p.how for p in placed} == {"native"}

    # Refusals

    @pytest.mark.parametrize(
        ("feeds", "expected"),
        [
            (lambda x: {}, GraphError),
            (lambda x: {x: np.zeros((3, N_IN))}, ShapeError),
            (lambda x: {x: np.zeros((2, N_IN), np.complex64)}, DTypeError),
            (lambda x: {x: np.full((2, N_IN), 2**31 - 1)}, DTypeError),
            (lambda x: {x: [["a"] * N_IN] * 2}, DTypeError),
        ],
        ids=["missing", "shape", "complex", "inexact", "text"],
    )
    def test_wrong_feeds_are_refused(
        self, feeds: Callable[[Tensor], dict[Tensor, Any]], expected: type[HotshoeError]
    ) -> None:
        ctx, x, y = product(self.backend, load(self.backend))
        with pytest.raises(expected, match="x"):
            ctx.compute(feeds(x))
        check(ctx.compute({x: numbers(0)}).read(y), numbers(0))

    def test_an_input_of_another_context_is_refused(self) -> None:
        weight = load(self.backend)
        (one, x, _), (_, other, _) = product(self.backend, weight), product(self.backend, weight)
        with pytest.raises(GraphError, match="not an input of this context"):
            one.compute({x: numbers(0), other: numbers(0)})

    @pytest.mark.parametrize("index", [-1, 5, 2**31 - 1])
    def test_an_index_out_of_range_is_refused(self, index: int) -> None:
        state = self.backend.state((5, 4), DType.F32, "rows")
        ctx = self.backend.new_context()
        at, rows = ctx.input("at", (2,), I32), ctx.input("rows", (2, 4))
        picked = load(self.backend, use="take").take(ctx.input("ids", (1,), I32))
        ctx.forward(picked, state.set_rows(at, rows))
        fine = {at: [0, 1], rows: np.zeros((2, 4)), ctx.inputs["ids"]: [3]}
        ctx.compute(fine)
        for name in ("at", "ids"):
            tensor = ctx.inputs[name]
            with pytest.raises(GraphError, match=f"input {name} holds the index {index}"):
                ctx.compute({**fine, tensor: np.full(tensor.shape, index)})
        np.testing.assert_array_equal(ctx.compute(fine).read(picked), WEIGHT[[3]])

    def test_sizes_of_zero_are_refused(self) -> None:
        with pytest.raises(ShapeError, match="positive"):
            self.backend.new_context().input("x", (2, 0))
        with pytest.raises(ShapeError, match="positive"):
            self.backend.state((0, 4), DType.F32, "empty")

    @pytest.mark.parametrize("use", ["linear", "take", "cast", "state"])
    @pytest.mark.parametrize("dtype", DType)
    def test_any_type_is_computed_or_refused(self, dtype: DType, use: str) -> None:
        """A type that the backend cannot compute with raises a hotshoe error and never aborts the process."""
        try:
            ctx = self.backend.new_context()
            x, at = ctx.input("x", (2, 256)), ctx.input("at", (2,), I32)
            if use == "state":
                state = self.backend.state((4, 256), dtype, "s")
                new = state.set_rows(at, x)
                ctx.update(state, new)
                y = new.cast(DType.F32)
            else:
                data = np.zeros(dtype.nbytes((4, 256)), np.uint8)
                weight = self.backend.load([WeightData("w", (4, 256), dtype, data, (use,))])["w"]
                y = {"linear": lambda: linear(x, weight), "take": lambda: weight.take(at)}.get(
                    use, lambda: weight.cast(DType.F32)
                )()
            ctx.forward(y).compute({x: np.zeros((2, 256)), at: [0, 1]})
        except (DTypeError, UnsupportedOpError):
            return
        assert np.allclose(ctx.read(y), 0)

    def test_a_weight_of_another_length_than_its_shape_says_is_refused(self) -> None:
        for wrong in (np.zeros(100, np.uint8), np.zeros(200, np.uint8), np.zeros(32, np.float32)):
            with pytest.raises(ShapeError, match="128 bytes"):
                self.backend.load([WeightData("w", (4, 8), DType.F32, wrong)])

    def test_a_wrong_hint_of_use_does_no_harm(self) -> None:
        data = np.arange(3 * 32 * 256, dtype=np.float32).view(np.uint8)
        for use in ("linear", "linear_experts", "no such op"):
            weight = self.backend.load([WeightData("w", (3, 32, 256), DType.F32, data, (use,))])["w"]
            ctx = self.backend.new_context()
            total = weight.sum().sum().sum()
            assert np.isclose(ctx.forward(total).compute().read(total), 3 * 32 * 256 * (3 * 32 * 256 - 1) / 2)

    def test_rows_in_blocks_are_those_of_the_format(self) -> None:
        rows = np.random.default_rng(0).standard_normal((3, 64), np.float32)
        for dtype in (DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0):
            expected = quantize(rows, dtype).reshape(3, -1)
            np.testing.assert_array_equal(self.backend.quantize_rows(rows, dtype), expected, err_msg=dtype.name)
            values = self.backend.dequantize_rows(expected, dtype, 64)
            np.testing.assert_allclose(values, dequantize(expected.reshape(-1), dtype, (3, 64)), err_msg=dtype.name)

    def test_an_expert_out_of_range_is_refused(self) -> None:
        ctx = self.backend.new_context()
        x, chosen = ctx.input("x", (2, 1, 3)), ctx.input("chosen", (2, 1), I32)
        weight = constant(np.ones((4, 5, 3), np.float32))
        ctx.forward(linear_experts(x, weight, chosen))
        with pytest.raises(GraphError, match="holds the index 4"):
            ctx.compute({x: np.ones((2, 1, 3)), chosen: [[0], [4]]})

    def test_a_constant_index_out_of_range_is_refused(self) -> None:
        ctx = self.backend.new_context()
        ctx.forward(ctx.input("x", (3, 2)).take(constant(np.array([0, 3], np.int32))))
        with pytest.raises(GraphError, match="holds the index 3"):
            ctx.reserve()

    def test_a_state_of_another_backend_is_refused(self) -> None:
        with self.open(self.params) as other:
            ctx = self.backend.new_context()
            ctx.forward(other.state((2, 3), DType.F32, "foreign") * 2.0)
            with pytest.raises(GraphError, match="foreign"):
                ctx.reserve()

    # Closing

    def test_closing_twice_and_using_afterwards(self) -> None:
        backend = self.open(self.params)
        weight = load(backend)
        ctx, x, y = product(backend, weight)
        closed, _, _ = product(backend, weight)
        check(ctx.compute({x: numbers(0)}).read(y), numbers(0))
        closed.reserve().close()
        closed.close()
        uses: list[Callable[[], object]] = [closed.reserve, closed.compute, lambda: closed.input("z", (1,))]
        for use in uses:
            with pytest.raises(ClosedError):
                use()
        fresh, _, _ = product(backend, weight)
        backend.close()
        backend.close()
        uses = [
            fresh.reserve,
            lambda: ctx.read(y),
            lambda: ctx.compute({x: numbers(0)}),
            lambda: backend.state((2, 2), DType.F32, "late"),
            lambda: load(backend),
        ]
        for use in uses:
            with pytest.raises(ClosedError):
                use()
        ctx.close()  # after its backend

    def test_released_weights_leave_the_report_and_graphs_that_use_them_are_refused(self) -> None:
        before = self.backend.memory().total
        weight = load(self.backend)
        ctx, x, _ = product(self.backend, weight)
        ctx.reserve()
        assert self.backend.memory().total >= before + WEIGHT.nbytes
        self.backend.release([weight])
        self.backend.release([weight])
        with pytest.raises(ClosedError):
            ctx.compute({x: numbers(0)})
        ctx.close()
        with pytest.raises(HotshoeError):
            product(self.backend, weight)[0].reserve().compute({x: numbers(0)})
        assert self.backend.memory().total == before

    def test_a_load_that_is_cancelled_leaves_nothing(self) -> None:
        before = self.backend.memory().total

        def cancel(fraction: float) -> None:
            raise KeyboardInterrupt

        data = np.zeros(1024, np.uint8)
        weights = [WeightData(f"w{i}", (256,), DType.F32, data) for i in range(3)]
        with pytest.raises(KeyboardInterrupt):
            self.backend.load(weights, progress=cancel)
        assert self.backend.memory().total == before
        seen: list[float] = []
        self.backend.release(list(self.backend.load(weights, progress=seen.append).values()))
        assert seen == sorted(seen)
        assert seen[-1] == 1.0

    # Threads

    def test_threads_with_a_context_each(self) -> None:
        weight = load(self.backend)

        def work(i: int) -> None:
            ctx, x, y = product(self.backend, weight)
            for j in range(N_ROUNDS):
                check(ctx.compute({x: numbers(100 * i + j)}).read(y), numbers(100 * i + j))
            ctx.close()

        with ThreadPoolExecutor(N_THREADS) as pool:
            list(pool.map(work, range(N_THREADS)))

    def test_threads_on_one_context(self) -> None:
        """A read returns the complete result of one thread's inputs, never a mixture."""
        ctx, x, y = product(self.backend, load(self.backend))
        answers = [numbers(i) @ WEIGHT.T for i in range(N_THREADS)]
        ctx.compute({x: numbers(0)})

        def work(i: int) -> None:
            for _ in range(N_ROUNDS):
                got = ctx.compute({x: numbers(i)}).read(y)
                assert any(np.allclose(got, a, rtol=1e-4, atol=1e-4) for a in answers)

        with ThreadPoolExecutor(N_THREADS) as pool:
            list(pool.map(work, range(N_THREADS)))

    def test_threads_that_update_one_state(self) -> None:
        """Each thread reads the state and writes it, plus 1. If two read the same value, an addition is lost."""
        state = self.backend.state((64, 64), DType.F32, "counter")

        def work(_: int) -> None:
            with self.backend.new_context() as ctx:
                ctx.update(state, state + 1.0)
                for _ in range(N_ROUNDS):
                    ctx.compute()

        with ThreadPoolExecutor(N_THREADS) as pool:
            list(pool.map(work, range(N_THREADS)))
        with self.backend.new_context() as ctx:
            value = ctx.forward(state).compute().read(state)
        assert (value.min(), value.max()) == (N_THREADS * N_ROUNDS, N_THREADS * N_ROUNDS)
        self.backend.release([state])
