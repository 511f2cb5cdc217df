"""Options of an EagerLibrary: a scope, evaluation, available memory, clamped indices."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.contract.memory import AllocationStatus
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.library import EagerLibrary
from hotshoe_core.eager.reference import numpy_library
from hotshoe_core.errors import BackendError, GraphError, InsufficientMemoryError
from hotshoe_core.ops import cast, swiglu
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.tensors.tensor import Tensor, constant

DEVICE = Device("toy", DeviceType.CPU, "toy", "toy")


def opened(library: EagerLibrary, n: int = 1) -> EagerBackend:
    devices = [replace(DEVICE, name=f"toy:{i}") for i in range(n)]
    return EagerBackend("toy", devices, BackendParams(), [library] * n)


def load(backend: EagerBackend, dtype: DType = DType.F32) -> Tensor:
    data = np.zeros(dtype.nbytes((4, 32)), np.uint8)
    return backend.load([WeightData("w", (4, 32), dtype, data, ("linear",))])["w"]


@pytest.mark.parametrize("n_devices", [1, 2])
def test_the_scope_is_entered_around_all_code_that_touches_arrays(n_devices: int) -> None:
    inside = threading.local()

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        inside.depth = getattr(inside, "depth", 0) + 1
        try:
            yield
        finally:
            inside.depth -= 1

    def within(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert getattr(inside, "depth", 0) > 0, function
            return function(*args, **kwargs)

        return call

    base = numpy_library()
    library = replace(
        base,
        functions={name: within(f) for name, f in base.functions.items()},
        in_place={name: within(f) for name, f in base.in_place.items()},
        from_numpy=within(base.from_numpy),
        to_numpy=within(base.to_numpy),
        weight=within(base.weight),
        copy=within(np.array),
        scope=scope,
    )
    with opened(library, n_devices) as backend:
        weight, state = load(backend), backend.state((4, 32), DType.F32, "s")
        ctx = backend.new_context()
        x = ctx.input("x", (4, 32))
        ctx.update(state, state + weight * x + 1.0)
        ctx.forward(state * 2.0)
        (y,) = ctx.graph().outputs
        threads = [threading.Thread(target=ctx.compute, args=({x: np.ones((4, 32))},)) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert (ctx.read(y) == 2).all()


def test_a_memory_error_of_the_scope_becomes_insufficient_memory_error() -> None:
    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        try:
            yield
        except FloatingPointError:  # whatever the library calls it
            raise MemoryError from None

    def full(x: Any) -> Any:
        raise FloatingPointError

    base = numpy_library()
    backend = opened(replace(base, functions={**base.functions, "exp": full}, scope=scope))
    ctx = backend.new_context()
    x = ctx.input("x", (2,))
    ctx.forward(x.exp())
    with pytest.raises(InsufficientMemoryError):
        ctx.compute({x: [1, 2]})


def test_a_request_above_the_available_memory_is_refused_before_the_library_sees_it() -> None:
    made: list[Any] = []
    base = numpy_library()

    def zeros(shape: Any, dtype: DType) -> Any:
        made.append(shape)
        return np.zeros(shape, np.float32)

    backend = opened(replace(base, zeros=zeros, available=lambda: 1000))
    with pytest.raises(InsufficientMemoryError) as caught:
        backend.state((1000, 1000), DType.F32, "s", layer=3)
    assert caught.value.memory.devices[0].cache[3].status is AllocationStatus.FAILED
    assert not made
    ctx = backend.new_context()
    x = ctx.input("x", (1, 1))
    ctx.forward((x.expand(1000, 1000) + 1.0).sum())
    with pytest.raises(InsufficientMemoryError, match="graph"):
        ctx.reserve()
    backend.state((2, 2), DType.F32, "small")
    assert made == [(2, 2)]


def test_only_indices_that_may_be_out_of_range_are_clamped() -> None:
    clipped: list[float] = []

    def clamp(x: Any, *, min: float, max: float) -> Any:
        clipped.append(max)
        return np.clip(x, min, max)

    base = numpy_library()
    backend = opened(replace(base, functions={**base.functions, "clamp": clamp}, checks_indices=False))
    ctx = backend.new_context()
    rows, at = ctx.input("rows", (3, 2)), ctx.input("at", (2,), DType.I32)
    fed, chosen, computed = rows.take(at), rows.take(rows.argmax()), rows.take(at * 5)
    ctx.forward(fed, chosen, computed).compute({rows: [[0, 1], [2, 3], [4, 5]], at: [0, 1]})
    assert clipped == [2]  # inputs are checked when they are fed, and argmax of two is within three
    assert ctx.read(computed).tolist() == [[0, 1], [4, 5]]


def test_a_node_that_is_not_accepted_is_decomposed() -> None:
    base = numpy_library()
    functions = {**base.functions, "swiglu": lambda gate, up: gate / (1 + np.exp(-gate)) * up}
    backend = opened(replace(base, functions=functions, accepts={"swiglu": lambda node: node.shape == (2,)}))
    hows = []
    for n in (2, 3):
        ctx = backend.new_context()
        gate, up = ctx.input("gate", (n,)), ctx.input("up", (n,))
        y = swiglu(gate, up)
        ctx.forward(y).compute({gate: np.ones(n), up: np.ones(n)})
        np.testing.assert_allclose(ctx.read(y), 1 / (1 + np.exp(-1)), rtol=1e-6)
        hows.append({p.how for p in ctx.placements()})
    assert hows == [{"native"}, {"decomposed"}]


class Box:
    """An array with weak references, which show whether something still refers to it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def test_nothing_refers_to_the_old_rows_when_a_lazy_library_evaluates() -> None:
    """Otherwise the library could not reuse their memory, and each token would copy the cache."""
    alive: list[bool] = []
    old: list[weakref.ref[Box]] = []

    def boxed(function: Any) -> Any:
        return lambda *xs, **attrs: Box(np.asarray(function(*(x.array for x in xs), **attrs)))

    base = numpy_library()
    library = replace(
        base,
        functions={name: boxed(f) for name, f in base.functions.items()},
        in_place={},
        copy=None,
        from_numpy=lambda array, dtype: Box(array),
        to_numpy=lambda box: box.array,
        evaluate=lambda arrays: alive.append(old[-1]() is not None),
    )
    backend = opened(library)
    state, running = backend.state((4, 2), DType.F32, "cache"), backend.state((2,), DType.F32, "running")
    ctx = backend.new_context()
    at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 2))
    ctx.update(state, state.set_rows(at, rows))
    ctx.update(running, running + 1.0)
    for i in range(3):
        old.append(weakref.ref(state.handle))
        ctx.compute({at: [i], rows: np.ones((1, 2))})
    assert alive == [False] * 3
    assert state.handle.array.sum() == 6


