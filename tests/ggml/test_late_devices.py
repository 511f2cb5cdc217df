"""Devices that compute and copy later than the host queues it, as busy GPUs do: all graphs of the conformance kit."""

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
