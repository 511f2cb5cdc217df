"""The adapter over a toy library: lists of Python numbers, and a few functions."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.library import EagerLibrary, Run
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import BackendError, InsufficientMemoryError, UnsupportedOpError
from hotshoe_core.ops import swiglu
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import constant

DEVICE = Device("toy", DeviceType.CPU, "toy", "toy")


class Vector(list[float]):
    """The toy's native array: one axis, without NumPy."""


def elementwise(function: Callable[..., float]) -> Callable[..., Vector]:
    return lambda *xs, **attrs: Vector(function(*v, **attrs) for v in zip(*xs))


def to_numpy(native: Vector) -> np.ndarray[Any, Any]:
    assert isinstance(native, Vector), "only arrays of the library are its to convert"
    return np.array(native, np.float32)


class Toy:
    """The library, with a count of the calls of its hook."""

    def __init__(self) -> None:
        self.hooked = self.ran = 0

    def hook(self, run: Run, donated: tuple[int, ...]) -> Run:
        self.hooked += 1

        def faster(given: list[Any]) -> list[Any]:
            self.ran += 1
            assert all(g is None or isinstance(g, Vector) for g in given)
            return run(given)

        return faster

    def backend(self, params: BackendParams | None = None, **functions: Callable[..., Vector]) -> EagerBackend:
        library = EagerLibrary(
            functions={
                "add": elementwise(lambda a, b: a + b),
                "mul": elementwise(lambda a, b: a * b),
                "affine": elementwise(lambda x, scale, bias: scale * x + bias),
                "silu": elementwise(lambda x: x / (1 + math.exp(-x))),
                **functions,
            },
            from_numpy=lambda array, dtype: Vector(array.tolist()),
            to_numpy=to_numpy,
            weight=lambda w: Vector(w.data.view("<f4").tolist()),
            nbytes=lambda shape, dtype: 8 * math.prod(shape),
            compile_hook=self.hook,
            round_to=lambda x, dtype: x,
        )
        return EagerBackend("toy", DEVICE, params or BackendParams(), library)


def test_a_graph_is_compiled_once_and_replayed() -> None:
    toy = Toy()
    backend = toy.backend()
    data = np.array([1, 2, 3], np.float32).view(np.uint8)
    weight = backend.load([WeightData("w", (3,), DType.F32, data)])["w"]
    ctx = backend.new_context()
    x = ctx.input("x", (3,))
    y = x * weight + x * 0.5
    ctx.forward(y)
    assert toy.hooked == 0
    for i in range(3):
        np.testing.assert_allclose(ctx.compute({x: [i, 1, 1]}).read(y), [1.5 * i, 2.5, 3.5])
    assert (toy.hooked, toy.ran) == (1, 3)
    assert backend.memory().devices[0].weights[-1].size == 24
    assert [p.op for p in ctx.placements()] == ["mul", "affine", "add"]


def test_composites_are_decomposed_unless_the_library_has_them() -> None:
    answers = []
    table: tuple[dict[str, Any], ...] = ({}, {"swiglu": elementwise(lambda g, u: g / (1 + math.exp(-g)) * u)})
    for functions in table:
        ctx = Toy().backend(**functions).new_context()
        gate, up = ctx.input("gate", (2,)), ctx.input("up", (2,))
        y = swiglu(gate, up)
        ctx.forward(y).compute({gate: [1, -2], up: [3, 4]})
        answers.append(ctx.read(y))
        hows = {(p.op, p.how) for p in ctx.placements()}
        assert hows == ({("swiglu", "native")} if functions else {("silu", "decomposed"), ("mul", "decomposed")})
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-6)


def test_a_missing_primitive_is_named_before_anything_runs() -> None:
    toy = Toy()
    ctx = toy.backend().new_context()
    ctx.forward(ctx.input("x", (3,)).exp())
    with pytest.raises(UnsupportedOpError, match="exp"):
        ctx.reserve()
    assert toy.hooked == 0


def test_values_are_dropped_after_their_last_use() -> None:
    """Otherwise a graph would need memory for all of its temporaries at once."""
    made: list[weakref.ref[Vector]] = []
    most = 0

    def track(x: Vector, **_: float) -> Vector:
        nonlocal most
        y = Vector(x)
        made.append(weakref.ref(y))
        most = max(most, sum(r() is not None for r in made))
        return y

    ctx = Toy().backend(affine=track).new_context()
    y = x = ctx.input("x", (2,))
    for _ in range(50):
        y = y * 1.0
    ctx.forward(y).compute({x: [1, 2]})
    assert len(made) == 50
    assert most == 2  # what is read and what is made


def test_a_memory_error_of_the_library_becomes_insufficient_memory_error() -> None:
    def full(x: Vector, **_: float) -> Vector:
        raise MemoryError

    backend = Toy().backend(affine=full)
    ctx = backend.new_context()
    x = ctx.input("x", (2,))
    ctx.forward(x * 2.0).reserve()
    with pytest.raises(InsufficientMemoryError) as caught:
        ctx.compute({x: [1, 2]})
    assert caught.value.memory.devices[0].failed
    assert not backend.memory().devices[0].failed


def test_the_backend_honours_what_its_library_honours() -> None:
    assert Toy().backend().honours == {"allocate"}
    with pytest.raises(BackendError, match=r"'fast' \(str\); expected auto, on or off"):
        BackendParams(flash_attention="fast")  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=r"matmul_precision is .*'fp8'.*; expected stored, bf16 or f32"):
        BackendParams(matmul_precision="fp8")  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=r"repack is .*'ggml'.*; expected True, False or 'engine'"):
        BackendParams(repack="ggml")  # type: ignore[arg-type]


def test_threads_share_a_library_only_if_it_says_so() -> None:
    with open_reference() as reference:
        assert reference.independent
    library = EagerLibrary(functions={}, from_numpy=lambda a, dtype: a, to_numpy=np.asarray, f32=lambda a: a)
    with EagerBackend("toy", DEVICE, BackendParams(), library) as toy:
        assert not toy.independent


def test_a_constant_is_read_unchanged() -> None:
    ctx = Toy().backend().new_context()
    c, x = constant([1.0, 2.0]), ctx.input("x", (2,))
    y = x + c
    ctx.forward(c, x, y).compute({x: [3, 4]})
    assert [ctx.read(t).tolist() for t in (c, x, y)] == [[1, 2], [3, 4], [4, 6]]


def test_a_graph_takes_the_memory_of_values_that_exist_at_the_same_time() -> None:
    """Not the sum of all values. The toy counts 8 bytes for each element."""
    backend = Toy().backend()
    ctx = backend.new_context()
    x = ctx.input("x", (100,))
    y = x
    for _ in range(50):
        y = y * 1.0
    ctx.forward(y).reserve()
    assert backend.memory().devices[0].graph.size == 2 * 800 + 800  # what is read, what is made; and the input
    ctx.close()
    assert backend.memory().devices[0].graph.size == 0


def test_the_cache_length_changes_rarely() -> None:
    """With a padding of 1, every token would be a new graph to trace and compile."""
    assert Toy().backend().cache_config().padding >= 32


def test_rows_of_a_state_are_set_in_place() -> None:
    """A library whose arrays can be written to does not copy a cache for every token."""
    backend = open_reference()
    state = backend.state((1000, 4), DType.F32, "cache")
    ctx = backend.new_context()
    at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 4))
    ctx.update(state, state.set_rows(at, rows))
    before = state.handle
    ctx.compute({at: [7], rows: np.ones((1, 4))})
    assert state.handle is before
    assert before[7].tolist() == [1, 1, 1, 1]