def test_a_step_that_fails_does_not_change_a_recurrent_state() -> None:
    """Rows of a cache may be written or not, but h = f(h) must not be computed twice."""

    def evaluate(arrays: list[Any]) -> None:
        if fail:
            raise MemoryError

    fail = True
    base = numpy_library()
    backend = opened(replace(base, in_place={}, copy=None, evaluate=evaluate))
    running = backend.state((2,), DType.F32, "running")
    ctx = backend.new_context()
    ctx.update(running, running + 1.0)
    with pytest.raises(InsufficientMemoryError):
        ctx.compute()
    fail = False
    ctx.compute()
    assert running.handle.tolist() == [1, 1]


def test_a_library_that_begins_and_is_waited_for_later() -> None:
    """A run that fails in the background fails for its own reader, and others go on."""
    told: list[str] = []
    fail = False

    def evaluate(arrays: list[Any]) -> None:
        told.append("waited")
        if fail:
            raise MemoryError

    base = numpy_library()
    library = replace(base, in_place={}, copy=None, begin=lambda arrays: told.append("begun"), evaluate=evaluate)
    backend = opened(library)
    running = backend.state((2,), DType.F32, "running")
    ctx, other = backend.new_context(), backend.new_context()
    ctx.update(running, new := running + 1.0)
    ctx.forward(new)
    other.forward(seen := running * 2.0)
    assert ctx.start()
    assert told == ["begun"]
    assert ctx.read(new).tolist() == [1, 1]
    assert told == ["begun", "waited"]
    ctx.start()
    assert other.compute().read(seen).tolist() == [4, 4]  # waits for the first
    assert ctx.read(new).tolist() == [2, 2]
    ctx.start()
    fail = True
    other.reserve()
    backend.release([])  # waits too
    fail = False
    assert other.compute().read(seen).tolist() == [4, 4]
    with pytest.raises(InsufficientMemoryError):
        ctx.read(new)
    with pytest.raises(GraphError, match="no value yet"):
        ctx.read(new)
    assert ctx.compute().read(new).tolist() == [3, 3]
    with pytest.raises(BackendError, match=r"begin.*evaluate"):
        replace(library, evaluate=None)


