"""The whole conformance kit on Vulkan and a model of each family, alone and with the CPU: `make vulkan`.

`make test` runs test_vulkan.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe_core.contract.device import BackendParams, DeviceType
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance
from hotshoe_core.testing.run import AnyCase
from hotshoe_loader import load_all
from tests.support.each_family import FAMILIES, require_same_as_cpu
from tests.support.text_models import folder, gguf  # noqa: F401  (fixtures)
from tests.support.vulkan import OnVulkan, require_vulkan


@pytest.fixture(autouse=True)
def in_reasonable_time(request: pytest.FixtureRequest) -> None:
    device = next(d for d in load_all().devices if d.name == require_vulkan())
    if device.type is DeviceType.ACCEL and re.search(r"IQ[123]_|F16\[7,1,608\]", request.node.name):
        pytest.skip("Mesa compiles shaders of this kind for the CPU for many minutes: two were stopped after eleven")


class TestVulkan(OnVulkan, BackendConformance):
    params = BackendParams(n_threads=1)

    def tolerance(self, case: AnyCase) -> float:
        """As the base class; the shaders also add up products of F16 in half precision: thousands of terms."""
        return max(super().tolerance(case), 1e-2 if "4352] F16" in case.id else 0.0)

    def xfail(self, case: AnyCase) -> str | None:
        ordering = case.op in ("max", "min", "argmax", "argsort", "top_k")
        if ordering and "-nan" in case.id and not case.id.endswith("k=1"):
            return "ggml's shaders compare numbers: a NaN is neither the largest nor the last"
        return super().xfail(case)


class TestVulkanAndCpu(OnVulkan, MultiDeviceConformance):
    devices = ("vulkan:0", "cpu")


class TestCpuAndVulkan(OnVulkan, MultiDeviceConformance):
    devices = ("cpu", "vulkan:0")


@pytest.mark.parametrize("device", ["vulkan:0", ["vulkan:0", "cpu"]], ids=str)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_each_family(architecture: str, device: str | list[str], gguf: Callable[..., Path]) -> None:  # noqa: F811
    require_vulkan()
    has_experts = any(name in architecture for name in ("Moe", "Mixtral", "Deepseek"))
    require_same_as_cpu(gguf(architecture), device, 2e-2, but_for=2 if has_experts else 0)
