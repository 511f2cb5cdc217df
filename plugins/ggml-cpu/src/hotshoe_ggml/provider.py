"""GgmlProvider, and the plugin's hooks: the loader finds this module by the entry point ``ggml-cpu``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.contract.plugin import hookimpl
from hotshoe_core.errors.text import printable
from hotshoe_ggml.quirks import nvidia
from hotshoe_ggml.uuids import uuid_of

if TYPE_CHECKING:
    from hotshoe_ggml.backend import GgmlBackend

__all__ = ["GgmlProvider", "hotshoe_providers"]

_PREPARE = {"cuda": nvidia.prepare}
"""What to do before a library is opened, by its name: see quirks."""

_TYPES = (DeviceType.CPU, DeviceType.GPU, DeviceType.IGPU, DeviceType.ACCEL)  # enum ggml_backend_dev_type


class GgmlProvider:
    """The devices of one kind of ggml library.

    name: of the provider. library: as in ``libggml-<library>``. directory: where the libraries are. device_name: its
    devices are ``<device_name>:0`` and so on; the CPU is ``cpu``.
    """

    family = "ggml"
    api_version = 2  # the version that this is written for, not that of the installed hotshoe

    def __init__(self, name: str, library: str, directory: Path, device_name: str) -> None:
        self.name = name
        self._library = library
        self._directory = directory
        self._device_name = device_name

    def native(self) -> dict[str, object] | None:
        """What the loader needs to find the libraries: their name, their folders, and the libggml-base that they need.

        Raises DeviceNotFoundError if it is known that no library would find a device.
        """
        from hotshoe_ggml.native import base_path  # an adopted one, perhaps

        if self._library in _PREPARE:
            _PREPARE[self._library]()
        return {"kind": "ggml", "name": self._library, "directories": [self._directory], "core": base_path()}

    def devices(self, library: Path | None) -> Sequence[Device]:
        from hotshoe_ggml.native import NothingToRunOnError, load_backend

        if library is None:
            return []
        try:
            opened = load_backend(library)
        except NothingToRunOnError:
            return []
        variant = library.name.split(".")[0].partition(f"ggml-{self._library}-")[2]
        features = ", ".join(k for k, v in opened.features().items() if v == "1")
        facts = opened.devices()
        return [
            Device(
                name=self._device_name if self._device_name == "cpu" else f"{self._device_name}:{i}",
                type=_TYPES[f.type] if f.type < len(_TYPES) else DeviceType.ACCEL,
                provider=self.name,
                family=self.family,
                description=printable(f.description, 256),
                memory_total=f.memory_total,
                memory_free=f.memory_free,
                pci_id=None if f.device_id is None else printable(f.device_id, 64),
                uuid=None if f.device_id is None else uuid_of(f.device_id),
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
    from hotshoe_ggml.native import LIBRARY_DIR

    return [GgmlProvider("ggml-cpu", "cpu", LIBRARY_DIR, "cpu")]


@hookimpl
def hotshoe_drive(backend: str) -> list[GgmlProvider]:
    """A provider for another ggml library, such as OpenCL's, SYCL's or a BLAS': they differ in their names only."""
    from hotshoe_ggml.native import LIBRARY_DIR

    return [GgmlProvider(f"ggml-{backend}", backend, LIBRARY_DIR, backend)]


@hookimpl
def hotshoe_adopt(folder: Path) -> list[GgmlProvider]:
    """The CPU of a folder that has its own libggml-base. The loader finds its other libraries: see hotshoe_drive."""
    from hotshoe_ggml.native import adopt

    adopt(folder)
    return [GgmlProvider("ggml-cpu", "cpu", folder, "cpu")]
