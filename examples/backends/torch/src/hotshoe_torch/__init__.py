"""A hotshoe backend over PyTorch: `torch:cpu`, and `torch:0`, … for the GPUs that torch sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotshoe_core import Backend, BackendParams, Device, DeviceType, hookimpl


class TorchProvider:
    """What the loader finds. It is imported in a probe first, and torch when it is asked for its devices."""

    name = "torch"
    family = "torch"
    api_version = 1

    def native(self) -> None:
        return None  # no libraries of its own that hotshoe should open

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
            uuid=str(properties.uuid),  # by which hotshoe knows the GPU in another plugin's list
        )

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        from hotshoe_core import EagerBackend
        from hotshoe_torch.library import torch_library

        return EagerBackend(self.name, devices, params, [torch_library(device) for device in devices])


@hookimpl
def hotshoe_providers() -> list[TorchProvider]:
    return [TorchProvider()]
