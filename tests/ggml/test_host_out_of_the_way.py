"""What the host does for each step on a device: inputs go straight to it, and the host waits once. Over RPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.text import TextModel
from hotshoe_core import Context, DeviceType, Tensor, ops
from hotshoe_core.contract.backend import Backend
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import constant
from hotshoe_loader import load_all
from tests.support.rpc_server import Server

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml.native import ffi, ggml_functions, kernels, lib
from hotshoe_ggml.run import executable, scheduler
from hotshoe_ggml.run.scheduler import ScheduledGraph, Scheduler

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        running = Server()
        patch.setenv("HOTSHOE_RPC", running.endpoint)
        load_all(refresh=True)
        yield running
        running.kill()
    load_all(refresh=True)


class Watched:
    """ggml's functions, with the names and arguments of those that are called."""

    def __init__(self, library: Any = None) -> None:
        self.library = lib() if library is None else library
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.library, name)
        if not name.startswith("ggml_backend"):
            return value

        def call(*args: Any) -> Any:
            self.calls.append((name, args))
            return value(*args)

        return call

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("device", "n_splits", "n_copies"), [("rpc:0", 1, 0), ("rpc:0,cpu", 2, 1)], ids=["alone", "with the CPU"]
)
def test_splits_and_copies(device: str, n_splits: int, n_copies: int) -> None:
    """The CPU looks up the embedding, which is the one value that crosses."""
    options: Any = {"n_gpu_layers": "all"} if "cpu" in device else {}
    with hotshoe.load_model(SHIPPED, device, **options) as model:
        assert isinstance(model, TextModel)
        model.generate("In the beginning", max_tokens=2, temperature=0)
        for each in model.backend._executables:  # type: ignore[attr-defined]
            assert (each._scheduled.n_splits, each._scheduled.n_copies) == (n_splits, n_copies)


@pytest.fixture
def backend(server: Server) -> Iterator[Backend]:
    with load_all().open("rpc:0,cpu") as opened:
        yield opened


