"""A hotshoe backend over JAX: `jax:cpu`, and `jax:0`, … for JAX's GPUs and TPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotshoe_core import Backend, BackendParams, Device, DeviceType, hookimpl


class JaxProvider:
    """The provider that the loader finds. It imports jax only when the loader asks for devices."""

    name = "jax"
    family = "jax"
    api_version = 2

    def native(self) -> None:
        return None  # it has no native libraries that hotshoe should open

    def devices(self, library: Path | None = None) -> Sequence[Device]:
        return [self._device(d) for d in _jax_devices().values()]

    def _device(self, d: Any) -> Device:
        total, free = memory_of(d)
        return Device(
            name_of(d),
            DeviceType.GPU if d.platform == "gpu" else DeviceType.ACCEL,
            self.name,
            self.family,
            f"{d.device_kind}, JAX",
            memory_total=total,
            memory_free=free,
        )

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        from hotshoe_core import EagerBackend
        from hotshoe_jax.library import jax_library

        found = _jax_devices()
        return EagerBackend(self.name, devices, params, [jax_library(found[d.name]) for d in devices])


def _jax_devices() -> dict[str, Any]:
    """JAX's devices by hotshoe's names, the best platform first. The CPU has several if XLA_FLAGS says so."""
    import jax

    best = jax.devices()
    return {name_of(d): d for d in (*best, *(jax.devices("cpu") if best[0].platform != "cpu" else ()))}


def name_of(d: Any) -> str:
    """What hotshoe calls a device of JAX."""
    return f"jax:{d.id}" if d.platform != "cpu" else "jax:cpu" if d.id == 0 else f"jax:cpu-{d.id}"


def memory_of(d: Any) -> tuple[int, int]:
    """All bytes of a device of JAX, and those that are free; zeros if JAX cannot tell, as for a CPU."""
    stats = d.memory_stats() or {}
    total = stats.get("bytes_limit", 0)
    return total, max(0, total - stats.get("bytes_in_use", 0))


@hookimpl
def hotshoe_providers() -> list[JaxProvider]:
    return [JaxProvider()]
