"""The whole conformance kit on Vulkan, alone and with the CPU: `make vulkan`. `make test` runs test_vulkan.py."""

from __future__ import annotations

from hotshoe_core.device import BackendParams
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance
from tests.support.vulkan import OnVulkan


class TestVulkan(OnVulkan, BackendConformance):
    params = BackendParams(n_threads=1)


class TestVulkanAndCpu(OnVulkan, MultiDeviceConformance):
    devices = ("vulkan:0", "cpu")


class TestCpuAndVulkan(OnVulkan, MultiDeviceConformance):
    devices = ("cpu", "vulkan:0")
