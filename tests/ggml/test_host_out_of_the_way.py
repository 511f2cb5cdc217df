"""What the host does for each step on a device: inputs go straight to it, and the host waits once. Over RPC."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.text import TextModel
from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import constant
from hotshoe_loader import load_all
from tests.support.rpc_server import Server

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.run import executable, scheduler

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

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(lib(), name)
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
    ("device", "n_splits", "n_inputs"), [("rpc:0", 1, 0), ("rpc:0,cpu", 2, 1)], ids=["alone", "with the CPU"]
)
def test_splits_and_copied_inputs(
    device: str, n_splits: int, n_inputs: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU looks up the embedding, which is the one value that crosses."""
    monkeypatch.setenv("GGML_SCHED_DEBUG", "1")
    options: Any = {"n_gpu_layers": "all"} if "cpu" in device else {}
    with hotshoe.load_model(SHIPPED, device, **options) as model:
        assert isinstance(model, TextModel)
        with caplog.at_level(logging.DEBUG, "hotshoe.ggml"):
            model.generate("In the beginning", max_tokens=2, temperature=0)
    splits = re.findall(r"## SPLIT #(\d+): .* # (\d+) inputs", caplog.text)
    last = [int(n) for i, n in splits[-n_splits:]]
    assert [i for i, _ in splits[-n_splits:]] == [str(i) for i in range(n_splits)]
    assert sum(last) == n_inputs


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
        feeds: dict[Any, Any] = {x: np.arange(12).reshape(3, 4), y: np.array([2, 0])}
        for _ in range(2):
            watched.calls.clear()
            ctx.compute(feeds)
            results = [output.read() for output in outputs]
            assert watched.count("ggml_backend_sched_synchronize") == 1
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
    watched = Watched()
    new = lib().ggml_backend_sched_new
    given: list[list[Any]] = []

    def sched_new(backends: Any, types: Any, n: int, *others: Any) -> Any:
        given.append(list(ffi.unpack(types, n)))
        return new(backends, ffi.NULL, n, *others)  # a buffer type that does not exist cannot be used

    watched.__dict__["ggml_backend_sched_new"] = sched_new
    monkeypatch.setattr(scheduler, "lib", lambda: watched)
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


def test_switching_between_graphs_restores_each_as_it_was_built(backend: Backend) -> None:
    """Allocating a graph changes its tensors: their memory, and sources that were copied from another device."""
    with backend.new_context() as one, backend.new_context() as other:
        graphs = []
        for ctx, n in ((one, 3), (other, 5)):
            x = ctx.input("x", (n, 4))
            y = ops.equal(x, x).cast(DType.F32) + ops.linear(x, constant(np.ones((4, 4), np.float32)))
            total = x.sum(axis=-1)
            graphs.append((ctx.forward(y, total), x, y, total, n))
        for k in range(6):
            ctx, x, y, total, n = graphs[k % 2]
            ctx.compute({x: np.full((n, 4), k, np.float32)})
            assert np.array_equal(ctx.read(y), np.full((n, 4), 1 + 4 * k))
            assert np.array_equal(ctx.read(total), np.full(n, 4 * k))


def test_a_new_graph_leaves_the_buffers_of_a_device_as_they_are(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring a graph would free buffers that are too small for it, and allocating it makes them again."""
    watched = Watched()
    monkeypatch.setattr(scheduler, "lib", lambda: watched)
    with backend.new_context() as one, backend.new_context() as other:
        for ctx, n in ((one, 64), (other, 8)):
            x = ctx.input("x", (n, 4))
            ctx.forward(ops.equal(x, x).cast(DType.F32) + x * 2.0).reserve()
        assert watched.count("ggml_backend_sched_reserve_size") == 0
        whole = backend.memory().on("rpc:0").graph.size
        assert all(set(ctx.memory()) == {"rpc:0", "cpu"} for ctx in (one, other))  # what each needs by itself
        assert whole > 0
        assert backend.memory().on("rpc:0").graph.size == whole, "they are still there"
