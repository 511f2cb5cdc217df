"""The provider that the loader finds under the entry point ``mlx``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe_core import BackendParams, Device, DeviceType, hookimpl
from hotshoe_core.contract.host_memory import host_memory
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from hotshoe_core import EagerBackend

__all__ = ["MlxProvider", "hotshoe_providers"]

_MIN_VERSION = (0, 32)  # the first version with streams for any thread, and with device_info


class MlxProvider:
    """MLX's GPUs as "mlx:0", "mlx:1", …, and the CPU as "mlx:cpu"."""

    name = "mlx"
    family = "mlx"
    api_version = 2  # the version this code is written for, not that of the installed hotshoe

    def native(self) -> None:
        return None

    def devices(self, library: Path | None) -> Sequence[Device]:
        mx = _mlx()
        gpus = [self._gpu(mx, i) for i in range(mx.device_count(mx.gpu))] if mx.is_available(mx.gpu) else []
        return [*gpus, self._cpu(mx)]

    def _gpu(self, mx: Any, index: int) -> Device:
        info = mx.device_info(mx.Device(mx.gpu, index))
        sizes = (info.get(key) for key in ("max_recommended_working_set_size", "total_memory", "memory_size"))
        total = int(next(filter(None, sizes), 0))  # Metal has the first, CUDA the second
        interface = "Metal" if mx.metal.is_available() else "CUDA"
        return Device(
            name=f"mlx:{index}",
            type=DeviceType.GPU,
            provider=self.name,
            family=self.family,
            description=printable(f"{info.get('device_name', 'GPU')}, MLX over {interface}", 256),
            memory_total=total,
            memory_free=int(info.get("free_memory") or max(0, total - mx.get_active_memory())),
            uuid=_text(info.get("uuid")),
            pci_id=_text(info.get("pci_bus_id")),
            properties={"index": index, "kind": "gpu", "version": _version(mx)},
        )

    def _cpu(self, mx: Any) -> Device:
        """The CPU as an accelerator: MLX is not made for CPUs, and the loader ranks accelerators after CPUs."""
        limit = mx.get_memory_limit()
        free = max(0, limit - mx.get_active_memory())
        host = host_memory()
        return Device(
            name="mlx:cpu",
            type=DeviceType.ACCEL,
            provider=self.name,
            family=self.family,
            description=printable(f"{mx.device_info(mx.cpu).get('device_name', 'CPU')}, MLX on the CPU", 256),
            memory_total=limit,
            memory_free=min(free, host.available) if host else free,
            properties={"index": 0, "kind": "cpu", "version": _version(mx)},
        )

    def open(self, devices: Sequence[Device], params: BackendParams) -> EagerBackend:
        from hotshoe_core import EagerBackend
        from hotshoe_mlx.library import mlx_library

        return EagerBackend(self.name, devices, params, [mlx_library(device) for device in devices])


def _mlx() -> Any:
    """The module ``mlx.core``. Raises ImportError with the command that installs it."""
    try:
        import mlx.core as mx
    except ImportError as e:
        raise ImportError(
            f"MLX's engine is not installed ({e}): pip install 'mlx[cpu]' or 'mlx[cuda]' on Linux, mlx on a Mac with "
            "Apple silicon; other systems are not supported"
        ) from e
    if tuple(int(part) for part in _version(mx).split(".")[:2]) < _MIN_VERSION:
        least = ".".join(map(str, _MIN_VERSION))
        raise ImportError(f"mlx is {_version(mx)}; expected {least} or later: pip install --upgrade mlx")
    return mx


def _version(mx: Any) -> str:
    return str(mx.__version__)


def _text(value: object) -> str | None:
    return printable(str(value), 64) if value else None


@hookimpl
def hotshoe_providers() -> list[MlxProvider]:
    return [MlxProvider()]