def test_the_host_waits_once(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with backend.new_context() as ctx:
        x, y = ctx.input("x", (3, 4)), ctx.input("rows", (2,), DType.I32)
        outputs = x * 2.0, x.take(y), x.sum(axis=-1)
        ctx.forward(*outputs).reserve()
        watched = Watched()
        monkeypatch.setattr(executable, "lib", lambda: watched)
        waits: list[Scheduler] = []
        synchronize = Scheduler.synchronize

        def wait(self: Scheduler) -> None:
            waits.append(self)
            synchronize(self)

        monkeypatch.setattr(Scheduler, "synchronize", wait)
        feeds: dict[Any, Any] = {x: np.arange(12).reshape(3, 4), y: np.array([2, 0])}
        for _ in range(2):
            watched.calls.clear()
            waits.clear()
            ctx.compute(feeds)
            results = [output.read() for output in outputs]
            assert len(waits) == 1
            assert watched.count("ggml_backend_tensor_set_async") == 2
            assert watched.count("ggml_backend_tensor_get_async") == 3
            assert watched.count("ggml_backend_tensor_get") == watched.count("ggml_backend_tensor_set") == 0
        assert np.array_equal(results[0], np.arange(12).reshape(3, 4) * 2)
        assert np.array_equal(results[1], np.arange(12).reshape(3, 4)[[2, 0]])


def test_an_input_that_two_devices_read_is_given_to_both(server: Server) -> None:
    weights = np.ones((4, 4), np.float32)
    with load_all().open("rpc:0,cpu") as backend, backend.new_context() as ctx:
        x = ctx.input("x", (2, 4))
        y = ops.equal(x, x).cast(DType.F32) + ops.linear(x, constant(weights))  # RPC has no `equal`
        ctx.forward(y)
        for k in range(3):
            given = np.full((2, 4), k, np.float32)
            assert np.array_equal(ctx.compute({x: given}).read(y), np.full((2, 4), 1 + 4 * k))


@pytest.mark.usefixtures("server")
def test_values_of_the_cpu_lie_where_the_device_reads_them_best(monkeypatch: pytest.MonkeyPatch) -> None:
    new = kernels().hotshoe_arena_new
    given: list[list[Any]] = []

    def arena_new(ggml: Any, backends: Any, types: list[Any], *others: Any) -> Any:
        given.append(types)
        real = [lib().ggml_backend_get_default_buffer_type(backend) for backend in backends]
        return new(ggml, backends, real, *others)  # a buffer type that does not exist cannot be used

    native = Watched(kernels())
    native.__dict__["hotshoe_arena_new"] = arena_new
    monkeypatch.setattr(scheduler, "kernels", lambda: native)
    with load_all().open("rpc:0,cpu") as backend:
        device, _ = backend.units  # type: ignore[attr-defined]
        assert device.host_buffer_type == ffi.NULL, "a network has no such memory"
        device.host_buffer_type = pinned = ffi.cast("ggml_backend_buffer_type_t", 64)
        backend.scheduler = scheduler.Scheduler(backend.units)  # type: ignore[attr-defined]
        with backend.new_context() as ctx:
            x = ctx.input("x", (2, 4))
            y = ops.equal(x, x * 1.0)
            assert ctx.forward(y).compute({x: np.ones((2, 4), np.float32)}).read(y).all()
        assert given == [[device.buffer_type, pinned]]
    given.clear()
    with load_all().open("cpu") as backend, backend.new_context() as ctx:
        ctx.forward(ctx.input("x", (2, 4)) * 2.0).reserve()
        (cpu,) = backend.units  # type: ignore[attr-defined]
        assert given == [[cpu.buffer_type]]


@pytest.mark.usefixtures("server")
def test_many_large_graphs_are_kept() -> None:
    """They share the memory of the device, so each takes some megabytes of the host only."""
    with hotshoe.load_model(SHIPPED, "rpc:0", n_ubatch=64) as model:
        assert isinstance(model, TextModel)
        contexts = model._forward.contexts
        signatures = [model._forward.signature(64)._replace(n_outputs=n) for n in range(1, 65)]
        for signature in signatures * 2:
            contexts.get(signature)
        assert set(signatures) <= set(contexts.signatures)
        assert contexts.n_built <= len(signatures) + 1


def test_devices_of_one_memory_wait_for_each_other(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the CPU and an integrated GPU, which reads the host's memory while the CPU goes on."""
    table = ffi.new("struct hotshoe_ggml *", ggml_functions()[0])
    calls: list[tuple[str, Any]] = []

    def compute(unit: Any, graph: Any) -> int:
        calls.append(("compute", unit))
        return 0

    callbacks = {
        "supports_buft": ffi.callback("bool(*)(ggml_backend_t, ggml_backend_buffer_type_t)", lambda unit, kind: True),
        "graph_compute_async": ffi.callback("enum ggml_status(*)(ggml_backend_t, struct ggml_cgraph *)", compute),
        "synchronize": ffi.callback("void(*)(ggml_backend_t)", lambda unit: calls.append(("wait", unit))),
    }
    for name, callback in callbacks.items():
        setattr(table, name, callback)
    monkeypatch.setattr(scheduler, "ggml_functions", lambda: table)
    with load_all().open("rpc:0,cpu") as backend, backend.new_context() as ctx:
        device, cpu = (unit.ggml_backend for unit in backend.units)  # type: ignore[attr-defined]
        x = ctx.input("x", (2, 4))
        y = ops.equal(x, x).cast(DType.F32) * 2.0  # RPC has no `equal`
        ctx.forward(ops.equal(y, y)).reserve()
        calls.clear()
        ctx.compute({x: np.ones((2, 4), np.float32)})
        (each,) = backend._executables  # type: ignore[attr-defined]
        assert (each._scheduled.n_splits, each._scheduled.n_copies) == (3, 0)
        assert calls[:5] == [("compute", cpu), ("wait", cpu), ("compute", device), ("wait", device), ("compute", cpu)]


@pytest.fixture
def plans(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is planned and measured, by all backends that are opened after this."""
    calls: list[str] = []
    table = ffi.new("struct hotshoe_ggml *", ggml_functions()[0])

    def reserve(*args: Any) -> bool:
        calls.append("reserve")
        return bool(ggml_functions().gallocr_reserve_n(*args))

    callback = ffi.callback("bool(*)(ggml_gallocr_t, struct ggml_cgraph *, const int *, const int *)", reserve)
    table.gallocr_reserve_n = callback
    monkeypatch.setattr(scheduler, "ggml_functions", lambda: table)
    yield calls
    del callback  # not before: the table has only its address


def graph_of(ctx: Context, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A graph with a part on the CPU, as RPC has no `equal`: its input, and two outputs."""
    x = ctx.input("x", (n, 4))
    y = ops.equal(x, x).cast(DType.F32) + ops.linear(x, constant(np.ones((4, 4), np.float32)))
    total = x.sum(axis=-1)
    ctx.forward(y, total).reserve()
    return x, y, total


def check_graph(ctx: Context, graph: tuple[Tensor, Tensor, Tensor], k: int) -> None:
    x, y, total = graph
    ctx.compute({x: np.full(x.shape, k, np.float32)})
    assert np.array_equal(ctx.read(y), np.full(x.shape, 1 + 4 * k))
    assert np.array_equal(ctx.read(total), np.full(len(x), 4 * k))


def test_a_switch_between_graphs_plans_nothing(plans: list[str]) -> None:
    with load_all().open("rpc:0,cpu") as backend, backend.new_context() as large, backend.new_context() as small:
        graphs = [(ctx, graph_of(ctx, n)) for ctx, n in ((large, 500), (small, 3))]
        assert plans == ["reserve"] * 2
        for k in range(6):
            check_graph(*graphs[k % 2], k)
        assert plans == ["reserve"] * 2


def test_a_graph_is_planned_again_after_the_buffers_grew(plans: list[str]) -> None:
    with load_all().open("rpc:0,cpu") as backend, backend.new_context() as small, backend.new_context() as large:
        graphs = [(ctx, graph_of(ctx, n)) for ctx, n in ((small, 3), (large, 500))]
        for k in range(6):
            check_graph(*graphs[k % 2], k)
        assert plans == ["reserve"] * 3


def test_measuring_leaves_the_buffers_of_a_device_as_they_are(backend: Backend) -> None:
    with backend.new_context() as large, backend.new_context() as small:
        graphs = [(ctx, graph_of(ctx, n)) for ctx, n in ((large, 64), (small, 8))]
        whole = backend.memory().on("rpc:0").graph.size
        assert whole > 0
        sizes = [ctx.memory() for ctx, _ in graphs]  # what each needs by itself
        assert all(set(size) == {"rpc:0", "cpu"} for size in sizes)
        assert sizes[0]["rpc:0"].size == whole > sizes[1]["rpc:0"].size
        assert backend.memory().on("rpc:0").graph.size == whole, "they are still there"
        for k, graph in enumerate(graphs):
            check_graph(*graph, k)


def test_a_graph_that_is_inspected_is_not_closed_meanwhile(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with backend.new_context() as ctx:
        graph_of(ctx, 8)
        lock = backend.lock  # type: ignore[attr-defined]
        held: list[bool] = []

        def try_lock() -> None:
            held.append(not lock.acquire(blocking=False))
            if not held[-1]:
                lock.release()

        def unit(self: ScheduledGraph, tensor: Any) -> int:
            other = threading.Thread(target=try_lock)
            other.start()
            other.join()
            return 0

        monkeypatch.setattr(ScheduledGraph, "unit", unit)
        assert ctx.placements()
        assert held
        assert all(held)


def test_closing_all_graphs_frees_the_buffers(backend: Backend) -> None:
    with backend.new_context() as ctx:
        graph_of(ctx, 64)
    assert backend.memory().on("rpc:0").graph.size == 0
    with backend.new_context() as ctx:
        check_graph(ctx, graph_of(ctx, 64), 3)


def product(backend: Backend, n_rows: int) -> tuple[Context, dict[Tensor, Any]]:
    ctx = backend.new_context()
    x, y = ctx.input("x", (n_rows, 64)), ctx.input("y", (64, 64))
    ctx.forward(x @ y)
    return ctx, {x: np.ones((n_rows, 64), np.float32), y: np.ones((64, 64), np.float32)}


def test_a_graph_that_fits_into_the_buffers_is_planned_while_another_one_runs(server: Server) -> None:
    with load_all().open("rpc:0") as backend:
        running, feeds = product(backend, 256)
        running.compute(feeds)
        assert running.start(feeds)
        smaller, _ = product(backend, 32)
        smaller.reserve()
        assert backend.running is running._executable  # type: ignore[attr-defined]
        larger, _ = product(backend, 512)
        larger.reserve()
        assert backend.running is None, "its memory may have moved"  # type: ignore[attr-defined]
        [output] = running.graph().outputs
        np.testing.assert_array_equal(running.read(output), np.full((256, 64), 64.0))


@pytest.mark.parametrize(("n_rows", "known"), [(8, True), (200, False)])
def test_a_device_that_captures_graphs_does_not_know_long_prompts_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, n_rows: int, known: bool
) -> None:
    """CUDA compares the first node, whose padding has the graph's number."""
    monkeypatch.setattr("hotshoe_ggml.unit._CAPTURING", frozenset({"RPC"}))
    with load_all().open("rpc:0") as backend:
        ctx, feeds = product(backend, n_rows)
        numbers = []
        for _ in range(2):
            ctx.compute(feeds)
            node = lib().ggml_graph_node(ctx._executable._cgraph, 0)  # type: ignore[union-attr]
            numbers.append(ffi.buffer(node.padding)[:])
        assert (numbers[0] == numbers[1]) == known


@pytest.mark.parametrize(
    ("kind", "gib", "n_rows"), [(DeviceType.GPU, 80, 2048), (DeviceType.GPU, 24, 512), (DeviceType.CPU, 80, 512)]
)
def test_a_gpu_with_much_memory_gets_long_prompts_in_large_steps(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: DeviceType, gib: int, n_rows: int
) -> None:
    with load_all().open("rpc:0") as backend:
        unit = backend.units[0]  # type: ignore[attr-defined]
        monkeypatch.setattr(unit, "device", replace(unit.device, type=kind, memory_total=gib << 30))
        assert backend.cache_config().n_rows == n_rows
