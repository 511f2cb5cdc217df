"""Devices that compute and copy later than the host queues it, as busy GPUs do; and interrupts meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.testing import GRAPH_CASES, OpConformance
from hotshoe_core.testing.run import AnyCase
from hotshoe_ggml.native import ffi, ggml_functions, lib
from hotshoe_ggml.run.scheduler import Scheduler
from tests.support.rpc_server import backend_of_a_server


class LateDevices:
    """Functions for our native code: what it queues on a device is done when the host waits for the device.

    A server's device does all at once. It stands for a device that copies values from the host by itself.
    """

    def __init__(self) -> None:
        self.functions = ffi.new("struct hotshoe_ggml *", ggml_functions()[0])
        fields = dict(ffi.typeof("struct hotshoe_ggml").fields)
        names = ("tensor_set_async", "graph_compute_async", "synchronize")
        self._callbacks = {name: ffi.callback(fields[name].type, getattr(self, name)) for name in names}
        for name, callback in self._callbacks.items():
            setattr(self.functions, name, callback)
        self._queue: list[Callable[[], Any]] = []

    def tensor_set_async(self, unit: Any, *args: Any) -> None:
        self._queue.append(lambda: lib().ggml_backend_tensor_set_async(unit, *args))

    def graph_compute_async(self, unit: Any, graph: Any) -> int:
        if "CPU" in ffi.string(lib().ggml_backend_name(unit)).decode():
            return int(lib().ggml_backend_graph_compute_async(unit, graph))
        self._queue.append(lambda: lib().ggml_backend_graph_compute_async(unit, graph))
        return int(lib().GGML_STATUS_SUCCESS)

    def synchronize(self, unit: Any) -> None:
        queue, self._queue = self._queue, []
        for queued in queue:
            queued()
        lib().ggml_backend_synchronize(unit)


@contextlib.contextmanager
def late_backend() -> Iterator[Backend]:
    late = LateDevices()
    with pytest.MonkeyPatch.context() as patch, backend_of_a_server() as backend:
        patch.setattr("hotshoe_ggml.run.scheduler.ggml_functions", lambda: late.functions)
        yield backend


class TestGraphs(OpConformance):
    """What is on the host stays as it is until the device has copied it: a CPU's graph once wrote there before."""

    running = contextlib.ExitStack()

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return cls.running.enter_context(late_backend())

    @classmethod
    def teardown_class(cls) -> None:
        cls.running.close()

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        return GRAPH_CASES


def test_a_run_after_an_interrupt_gets_its_own_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while the host waits for the device."""
    with backend_of_a_server() as backend:
        ctx = backend.new_context()
        x = ctx.input("x", (3,))
        ctx.forward(y := x * 2.0).compute({x: [1, 1, 1]})
        synchronize = Scheduler.synchronize

        def interrupted(self: Scheduler) -> None:
            synchronize(self)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Scheduler, "synchronize", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ctx.compute({x: [2, 2, 2]})
        assert ctx.compute({x: [21, 21, 21]}).read(y).tolist() == [42, 42, 42]
        ctx.start({x: [4, 4, 4]})
        ctx.memory()  # measuring takes the graph's memory: it waits
        assert ctx.read(y).tolist() == [8, 8, 8]
