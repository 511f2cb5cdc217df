"""The kit on MLX's CPU device, which is opened by the loader as for a user."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance, compute, error
from tests.fuzz.graphs import random_graph

pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")

from hotshoe_loader import load_all


class TestMlxCpu(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open("mlx:cpu", params)


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_random_graphs_agree_with_numpy(seed: int) -> None:
    case = random_graph(seed, 12)  # of an even seed: nothing below F32, so that they may be compared closely
    with open_reference() as reference, np.errstate(all="ignore"):
        expected = compute(reference, case)
    with load_all().open("mlx:cpu") as backend:
        got = compute(backend, case)
    assert max(error(g, w) for step, wanted in zip(got, expected) for g, w in zip(step, wanted)) < 1e-3


class TestTwoDevices(MultiDeviceConformance):
    """Two streams of the CPU as two devices: the device of each node, and copies between them."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        from hotshoe_mlx.library import mlx_library

        (cpu,) = (d for d in load_all().devices if d.name == "mlx:cpu")
        devices = [replace(cpu, name=f"mlx:cpu-{i}") for i in range(2)]
        return EagerBackend("mlx", devices, params, [mlx_library(d) for d in devices])
