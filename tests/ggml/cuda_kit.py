"""The whole conformance kit on an NVIDIA GPU, alone and with the CPU: `pytest tests/ggml/cuda_kit.py`.

All families on it: `pytest tests/families tests/towers --device cuda:0 --bound 2e-2`.
"""

from __future__ import annotations

import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance
from hotshoe_core.testing.run import AnyCase
from hotshoe_loader import load_all


class OnCuda:
    """``open`` for a class of the conformance kit. devices: those that it opens, CUDA's among them."""

    devices: tuple[str, ...] = ("cuda:0",)

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        registry = load_all()
        if "cuda:0" not in {device.name for device in registry.devices}:
            pytest.skip("there is no device cuda:0: `hotshoe doctor` says why")
        return registry.open(list(cls.devices), params)


class TestCuda(OnCuda, BackendConformance):
    def xfail(self, case: AnyCase) -> str | None:
        ordering = case.op in ("max", "min", "argmax", "argsort", "top_k")
        if ordering and "-nan" in case.id and not case.id.endswith("k=1"):
            return "ggml's kernels compare numbers: a NaN is neither the largest nor the last"
        if case.id == "cumsum F32[4,5]-nan":
            return "ggml's sum of a row is a tree: a NaN reaches elements before it"
        if case.op in ("sin", "cos") and "-farther" in case.id:
            return "the fast sin and cos of CUDA have few digits for angles of many turns"
        return super().xfail(case)


class TestCudaAndCpu(OnCuda, MultiDeviceConformance):
    devices = ("cuda:0", "cpu")


class TestCpuAndCuda(OnCuda, MultiDeviceConformance):
    devices = ("cpu", "cuda:0")
