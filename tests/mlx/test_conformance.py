"""MLX on the CPU against the kit, opened as a user opens it: through the loader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotshoe_core.backend import Backend
from hotshoe_core.device import BackendParams
from hotshoe_core.eager import EagerBackend
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance

pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")

from hotshoe_loader import load_all


class TestMlxCpu(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open("mlx:cpu", params)


class TestTwoDevices(MultiDeviceConformance):
    """Two streams of the CPU, as if they were devices: what runs where, and what crosses."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        from hotshoe_mlx.library import mlx_library

        (cpu,) = (d for d in load_all().devices if d.name == "mlx:cpu")
        devices = [replace(cpu, name=f"mlx:cpu-{i}") for i in range(2)]
        return EagerBackend("mlx", devices, params, [mlx_library(d) for d in devices])
