"""MemoryConformance: tests of the memory report, of memory that is given back, and of memory that is missing."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams, DeviceType
from hotshoe_core.contract.memory import AllocationStatus, DeviceMemory
from hotshoe_core.errors import BackendError, GraphError, InsufficientMemoryError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.testing.product import ABSURD, WEIGHT, check, load, numbers, product
from hotshoe_core.testing.run import F32, I32

__all__ = ["MemoryConformance"]

LARGE = (9, 2**20)
"""F32: 36 MiB. Above 32 MiB, malloc gives memory back to the system at once."""
N_LARGE = 3


def sizes(d: DeviceMemory) -> tuple[str, dict[int, int], dict[int, int], int]:
    weights, cache = ({layer: m.size for layer, m in parts.items()} for parts in (d.weights, d.cache))
    return d.device, weights, cache, d.graph.size


def in_use(backend: Backend) -> int:
    """Bytes that this process has in main memory, less those free on the backend's GPUs; 0 if unknown.

    Other processes change what is free: run it alone on the GPU.
    """
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    free = backend.memory_free()
    return pages * os.sysconf("SC_PAGE_SIZE") - sum(free[d.name] for d in backend.devices if d.type is DeviceType.GPU)


def failure(compute: Callable[[], object]) -> InsufficientMemoryError | None:
    """The error if there is not enough memory."""
    try:
        compute()
    except InsufficientMemoryError as e:
        return e
    return None


class MemoryConformance:
    """Tests of a backend's memory. A subclass defines ``open``, as for OpConformance."""

    backend: Backend
    params = BackendParams()

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        raise NotImplementedError(f"{cls.__name__} must define open(cls, params)")

    def test_the_memory_report_adds_up(self) -> None:
        with self.open(self.params) as backend:
            assert backend.memory().total == 0
            load(backend, "a", layer=0), load(backend, "b", layer=1)
            backend.state((16, 32), DType.F32, "cache", layer=1)
            weight = load(backend, "c")
            (one, _, _), (two, _, _) = product(backend, weight), product(backend, weight, n=64)
            graphs = [sum(m.size for m in ctx.reserve().memory().values()) for ctx in (one, two)]
            report = backend.memory()
            (device,) = [d for d in report.devices if d.weights]  # with several devices, all is on one
            graph = sum(d.graph.size for d in report.devices)  # inputs may be in host memory
            assert set(device.weights) == {-1, 0, 1}
            assert all(m.size >= WEIGHT.nbytes for m in device.weights.values())
            assert device.cache.keys() == {1}
            assert device.cache[1].size >= 16 * 32 * 4
            assert max(graphs) <= graph <= sum(graphs)  # graphs may share a buffer
            assert all(size > 0 for size in graphs)
            graph_parts = [d.graph for d in report.devices if d.graph.size]
            parts = (*device.weights.values(), *device.cache.values(), *graph_parts)
            assert report.total == sum(d.total for d in report.devices) == sum(m.size for m in parts)
            assert {m.status for m in parts} == {AllocationStatus.ALLOCATED}
            two.close()
            assert graphs[0] <= sum(d.graph.size for d in backend.memory().devices) <= graph
            one.close()
            assert not any(d.graph.size for d in backend.memory().devices)

    def test_a_dry_run_gives_the_same_report_and_computes_nothing(self) -> None:
        reports = []
        for allocate in (True, False):
            with self.open(replace(self.params, allocate=allocate)) as backend:
                weight = load(backend, layer=3)
                state = backend.state((16, 64), DType.F16, "cache", layer=3)
                ctx, x, _ = product(backend, weight)
                ids, rows = ctx.input("ids", (2,), I32), ctx.input("rows", (2, 64))
                ctx.update(state, state.set_rows(ids, rows))
                ctx.reserve()
                report = backend.memory()
                reports.append([sizes(d) for d in report.devices])
                if not allocate:
                    with pytest.raises(GraphError, match="dry run"):
                        ctx.compute({x: numbers(0), ids: [0, 1], rows: np.zeros((2, 64))})
                    parts = [m for d in report.devices for m in (*d.weights.values(), *d.cache.values(), d.graph)]
                    assert {m.status for m in parts} == {AllocationStatus.UNALLOCATED}
        assert reports[0] == reports[1]

    def test_a_dry_run_of_what_does_not_fit(self) -> None:
        with self.open(replace(self.params, allocate=False)) as backend:
            backend.state(ABSURD, DType.F32, "absurd")
            assert backend.memory().total >= 2**50

    def test_out_of_memory_by_a_state(self) -> None:
        before = self.backend.memory().total
        with pytest.raises(InsufficientMemoryError) as caught:
            self.backend.state(ABSURD, DType.F32, "absurd", layer=7)
        (device,) = (d for d in caught.value.memory.devices if d.failed)
        assert device.cache[7].status is AllocationStatus.FAILED
        assert device.cache[7].size >= 2**50
        assert self.backend.memory().total == before
        self._works()

    def test_out_of_memory_by_a_graph(self) -> None:
        """A compiler may need no memory for it: then the result must be right."""
        before = self.backend.memory().total
        ctx = self.backend.new_context()
        x = ctx.input("x", (1, 1))
        total = (x.expand(*ABSURD) + 1.0).sum()
        error = failure(lambda: ctx.forward(total).compute({x: np.ones((1, 1))}))
        if error is None:
            np.testing.assert_allclose(ctx.read(total), 2.0 * ABSURD[1], rtol=1e-3)
        else:
            assert any(d.graph.status is AllocationStatus.FAILED for d in error.memory.devices)
        ctx.close()
        assert self.backend.memory().total <= before  # a shared buffer is allocated again at the next run
        self._works()

    def test_a_state_after_a_run_that_fails(self) -> None:
        """Its rows are old or new, or an error says that it is lost. If a compiler needs no memory, they are new."""
        state = self.backend.state((4, 3), F32, "kept")
        writer, failing, reader = (self.backend.new_context() for _ in range(3))
        writer.update(state, state * 0.0 + 7.0).compute()
        new = state.set_rows(failing.input("at", (1,), I32), failing.input("rows", (1, 3)))
        failing.update(state, new)
        total = (new.sum(axis=None).reshape(1, 1).expand(*ABSURD) + 1.0).sum()
        feeds = {failing.inputs["at"]: [2], failing.inputs["rows"]: np.full((1, 3), 8.0)}
        error = failure(lambda: failing.forward(total).compute(feeds))
        try:
            value, lost = reader.forward(state).compute().read(state), ""
        except BackendError as e:
            value, lost = np.empty(0), str(e)
        if lost:
            assert error is not None, "a run that does not fail loses nothing"
            assert state.name in lost
        else:
            assert (value[[0, 1, 3]] == 7).all()
            assert value[2].tolist() in ([[8.0] * 3] if error is None else [[7.0] * 3, [8.0] * 3])
        for ctx in (writer, failing, reader):
            ctx.close()
        self.backend.release([state])
        self._works()

    # What was released or closed holds no memory, even if a caller still refers to it

    def test_weights_are_given_back(self) -> None:
        self._is_given_back(self._large_weight)

    def test_states_are_given_back(self) -> None:
        self._is_given_back(self._large_state)

    def test_graphs_are_given_back(self) -> None:
        self._is_given_back(self._large_graph)

    def test_backends_are_given_back(self) -> None:
        self._is_given_back(self._large_backend)

    def _is_given_back(self, use: Callable[[], object]) -> None:
        kept = [use()]  # the first use also counts what is allocated once
        before = in_use(self.backend)
        if not before:
            pytest.skip("this system does not tell how much memory a process uses")
        kept += [use() for _ in range(N_LARGE)]
        assert in_use(self.backend) - before < len(kept) * F32.nbytes(LARGE) / 2

    def _large_weight(self) -> object:
        backend = self.backend
        weight = load(backend, values=np.ones(LARGE, np.float32), use="sum")
        with backend.new_context() as ctx:
            ctx.forward(weight.sum(axis=None)).compute()
        backend.release([weight])
        return weight

    def _large_state(self) -> object:
        backend = self.backend
        state = backend.state(LARGE, F32, "large")
        with backend.new_context() as ctx:
            ctx.update(state, state + 1.0).compute()
        backend.release([state])
        return state

    def _large_graph(self) -> object:
        with self.backend.new_context() as ctx:
            x = ctx.input("x", (1, LARGE[1]))
            ctx.forward(x.expand(*LARGE) + 1.0).compute({x: np.ones((1, LARGE[1]))})
        return ctx

    def _large_backend(self) -> object:
        with self.open(self.params) as backend:
            state, ctx = backend.state(LARGE, F32, "large"), backend.new_context()
            ctx.update(state, state + 1.0).forward(state + 2.0).compute()
        return backend, state, ctx

    def test_sizes_are_near_the_truth(self) -> None:
        """A weight and a state of a mebibyte each, which fit into what was free before."""
        n = 2**20
        with self.open(self.params) as backend:
            free = backend.memory_free()
            load(backend, layer=3, values=np.ones((512, 512), np.float32))
            backend.state((512, 512), F32, "state", layer=3)
            for held in (d for d in backend.memory().devices if d.weights):
                assert n <= held.weights[3].size < 1.25 * n
                assert n <= held.cache[3].size < 1.25 * n
                assert free[held.device] == 0 or free[held.device] >= 2 * n  # 0: the driver cannot tell
            for d in backend.devices:
                assert not d.memory_total or free[d.name] <= d.memory_total

    def _works(self) -> None:
        weight = load(self.backend)
        ctx, x, y = product(self.backend, weight)
        check(ctx.compute({x: numbers(0)}).read(y), numbers(0))
        ctx.close()
        self.backend.release([weight])