def test_weights_that_take_more_than_in_the_file_are_reported() -> None:
    backend = opened(numpy_library())
    load(backend, DType.Q8_0), load(backend, DType.F32)
    (device,) = backend.memory().devices
    assert device.larger == {"Q8_0": (4 * 34, 4 * 32 * 4)}
    assert "Q8_0 weights take 512 B, 136 B in the file" in str(backend.memory())
    smaller = opened(replace(numpy_library(), weight_nbytes=lambda w: 7))
    load(smaller)
    assert smaller.memory().total == 7


def test_closing_tells_the_library_once() -> None:
    told: list[int] = []
    backend = opened(replace(numpy_library(), closed=lambda: told.append(1)))
    backend.close()
    backend.close()
    assert told == [1]


def test_arithmetic_gets_floats_as_f32_and_movement_in_their_stored_type() -> None:
    given: dict[str, list[str]] = {}

    def noted(name: str, function: Any) -> Any:
        def call(*arrays: Any, **attrs: Any) -> Any:
            given[name] = [a.dtype.name for a in arrays]
            return function(*arrays, **attrs)

        return call

    base = numpy_library()
    backend = opened(replace(base, functions={name: noted(name, f) for name, f in base.functions.items()}))
    ctx = backend.new_context()
    x, table, at = (
        ctx.input("x", (2, 4), DType.F16),
        ctx.input("t", (8, 4), DType.F16),
        ctx.input("at", (2,), DType.I32),
    )
    y = (x.permute(1, 0) @ table.take(at)).exp()
    ctx.forward(y).compute({x: np.ones((2, 4)), table: np.zeros((8, 4)), at: [7, 0]})
    assert given == {
        "permute": ["float16"],
        "take": ["float16", "int32"],  # a table is not widened for a few of its rows
        "matmul": ["float32", "float32"],
        "exp": ["float32"],
    }
    assert ctx.read(y).tolist() == np.ones((4, 4)).tolist()


@pytest.mark.parametrize("dtype", [DType.BF16, DType.Q8_0, DType.Q4_0])
def test_a_type_that_arrays_lack_is_stored_as_f32_with_its_values(dtype: DType) -> None:
    """No function sees the type: the adapter rounds."""
    met: list[Any] = []
    base = numpy_library()

    def set_rows(x: Any, indices: Any, rows: Any, *, dtype: DType) -> Any:
        met.append(dtype)
        x[indices] = rows
        return x

    def from_numpy(array: Any, dtype: DType) -> Any:
        met.append(dtype)
        return array

    backend = opened(replace(base, in_place={"set_rows": set_rows}, from_numpy=from_numpy))
    state = backend.state((4, 32), dtype, "s")
    ctx = backend.new_context()
    rows, at = ctx.input("rows", (2, 32)), ctx.input("at", (2,), DType.I32)
    ctx.update(state, state.set_rows(at, rows))
    values = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)
    ctx.forward(y := rows.cast(dtype)).compute({rows: values, at: [3, 1]})
    expected = round_to(values, dtype)
    assert not np.array_equal(expected, values)
    assert np.array_equal(state.handle[[3, 1]], expected)
    assert np.array_equal(ctx.read(y), expected)
    assert state.handle.dtype == np.float32
    assert set(met) <= {DType.F32, DType.I32}
    assert backend.memory().total >= 4 * 32 * 4


