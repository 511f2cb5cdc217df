"""Source text of the plugins that the loader's tests install: filled in with ``replace``."""

from __future__ import annotations

PROVIDER = """
from hotshoe_core.contract.device import API_VERSION, Device, DeviceType
from hotshoe_core.contract.plugin import hookimpl

class Provider:
    def __init__(self, name="acme", family="acme", devices=("npu:0",), type=DeviceType.ACCEL, **more):
        self.name, self.family, self.api_version = name, family, API_VERSION
        self.names, self.type, self.more = devices, type, more

    def native(self):
        return None

    def devices(self, library):
        return [
            Device(name, self.type, self.name, self.family, library=library, **self.more) for name in self.names
        ]

    def open(self, devices, params):
        from hotshoe_core.eager.reference import open_reference
        backend = open_reference(params)
        backend.devices = tuple(devices)
        backend.opened_by = self.name
        return backend
"""

GOOD = PROVIDER + "\n@hookimpl\ndef hotshoe_providers():\n    return [Provider({arguments})]\n"

NATIVE = (
    PROVIDER
    + """
from pathlib import Path

class Native(Provider):
    def native(self):
        folder = Path("{folder}")
        return {"kind": "ggml", "name": "{backend}", "directories": [folder], "core": folder / "libggml-base.so"}

@hookimpl
def hotshoe_providers():
    return [Native("ggml-{backend}", "ggml", ("{backend}",), DeviceType.CPU, description="AMD EPYC")]
"""
)

# The plugin of NATIVE, which besides drives libraries that no plugin brings.
DRIVER = (
    NATIVE
    + """
class Driven(Native):
    def native(self):
        return {**super().native(), "name": self.name.removeprefix("ggml-")}

@hookimpl
def hotshoe_drive(backend):
    return [Driven("ggml-" + backend, "ggml", (backend + ":0", backend + ":1"))]
"""
)
