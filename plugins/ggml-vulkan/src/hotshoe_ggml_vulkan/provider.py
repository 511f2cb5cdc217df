"""VulkanProvider: the GPUs that Vulkan lists, and software devices, which are marked as such."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_ggml.native import load_backend
from hotshoe_ggml.provider import GgmlProvider

__all__ = ["LIBRARY_DIR", "VulkanProvider"]

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"


class VulkanProvider(GgmlProvider):
    """Devices ``vulkan:0``, ``vulkan:1``, …: GPUs first, then software devices, which are never the default."""

    def __init__(self) -> None:
        super().__init__("ggml-vulkan", "vulkan", LIBRARY_DIR, "vulkan")

    def devices(self, library: Path | None) -> Sequence[Device]:
        """Vulkan's devices. Raises DeviceNotFoundError, with the reason, if Vulkan lists none."""
        found = super().devices(library)
        if library is not None and not found:
            why = load_backend(library).failures()
            raise DeviceNotFoundError(
                f"Vulkan lists no device: {why[1] if why and why[1] else 'no driver offers one'}",
                hint="install the GPU's driver (AMD and Intel: apt install mesa-vulkan-drivers; NVIDIA: its own); "
                "`vulkaninfo --summary` lists what Vulkan finds",
            )
        return [
            dataclasses.replace(device, description=f"{device.description}, a software device: it computes on the CPU")
            if device.type is DeviceType.ACCEL  # the library's type for a device that is not a GPU
            else device
            for device in found
        ]
