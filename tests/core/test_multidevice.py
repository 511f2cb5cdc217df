"""Backends over several devices: the kit's class on the fake family, and what only a fake can show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hotshoe_core.backend import Backend, Placement, WeightData
from hotshoe_core.device import BackendParams
from hotshoe_core.dtypes import DType
from hotshoe_core.eager import EagerBackend
from hotshoe_core.errors import BackendError, InsufficientMemoryError
from hotshoe_core.ops import swiglu
from hotshoe_core.reference import DEVICE, numpy_library
from hotshoe_core.tensor import scope
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
    """The numbers, on the second device, which lacks an op."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        backend = open_fake(2, params, capacity=1 << 30)
        backend.load([], Placement("fake:1"))
        return backend

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        """A share: the numbers are NumPy's, of which test_conformance_reference.py computes every case."""
        return [*OP_CASES[::8], *GRAPH_CASES]


def test_support_is_that_of_the_layers_device() -> None:
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


def test_weights_that_do_not_fit_name_device_and_layer() -> None:
    backend = open_fake(2, capacity=3000)
    data = np.zeros(2048, np.uint8)
    weights = [WeightData(f"w.{i}", (512,), DType.F32, data, layer=i) for i in range(3)]
    with pytest.raises(InsufficientMemoryError) as caught:
        backend.load(weights, Placement("fake:0", ("fake:0", "fake:1", "fake:1")))
    assert str(caught.value).splitlines()[0] == "fake:1 has no 2.0 KiB for the weights"
    assert "  failed: weights of layer 2, 2.0 KiB" in str(caught.value).splitlines()
    assert backend.memory().total == 0
    assert backend.placement == Placement("fake:0")
    (kept,) = backend.load([WeightData("kept", (4,), DType.F32, data[:16])]).values()
    backend.load([], Placement("fake:1"))
    assert backend.home(kept) == "fake:0"  # what is there stays where it is
    assert len(backend.load(weights[:2], Placement("fake:0", ("fake:0", "fake:1")))) == 2


def test_memory_of_a_step_is_given_back() -> None:
    """A step's values are dropped before the next: two of them would not fit."""
    backend = open_fake(1, capacity=10_000)
    ctx = backend.new_context()
    x = ctx.input("x", (500,))
    ctx.forward(x * 2.0)
    for _ in range(4):
        ctx.compute({x: np.ones(500)})


def test_one_library_a_device() -> None:
    with pytest.raises(BackendError, match=r"got 2 device\(s\) and libraries for 1"):
        EagerBackend("numpy", fake_devices(2), BackendParams(), numpy_library())
    assert EagerBackend("numpy", DEVICE, BackendParams(), numpy_library()).devices == (DEVICE,)
