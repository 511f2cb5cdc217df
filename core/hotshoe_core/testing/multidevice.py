"""MultiDeviceConformance: a backend gives the same results on several devices as on one, and reports what is where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend, Placement, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.contract.memory import AllocationStatus
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.errors import BackendError, InsufficientMemoryError
from hotshoe_core.graphs.context import Context
from hotshoe_core.ops import linear, rms_norm, swiglu
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import Tensor, nodes_created

__all__ = ["MultiDeviceConformance"]

Array = np.ndarray[Any, Any]
N_LAYERS, DIM, CELLS, VOCAB = 4, 32, 8, 16
INPUT, OUTPUT = -1, N_LAYERS
ABSURD = (2**20, 2**28)  # F32: 2**50 bytes, which no machine has


def weights() -> list[WeightData]:
    """The weights of a small model: an embedding that is also the output matrix, and two matrices for each layer."""
    rng = np.random.default_rng(0)

    def make(name: str, shape: tuple[int, ...], layer: int, *uses: str) -> WeightData:
        values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        return WeightData(name, shape, DType.F32, values.reshape(-1).view(np.uint8), uses, layer)

    made = [make("embedding", (VOCAB, DIM), INPUT, "take", "linear")]
    for i in range(N_LAYERS):
        made += [make(f"gate.{i}", (DIM, DIM), i, "linear"), make(f"up.{i}", (DIM, DIM), i, "linear")]
    return [*made, make("output", (DIM, DIM), OUTPUT, "linear")]


class Model:
    """The small model, with a state for each layer, loaded on a backend."""

    def __init__(self, backend: Backend, placement: Placement) -> None:
        self.backend = backend
        self.weights = backend.load(weights(), placement)
        self.states = [backend.state((CELLS, DIM), DType.F32, f"state.{i}", i) for i in range(N_LAYERS)]

    def build(self, n: int = 3) -> tuple[Context, Tensor]:
        w, ctx = self.weights, self.backend.new_context()
        ids, at = ctx.input("ids", (n,), DType.I32), ctx.input("at", (n,), DType.I32)
        x = w["embedding"].take(ids)
        for i, state in enumerate(self.states):
            with scope(f"blk.{i}", i):
                h = rms_norm(x, eps=1e-5)
                h = swiglu(linear(h, w[f"gate.{i}"]), linear(h, w[f"up.{i}"])).tanh()
                new = state.set_rows(at, h + state.take(at) * 0.5)
                ctx.update(state, new)
                x = x + new.mean(0)
        with scope("output", OUTPUT):
            y = linear(linear(x, w["output"]), w["embedding"])
        return ctx.forward(y), y

    def compute(self, ctx: Context, y: Tensor, step: int) -> Array:
        rng = np.random.default_rng(step)
        n = y.shape[0]
        feeds = {ctx.inputs["ids"]: rng.integers(0, VOCAB, n), ctx.inputs["at"]: rng.permutation(CELLS)[:n]}
        return ctx.compute(feeds).read(y)

    def close(self) -> None:
        self.backend.release([*self.weights.values(), *self.states])


class MultiDeviceConformance:
    """A subclass defines ``open``, which opens two or more devices or calls ``pytest.skip(reason)``."""

    backend: Backend
    params = BackendParams()

    tolerance = 1e-4
    """The largest difference of logits between one device and several, relative to the largest logit."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        raise NotImplementedError(f"{cls.__name__} must define open(cls, params)")

    @classmethod
    def setup_class(cls) -> None:
        cls.backend = cls.open(cls.params)
        assert len(cls.backend.devices) > 1, "open(params) must open two devices or more"

    @classmethod
    def teardown_class(cls) -> None:
        cls.backend.close()

    @property
    def names(self) -> list[str]:
        return [d.name for d in self.backend.devices]

    def split(self) -> Placement:
        """The layers alternate over all devices; the input is on the first device, the output on the last."""
        names = self.names
        return Placement(names[0], tuple(names[i % len(names)] for i in range(N_LAYERS)), names[-1])

    def answers(self, placement: Placement, steps: int = 3) -> list[Array]:
        model = Model(self.backend, placement)
        ctx, y = model.build()
        try:
            return [model.compute(ctx, y, step) for step in range(steps)]
        finally:
            ctx.close()
            model.close()

    def placements(self) -> Sequence[Placement]:
        first, last = self.names[0], self.names[-1]
        half = N_LAYERS // 2
        return [
            self.split(),
            Placement(last, (last,) * N_LAYERS, last),
            Placement(first, (first,) * half + (last,) * (N_LAYERS - half), last),
            Placement(first, (last,) * N_LAYERS, first),
            Placement(first, (first,) * N_LAYERS, first, cache=(last,) * N_LAYERS),
            Placement(last, (last,) * N_LAYERS, last, cache=(first,) * half),
        ]

    def test_every_placement_computes_the_same(self) -> None:
        expected = self.answers(Placement(self.names[0], (self.names[0],) * N_LAYERS, self.names[0]))
        assert np.ptp(expected[-1]) > 0.1
        for placement in self.placements():
            for got, one in zip(self.answers(placement), expected):
                assert np.abs(got - one).max() <= self.tolerance * np.abs(one).max(), placement

    def test_computing_again_builds_nothing(self) -> None:
        model = Model(self.backend, self.split())
        ctx, y = model.build()
        model.compute(ctx, y, 0)
        before = (nodes_created(), replace(self.backend.counters))
        for step in range(3):
            model.compute(ctx, y, step)
        assert (nodes_created(), self.backend.counters) == before
        ctx.close()
        model.close()

    def test_memory_is_reported_by_device_and_layer(self) -> None:
        placement = self.split()
        model = Model(self.backend, placement)
        report = self.backend.memory()
        for layer in range(N_LAYERS):
            for device in self.names:
                memory = report.on(device)
                holds = device == placement.layers[layer]
                assert (layer in memory.weights and memory.weights[layer].size > 0) == holds
                assert (layer in memory.cache and memory.cache[layer].size > 0) == holds
        assert report.on(placement.input).input_weights.size >= VOCAB * DIM * 4
        assert OUTPUT in report.on(placement.output).weights
        model.close()
        assert not any(d.weights or d.cache for d in self.backend.memory().devices)

    def test_states_may_lie_apart_from_their_layers(self) -> None:
        first, last = self.names[0], self.names[-1]
        model = Model(self.backend, Placement(first, (first,) * N_LAYERS, first, cache=("", last)))
        report = self.backend.memory()
        assert set(report.on(last).cache) == {1}
        assert set(report.on(first).cache) == set(range(N_LAYERS)) - {1}
        assert {0, 1} <= set(report.on(first).weights)
        assert [self.backend.device_of_tensor(state) for state in model.states[:2]] == [first, last]
        ctx, _ = model.build()
        ctx.reserve()
        rows = {p.layer: p.device for p in ctx.placements() if p.op == "set_rows"}
        assert (rows[0], rows[1]) == (first, last)
        assert {(c.source, c.target) for c in ctx.splits().crossings} == {(first, last), (last, first)}
        ctx.close()
        model.close()

    def test_one_tensor_is_loaded_on_two_devices(self) -> None:
        output = weights()[-1]
        both = [replace(output, layer=INPUT), replace(output, variant=self.names[-1])]
        loaded = self.backend.load(both, self.split())
        assert [t.name for t in loaded.values()] == ["output", "output"]
        assert [self.backend.device_of_tensor(loaded[w.key]) for w in both] == [self.names[0], self.names[-1]]
        self.backend.release(list(loaded.values()))

    def test_arrays_are_on_the_devices_that_hold_them(self) -> None:
        """Weights, and states that a graph has computed. An eager library may say where an array is."""
        if not isinstance(self.backend, EagerBackend):
            pytest.skip("the backend does not say where its arrays are")
        model = Model(self.backend, self.split())
        ctx, y = model.build()
        model.compute(ctx, y, 0)
        for tensor in (*model.weights.values(), *model.states):
            device = self.backend.device_of_tensor(tensor)
            where = self.backend.libraries[device].where
            assert where is None or where(tensor.handle) == device
        ctx.close()
        model.close()

    def test_free_memory_is_that_of_each_device(self) -> None:
        free = self.backend.memory_free()
        assert set(free) == set(self.names)
        model = Model(self.backend, self.split())
        for device in self.backend.memory().devices:
            known = free.get(device.device, 0)  # 0: unknown, or the host, which only helps
            assert known == 0 or known >= device.total
        for d in self.backend.devices:
            assert not d.memory_total or free[d.name] <= d.memory_total
        model.close()

    def test_nodes_run_on_the_device_of_their_layer(self) -> None:
        placement = self.split()
        model = Model(self.backend, placement)
        ctx, _ = model.build()
        ctx.reserve()
        products = [p for p in ctx.placements() if p.op == "linear" and p.node.startswith("blk.")]
        assert products
        for p in products:
            assert p.device == placement.layers[int(p.node.split(".")[1])]
        odd = [p for p in ctx.placements() if p.how == "fallback"]
        assert all(p.device in self.names for p in odd)
        ctx.close()
        model.close()

    def test_a_device_that_is_not_opened_is_refused(self) -> None:
        before = self.backend.memory().total
        with pytest.raises(BackendError, match="nowhere:7"):
            self.backend.load(weights(), Placement(self.names[0], ("nowhere:7",) * N_LAYERS))
        assert self.backend.memory().total == before

    def test_a_failure_names_device_and_layer(self) -> None:
        placement = self.split()
        model = Model(self.backend, placement)
        before = self.backend.memory().total
        for layer in (1, 2):
            with pytest.raises(InsufficientMemoryError) as caught:
                self.backend.state(ABSURD, DType.F32, "absurd", layer)
            failed = [d for d in caught.value.memory.devices if d.failed]
            assert [d.device for d in failed] == [placement.layers[layer]]
            assert failed[0].cache[layer].status is AllocationStatus.FAILED
        assert self.backend.memory().total == before
        ctx, y = model.build()
        assert np.isfinite(model.compute(ctx, y, 0)).all()
        ctx.close()
        model.close()

    def test_a_dry_run_plans_each_device(self) -> None:
        model = Model(self.backend, self.split())
        real = self.backend.memory()
        model.close()
        dry = self.open(replace(self.params, allocate=False))
        planned = Model(dry, self.split())
        for a, b in zip(real.devices, dry.memory().devices):
            assert {i: m.size for i, m in a.weights.items()} == {i: m.size for i, m in b.weights.items()}
            assert {i: m.size for i, m in a.cache.items()} == {i: m.size for i, m in b.cache.items()}
            assert not any(m.status is AllocationStatus.ALLOCATED for m in (*b.weights.values(), *b.cache.values()))
        planned.close()
        dry.close()
