"""The plugin: what the loader finds under the entry point ``ggml-cpu``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.contract.host_memory import host_memory
from hotshoe_core.contract.plugin import hookimpl
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from hotshoe_ggml.backend import GgmlBackend

__all__ = ["GgmlProvider", "hotshoe_providers"]

_TYPES = (DeviceType.CPU, DeviceType.GPU, DeviceType.IGPU, DeviceType.ACCEL)  # enum ggml_backend_dev_type


class GgmlProvider:
    """Devices of one kind of ggml library. ``device_name`` is numbered, but for the one "cpu"."""

    family = "ggml"
    api_version = 1  # what this is written for, and not whatever the installed hotshoe has

    def __init__(self, name: str, library: str, directory: Path, device_name: str) -> None:
        self.name = name
        self._library = library
        self._directory = directory
        self._device_name = device_name

    def native(self) -> dict[str, object] | None:
        """What the loader's room for ggml takes: the name in the files' names, where they lie, the base they need.

        Raises DeviceNotFoundError where it is known that no library would find a device.
        """
        from hotshoe_ggml._native import base_path  # may be an adopted one

        if self._library == "cuda":  # whoever built it, it needs more than the linker finds
            from hotshoe_ggml.nvidia import prepare

            prepare()
        return {"kind": "ggml", "name": self._library, "directories": [self._directory], "core": base_path()}

    def devices(self, library: Path | None) -> Sequence[Device]:
        from hotshoe_ggml._native import NothingToRunOnError, load_backend

        if library is None:
            return []
        try:
            opened = load_backend(library)
        except NothingToRunOnError:
            return []
        variant = library.name.split(".")[0].partition(f"ggml-{self._library}-")[2]
        features = ", ".join(k for k, v in opened.features().items() if v == "1")
        facts = opened.devices()
        host = host_memory() if self._library == "cpu" else None  # ggml says that all of it is free
        return [
            Device(
                name=self._device_name if self._device_name == "cpu" else f"{self._device_name}:{i}",
                type=_TYPES[f.type] if f.type < len(_TYPES) else DeviceType.ACCEL,
                provider=self.name,
                family=self.family,
                description=printable(f.description, 256),
                memory_total=host.total if host else f.memory_total,
                memory_free=host.available if host else f.memory_free,
                pci_id=None if f.device_id is None else printable(f.device_id, 64),
                library=library,
                properties={"index": i, "variant": variant, "features": features},
            )
            for i, f in enumerate(facts)
        ]

    def open(self, devices: Sequence[Device], params: BackendParams) -> GgmlBackend:
        from hotshoe_ggml.backend import GgmlBackend

        return GgmlBackend(devices, params)


@hookimpl
def hotshoe_providers() -> list[GgmlProvider]:
    from hotshoe_ggml._native import LIBRARY_DIR

    return [GgmlProvider("ggml-cpu", "cpu", LIBRARY_DIR, "cpu")]


@hookimpl
def hotshoe_drive(backend: str) -> list[GgmlProvider]:
    """Of OpenCL's library, SYCL's, a BLAS', or one that nobody here has heard of: they differ in their names only."""
    from hotshoe_ggml._native import LIBRARY_DIR

    return [GgmlProvider(f"ggml-{backend}", backend, LIBRARY_DIR, backend)]


@hookimpl
def hotshoe_adopt(folder: Path) -> list[GgmlProvider]:
    """One provider for each kind of backend in the folder, which has a libggml-base of its own."""
    from hotshoe_ggml._native import adopt

    adopt(folder)
    names = {path.name.partition("ggml-")[2].partition(".")[0].partition("-")[0] for path in folder.glob("*ggml-*.*")}
    return [GgmlProvider(f"ggml-{name}", name, folder, name) for name in sorted(names - {"base"})]
