"""Backends over several devices: the kit on the fake family, and tests that need a fake."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend, Placement, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.reference import numpy_library, reference_device
from hotshoe_core.errors import BackendError, InsufficientMemoryError, PlacementError
from hotshoe_core.graphs.context import Context
from hotshoe_core.ops import linear, swiglu
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.scope import scope
from hotshoe_core.testing import GRAPH_CASES, OP_CASES, BackendConformance, MultiDeviceConformance
from hotshoe_core.testing.fake import fake_devices, open_fake
from hotshoe_core.testing.run import AnyCase


class TestFake(MultiDeviceConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return open_fake(2, params, capacity=1 << 30)


class TestThree(MultiDeviceConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return open_fake(3, params, capacity=1 << 30)


class TestFakeOps(BackendConformance):
    """The op cases on the second device, which lacks an op."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        backend = open_fake(2, params, capacity=1 << 30)
        backend.load([], Placement("fake:1"))
        return backend

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        """Some of the cases: the numbers come from NumPy, and test_conformance_reference.py computes every case."""
        return [*OP_CASES[::8], *GRAPH_CASES]


def test_supports_depends_on_the_device_of_the_layer() -> None:
    backend = open_fake(2)
    backend.load([], Placement("fake:0", ("fake:0", "fake:1"), "fake:1"))
    ctx = backend.new_context()
    x = ctx.input("x", (4,))
    for layer in (0, 1):
        with scope(f"blk.{layer}", layer):
            x = swiglu(x, x).tanh()
    ctx.forward(x).compute({ctx.inputs["x"]: np.ones(4)})
    placed = {(p.node, p.device, p.how) for p in ctx.placements()}
    assert ("blk.0.swiglu", "fake:0", "native") in placed
    assert ("blk.1.swiglu.mul", "fake:1", "decomposed") in placed
    assert ("blk.0.tanh", "fake:0", "native") in placed
    assert ("blk.1.tanh", "fake:0", "fallback") in placed


def test_a_strict_backend_refuses_ops_that_would_leave_their_device() -> None:
    backend = open_fake(2)
    backend.load([], Placement("fake:0", ("fake:0", "fake:1"), "fake:1"))
    backend.strict = True

    def graph(layer: int) -> Context:
        ctx = backend.new_context()
        with scope(f"blk.{layer}", layer):
            y = ctx.input("x", (4,)).tanh()
        return ctx.forward(y)

    graph(0).reserve()
    refused = graph(1)
    with pytest.raises(PlacementError, match=r"tanh \(blk\.1\.tanh, layer 1\) would run on fake:0") as caught:
        refused.reserve()
    assert (caught.value.op, caught.value.layer, caught.value.device) == ("tanh", 1, "fake:0")
    assert backend.memory().on("fake:1").graph.size == 0  # nothing of it stays
    backend.strict = False
    assert refused.reserve().splits().fallbacks[0].node == "blk.1.tanh"


def test_nodes_of_experts_run_on_the_device_of_the_experts() -> None:
    """The products and the ops between them run there; the op that adds the result to the layer does not."""
    backend = open_fake(2)
    placement = Placement("fake:0", ("fake:0",), "fake:0", experts=("fake:1",))
    data = np.ones(2 * 4 * 4, np.float32).view(np.uint8)
    up, down = backend.load(
        [WeightData(n, (2, 4, 4), DType.F32, data, ("linear_experts",), 0) for n in ("up", "down")], placement
    ).values()
    (gate,) = backend.load([WeightData("gate", (4, 4), DType.F32, data[:64], ("linear",), 0)]).values()
    assert [backend.device_of_tensor(w) for w in (up, down, gate)] == ["fake:1", "fake:1", "fake:0"]
    ctx = backend.new_context()
    x, chosen = ctx.input("x", (3, 4)), ctx.input("chosen", (3, 1), DType.I32)
    with scope("blk.0", 0):
        h = linear(x, gate)
        hidden = ops.linear_experts(h[:, None], up, chosen).exp()
        y = h + ops.linear_experts(hidden, down, chosen)[:, 0]
    ctx.forward(y).compute({x: np.ones((3, 4)), chosen: np.zeros((3, 1), np.int32)})
    np.testing.assert_allclose(ctx.read(y), 4 + 4 * np.exp(16.0), rtol=1e-5)
    splits = ctx.splits()
    assert [s.device for s in splits.splits] == ["fake:0", "fake:1", "fake:0"]
    assert {n.op: n.device for n in splits.nodes}["exp"] == "fake:1"
    assert splits.nbytes == 2 * 3 * 4 * 4
    assert not splits.fallbacks
    assert backend.new_context().splits().nodes == ()


def test_weights_that_do_not_fit_name_device_and_layer() -> None:
    backend = open_fake(2, capacity=3000)
    data = np.zeros(2048, np.uint8)
    weights = [WeightData(f"w.{i}", (512,), DType.F32, data, layer=i) for i in range(3)]
    with pytest.raises(InsufficientMemoryError) as caught:
        backend.load(weights, Placement("fake:0", ("fake:0", "fake:1", "fake:1")))
    assert str(caught.value).splitlines()[0] == "fake:1 cannot allocate 2.0 KiB for the weights"
    assert "  failed: weights of layer 2, 2.0 KiB" in str(caught.value).splitlines()
    assert backend.memory().total == 0
    assert backend.placement == Placement("fake:0")
    (kept,) = backend.load([WeightData("kept", (4,), DType.F32, data[:16])]).values()
    backend.load([], Placement("fake:1"))
    assert backend.device_of_tensor(kept) == "fake:0"  # what is there stays where it is
    assert len(backend.load(weights[:2], Placement("fake:0", ("fake:0", "fake:1")))) == 2


def test_the_memory_of_a_step_is_freed() -> None:
    """The values of a step are freed before the next one: both would not fit."""
    backend = open_fake(1, capacity=10_000)
    ctx = backend.new_context()
    x = ctx.input("x", (500,))
    ctx.forward(x * 2.0)
    for _ in range(4):
        ctx.compute({x: np.ones(500)})


def test_the_numbers_of_libraries_and_devices_must_agree() -> None:
    with pytest.raises(BackendError, match=r"got 2 device\(s\) and libraries for 1"):
        EagerBackend("numpy", fake_devices(2), BackendParams(), numpy_library())
    device = reference_device()
    assert EagerBackend("numpy", device, BackendParams(), numpy_library()).devices == (device,)