def test_without_a_weight_function_a_weight_is_a_new_array() -> None:
    file = np.arange(128, dtype=np.float32)
    file.flags.writeable = False
    backend = opened(replace(numpy_library(), weight=None))
    (w,) = backend.load([WeightData("w", (4, 32), DType.F32, file.view(np.uint8), ("linear",))]).values()
    assert np.array_equal(w.handle, file.reshape(4, 32))
    assert not np.shares_memory(w.handle, file)


def test_from_numpy_gets_an_array_that_it_may_write_to() -> None:
    def from_numpy(array: Any, dtype: DType) -> Any:
        assert array.flags.owndata
        assert array.flags.c_contiguous
        array[...] = array + 0  # raises where it is not writable
        return array

    backend = opened(replace(numpy_library(), from_numpy=from_numpy, weight=None))
    load(backend, DType.Q8_0), load(backend, DType.BF16)
    backend.state((2, 4), DType.F16, "s")
    c = constant(np.ones((4, 2)).T)
    ctx = backend.new_context()
    x = ctx.input("x", (2, 4))
    ctx.forward(y := x + c, c)
    fed = np.arange(8.0, dtype=np.float32).reshape(4, 2).T
    ctx.compute({x: fed})
    assert np.array_equal(ctx.read(y), fed + 1)
    assert np.array_equal(ctx.read(c), np.ones((2, 4)))


def test_an_in_place_op_writes_into_a_copy_if_the_old_value_is_read() -> None:
    base = numpy_library()
    functions = {name: f for name, f in base.functions.items() if name not in base.in_place}
    backend = opened(replace(base, functions=functions))
    ctx = backend.new_context()
    x, at, row = ctx.input("x", (3, 2)), ctx.input("at", (1,), DType.I32), ctx.input("row", (1, 2))
    ctx.forward(old := x * 1.0, new := old.set_rows(at, row), part := old.set(0, x[1]))
    ctx.compute({x: np.zeros((3, 2)), at: [2], row: np.ones((1, 2))})
    assert [ctx.read(t).sum() for t in (old, new, part)] == [0, 2, 0]


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
def test_no_integer_is_divided_by_0_or_by_minus_1(dtype: DType) -> None:
    """Both end the process in a library without checks: the smallest integer divided by -1 overflows."""
    divisors: set[int] = set()
    base = numpy_library()

    def noted(function: Any) -> Any:
        def call(a: Any, b: Any) -> Any:
            divisors.update(np.asarray(b).ravel().tolist())
            return function(a, b)

        return call

    changed = {name: noted(base.functions[name]) for name in ("floor_divide", "mod")}
    backend = opened(replace(base, functions={**base.functions, **changed}))
    ctx = backend.new_context()
    a, b = ctx.input("a", (5, 1), dtype), ctx.input("b", (4,), dtype)
    ctx.forward(quotient := a // b, rest := a % b)
    least = np.iinfo(dtype.numpy).min
    left, right = np.array([[least], [-7], [0], [7], [least + 1]], dtype.numpy), np.array([0, -1, 3, -3], dtype.numpy)
    ctx.compute({a: left, b: right})
    assert divisors == {1, 3, -3}
    with np.errstate(all="ignore"):
        assert np.array_equal(ctx.read(quotient), np.floor_divide(left, right))
        assert np.array_equal(ctx.read(rest), np.mod(left, right))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_cast_that_changes_nothing_gives_a_new_array(dtype: DType) -> None:
    """The state's rows are written in place, before or after the cast is read; BF16 is stored as F32 here."""
    backend = opened(numpy_library())
    state = backend.state((3, 2), dtype, "s")
    ctx = backend.new_context()
    at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 2))
    old = cast(state, dtype=DType.F32)
    new = state.set_rows(at, rows)
    ctx.update(state, new)
    ctx.forward(old, late := old + new.sum(axis=None) * 0.0)
    for i, total in enumerate((0, 2, 4)):
        ctx.compute({at: [i], rows: np.ones((1, 2))})
        assert [ctx.read(old).sum(), ctx.read(late).sum()] == [total, total]
