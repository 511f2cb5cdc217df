"""A hotshoe backend over PyTorch: `torch:cpu`, and `torch:0`, … for torch's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotshoe_core import Backend, BackendParams, Device, DeviceType, hookimpl


class TorchProvider:
    """The provider that the loader finds. It imports torch only when the loader asks for devices."""

    name = "torch"
    family = "torch"
    api_version = 2

    def native(self) -> None:
        return None  # it has no native libraries that hotshoe should open

    def devices(self, library: Path | None = None) -> Sequence[Device]:
        import torch

        cpu = Device("torch:cpu", DeviceType.ACCEL, self.name, self.family, f"the CPU, PyTorch {torch.__version__}")
        return [*(self._gpu(torch, i) for i in range(torch.cuda.device_count())), cpu]

    def _gpu(self, torch: Any, index: int) -> Device:
        free, total = torch.cuda.mem_get_info(index)
        properties = torch.cuda.get_device_properties(index)
        return Device(
            f"torch:{index}",
            DeviceType.GPU,
            self.name,
            self.family,
            f"{properties.name}, PyTorch {torch.__version__}",
            memory_total=total,
            memory_free=free,
            uuid=str(properties.uuid),  # hotshoe recognises the GPU in another plugin's list by it
        )

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        from hotshoe_core import EagerBackend
        from hotshoe_torch.library import torch_library

        return EagerBackend(self.name, devices, params, [torch_library(device) for device in devices])


@hookimpl
def hotshoe_providers() -> list[TorchProvider]:
    return [TorchProvider()]
