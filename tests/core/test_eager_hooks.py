"""Compile hooks of an EagerLibrary: the parts of a graph on each device, donated arrays, their sizes and failures."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import Placement, WeightData
from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.library import EagerLibrary, Run
from hotshoe_core.eager.reference import numpy_library
from hotshoe_core.errors import BackendError, InsufficientMemoryError, UnsupportedOpError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import constant


class Box:
    """An array that cannot be written to, on one device. ``array`` is None after its memory was given away."""

    def __init__(self, array: Any, device: str) -> None:
        self.array: Any = np.asarray(array)
        self.device = device


@dataclass
class Compiler:
    """A library of Boxes whose hook gives away the memory of donated arrays, as XLA does."""

    device: str = "toy:0"
    donated: list[tuple[int, ...]] = field(default_factory=list)
    """The argument of each call of the hook."""

    fails: bool = False
    """Whether calls of compiled functions fail, after they have taken the donated memory."""

    def hook(self, run: Run, donated: tuple[int, ...]) -> Run:
        self.donated.append(donated)

        def call(given: list[Any]) -> list[Any]:
            assert all(box.device == self.device and box.array is not None for box in given)
            results = run(list(given))
            for i in donated:
                given[i].array[...] = np.nan  # somebody else writes there
                given[i].array = None
            if self.fails:
                raise MemoryError
            return results

        return call

    def library(self) -> EagerLibrary:
        base = numpy_library()

        def boxed(function: Callable[..., Any]) -> Callable[..., Box]:
            def call(*boxes: Box | None, **attrs: Any) -> Box:
                return Box(function(*[b if b is None else b.array for b in boxes], **attrs), self.device)

            return call

        return replace(
            base,
            functions={name: boxed(f) for name, f in base.functions.items()},
            in_place={},
            from_numpy=lambda array, dtype: Box(array, self.device),
            to_numpy=lambda box: box.array,
            f32=boxed(lambda x: x.astype(np.float32)),
            copy=boxed(np.array),
            receive=boxed(np.array),
            weight=None,
            round_to=boxed(round_to),
            compile_hook=self.hook,
            is_deleted=lambda box: box.array is None,
        )


def opened(*compilers: Compiler, libraries: Sequence[EagerLibrary] = ()) -> EagerBackend:
    devices = [Device(c.device, DeviceType.CPU, "toy", "toy") for c in compilers]
    return EagerBackend("toy", devices, BackendParams(), libraries or [c.library() for c in compilers])


def test_a_hook_compiles_the_whole_graph_on_one_device_and_the_part_on_each_of_two() -> None:
    for n_parts, layers in ((1, (0, 0, 0)), (2, (0, 0, 1)), (3, (0, 1, 0))):
        compilers = [Compiler("toy:0"), Compiler("toy:1")]
        backend = opened(*compilers)
        backend.load([], Placement("toy:0", tuple(f"toy:{i}" for i in layers), f"toy:{layers[-1]}"))
        ctx = backend.new_context()
        x, c = ctx.input("x", (3,)), constant([1.0, 2.0, 3.0])
        y = x
        for i in range(3):
            with scope(f"layer.{i}", i):
                y = (y * c + x).abs() * 2.0  # the later device gets x and c too, before its part begins
        ctx.forward(y)
        for step in range(1, 4):
            expected = v = np.full(3, step, np.float32)
            for _ in range(3):
                expected = np.abs(expected * [1, 2, 3] + v) * 2
            np.testing.assert_allclose(ctx.compute({x: v}).read(y), expected)
        assert [len(compiler.donated) for compiler in compilers] == [n_parts - n_parts // 2, n_parts // 2]
        assert backend.counters.traced == 3 * n_parts  # this hook does not trace: it calls the function each time


def test_rows_that_a_graph_overwrites_are_donated_and_nothing_else_needs_them() -> None:
    compiler = Compiler()
    backend = opened(compiler)
    rows, twin, running = (backend.state((4, 2), DType.F32, name) for name in ("rows", "twin", "running"))
    ctx = backend.new_context()
    x, at = ctx.input("x", (1, 2)), ctx.input("at", (1,), DType.I32)
    old_sum = rows.sum(axis=None)
    new = rows.set_rows(at, x)
    ctx.update(rows, new)
    ctx.update(twin, new)
    ctx.update(running, running + rows)
    ctx.forward(old_sum, same := new.reshape(2, 4))
    other, reader = backend.new_context(), backend.new_context()
    other.update(rows, rows.set_rows(constant(np.array([3], np.int32)), constant(np.ones((1, 2)))))
    reader.forward(view := rows.reshape(8), twin)
    for i in range(3):
        ctx.compute({x: [[1, 1]], at: [i]})
        reader.compute()
        other.compute()
        assert ctx.read(old_sum) == 2 * i + 2 * (i > 0)
        assert ctx.read(same).sum() == reader.read(view).sum() == 2 * i + 2 + 2 * (i > 0)
        assert reader.compute().read(twin).sum() == 2 * i + 2 + 2 * (i > 0)
    assert [len(donated) for donated in compiler.donated] == [1, 0, 1]
    assert running.handle.array.tolist() == [[2, 2], [1, 1], [0, 0], [2, 2]]


def test_a_state_that_a_failed_run_overwrote_is_lost_and_others_are_not() -> None:
    compiler = Compiler()
    backend = opened(compiler)
    rows, running = backend.state((4, 2), DType.F32, "cache"), backend.state((2,), DType.F32, "running")
    ctx, other = backend.new_context(), backend.new_context()
    x, at = ctx.input("x", (1, 2)), ctx.input("at", (1,), DType.I32)
    ctx.update(rows, rows.set_rows(at, x))
    ctx.update(running, running + 1.0)
    other.forward(running)
    compiler.fails = True
    with pytest.raises(InsufficientMemoryError):
        ctx.compute({x: [[1, 1]], at: [0]})
    compiler.fails = False
    with pytest.raises(BackendError, match=r"cache.* was lost: a run that overwrites its memory failed") as caught:
        ctx.compute({x: [[1, 1]], at: [0]})
    assert caught.value.hint == "load the model again"
    assert other.compute().read(running).tolist() == [0, 0]


def test_rows_written_on_one_device_stay_if_another_device_fails() -> None:
    first, second = Compiler("toy:0"), Compiler("toy:1", fails=True)
    backend = opened(first, second)
    backend.load([], Placement("toy:0", ("toy:0", "toy:1"), "toy:1"))
    rows = backend.state((4, 2), DType.F32, "cache", 0)
    ctx = backend.new_context()
    x, at = ctx.input("x", (1, 2)), ctx.input("at", (1,), DType.I32)
    with scope("layer.0", 0):
        new = rows.set_rows(at, x)
        y = new * 2.0
    ctx.update(rows, new)
    with scope("layer.1", 1):
        ctx.forward(total := (y + constant(1.0)).sum(axis=None))
    with pytest.raises(InsufficientMemoryError, match="toy:1 cannot allocate") as caught:
        ctx.compute({x: [[1, 1]], at: [0]})
    assert [d.failed for d in caught.value.memory.devices] == [False, True]
    second.fails = False
    assert ctx.compute({x: [[3, 3]], at: [1]}).read(total) == 8 + 2 * (2 + 6)


@pytest.mark.parametrize(("late", "failed"), [("to_numpy", [True, False]), ("from_numpy", [False, True])])
def test_a_copy_through_numpy_that_fails_is_blamed_on_the_device_that_lacks_memory(
    late: str, failed: list[bool]
) -> None:
    """A lazy library computes the value in ``to_numpy``."""
    full = False

    def convert(array: Any, *_: Any) -> Any:
        if full:
            raise MemoryError
        return array

    base = numpy_library()
    libraries = [replace(base, **{late: convert}) if here else base for here in failed]
    backend = opened(Compiler("toy:0"), Compiler("toy:1"), libraries=libraries)
    backend.load([], Placement("toy:0", ("toy:0", "toy:1"), "toy:1"))
    ctx = backend.new_context()
    x = ctx.input("x", (2,))
    with scope("layer.0", 0):
        y = x.exp()
    with scope("layer.1", 1):
        ctx.forward(z := y.sqrt())
    assert ctx.compute({x: [0, 0]}).read(z).tolist() == [1, 1]
    full = True
    with pytest.raises(InsufficientMemoryError, match=f"toy:{failed.index(True)} cannot allocate") as caught:
        ctx.compute({x: [0, 0]})
    assert [d.failed for d in caught.value.memory.devices] == failed


def test_a_value_from_another_device_is_dropped_after_its_last_use() -> None:
    received: list[weakref.ref[Box]] = []
    alive = []

    def receive(box: Box) -> Box:
        copied = Box(box.array, "toy:1")
        received.append(weakref.ref(copied))
        return copied

    def negative(box: Box) -> Box:
        alive.append(received[-1]() is not None)
        return Box(-box.array, box.device)

    compilers = Compiler("toy:0"), Compiler("toy:1")
    libraries = [replace(c.library(), compile_hook=None, receive=receive) for c in compilers]
    libraries[1] = replace(libraries[1], functions={**libraries[1].functions, "neg": negative})
    backend = opened(*compilers, libraries=libraries)
    backend.load([], Placement("toy:0", ("toy:0", "toy:1"), "toy:1"))
    ctx = backend.new_context()
    x = ctx.input("x", (2,))
    with scope("layer.0", 0):
        y = x.exp()
    with scope("layer.1", 1):
        ctx.forward(-(-y).sqrt())
    ctx.compute({x: [0, 0]})
    assert alive == [True, False]


def test_weights_are_not_asked_whether_they_are_lost() -> None:
    asked: list[Box] = []

    def is_deleted(box: Box) -> bool:
        asked.append(box)
        return False

    compiler = Compiler()
    backend = opened(compiler, libraries=[replace(compiler.library(), is_deleted=is_deleted)])
    data = np.ones(2, np.float32).view(np.uint8)
    weights = backend.load([WeightData(name, (2,), DType.F32, data) for name in "ab"])
    state, ctx = backend.state((2,), DType.F32, "state"), backend.new_context()
    ctx.forward(weights["a"] + weights["b"] + state).compute()
    assert [id(box) for box in asked] == [id(state.handle)]


def test_memory_asks_the_library_for_the_size_of_compiled_functions() -> None:
    sizes: dict[Run, int] = {}

    def hook(run: Run, donated: tuple[int, ...]) -> Run:
        def call(given: list[Any]) -> list[Any]:
            sizes[call] = 1000
            return run(given)

        return call

    library = replace(
        numpy_library(), compile_hook=hook, round_to=lambda x, dtype: round_to(x, dtype), graph_nbytes=sizes.get
    )
    backend = opened(Compiler(), libraries=[library])
    ctx = backend.new_context()
    x = ctx.input("x", (8,))
    ctx.forward(x.exp().sum()).reserve()
    planned = backend.memory().devices[0].graph.size
    assert planned == 32 + 32 + 4  # it is compiled in the first call: until then, ops one by one
    ctx.compute({x: np.zeros(8)})
    assert backend.memory().devices[0].graph.size == ctx.memory()["toy:0"].size == 32 + 1000
    ctx.close()
    assert backend.memory().devices[0].graph.size == 0


@pytest.mark.parametrize("late", ["to_numpy", "from_numpy"])
def test_memory_that_is_missing_when_a_value_is_read_or_fed_is_insufficient_memory_error(late: str) -> None:
    """An asynchronous library allocates after the call that asked for it."""

    @contextlib.contextmanager
    def translating() -> Iterator[None]:
        try:
            yield
        except FloatingPointError:
            raise MemoryError from None

    full = False
    base = numpy_library()

    def convert(array: Any, *_: Any) -> Any:
        if full:
            raise FloatingPointError
        return array

    backend = opened(Compiler(), libraries=[replace(base, scope=translating, **{late: convert})])
    ctx = backend.new_context()
    x = ctx.input("x", (2,))
    ctx.forward(y := x + 1.0).compute({x: [1, 2]})
    full = True
    with pytest.raises(InsufficientMemoryError, match=r"toy:0 cannot allocate .* for the graph") as caught:
        ctx.compute({x: [1, 2]}).read(y)
    assert caught.value.memory.devices[0].failed


def test_integers_that_arrays_cannot_hold_are_refused() -> None:
    """F32 cannot hold 2**40 + 1. Other floats are stored as F32, which rounds them as it computes."""
    library = replace(numpy_library(), dtypes=frozenset({DType.F32, DType.I32}))
    backend = opened(Compiler(), libraries=[library])
    ctx = backend.new_context()
    x = ctx.input("x", (3,), DType.I64)
    ctx.forward(x + x)
    with pytest.raises(UnsupportedOpError, match="x is I64; the arrays of this backend hold I32"):
        ctx.compute({x: [2**40 + 1, 2**24 + 1, -5]})
    ctx = backend.new_context()
    ctx.forward(ctx.input("y", (3,), DType.I32).cast(DType.I16))
    with pytest.raises(UnsupportedOpError, match="I16"):
        ctx.reserve()
    with pytest.raises(UnsupportedOpError, match="ids is I8"):
        backend.state((3,), DType.I8, "ids")
    assert not backend.memory().total
    ctx = backend.new_context()
    z = ctx.input("z", (3,), DType.F64)
    ctx.forward(doubled := z + z)
    assert ctx.compute({z: [1, 2, 3]}).read(doubled).tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    ("given", "missing"), [("in_place", "copy"), ("compile_hook", "round_to"), ("graph_nbytes", "compile_hook")]
)
def test_an_option_that_needs_another_one_says_so(given: str, missing: str) -> None:
    options: dict[str, Any] = {given: {"set_rows": len} if given == "in_place" else len, missing: None}
    with pytest.raises(BackendError, match=f"{given} is given, but {missing} is missing") as caught:
        replace(numpy_library(), **({"in_place": {}} | options))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"{missing}: a function")


def test_a_function_of_an_unknown_op_is_an_error() -> None:
    library = numpy_library()
    with pytest.raises(BackendError, match=r"there is no op 'sillu'(.|\n)*did you mean 'silu'"):
        replace(library, functions={**library.functions, "sillu": np.negative})
