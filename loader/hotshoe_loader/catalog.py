"""The plugins of this project, with the command that installs each.

They are found, vetted, probed and ranked like all other plugins. The only difference: their names are reserved (see
names).
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

from hotshoe_core.contract.device import DeviceType
from hotshoe_core.errors.install import pip_install

__all__ = [
    "CATALOG",
    "CPU",
    "RPC",
    "CatalogEntry",
    "by_distribution",
    "find_entry",
    "owner_of_device",
    "owner_of_provider",
]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One plugin of this project."""

    name: str
    """Its short name: "cuda"."""
    distribution: str
    type: DeviceType
    offers: str
    """Its devices in words: "NVIDIA GPUs"."""
    platforms: tuple[str, ...]
    """Values of sys.platform on which it runs."""
    machines: tuple[tuple[str, str], ...] = ()
    """Values of sys.platform, each with one of platform.machine() on which it runs; () for all machines."""
    signs: tuple[str, ...] = ()
    """Files that exist if the machine has its hardware."""
    vendors: tuple[str, ...] = ()
    """The vendors of the GPUs it drives, as Machine names them."""
    min_driver: int = 0
    """The oldest major version of NVIDIA's driver that it runs with."""
    suggested_on: tuple[str, ...] = ("",)
    """The first letters of the values of sys.platform on which a verdict suggests it to users who do not have it."""

    @property
    def provider(self) -> str:
        """The name of its provider: "ggml-cuda"."""
        return self.distribution.removeprefix("hotshoe-")

    @property
    def install(self) -> str:
        """The command that installs it."""
        return pip_install(self.distribution)

    @property
    def relevant(self) -> bool:
        """Whether it runs on this platform. Other plugins are not mentioned."""
        return self.runs_on(sys.platform, platform.machine())

    def runs_on(self, system: str, machine: str) -> bool:
        """Whether it runs on a value of sys.platform and of platform.machine()."""
        return system.startswith(self.platforms) and (not self.machines or (system, machine.lower()) in self.machines)

    @property
    def suggested(self) -> bool:
        """Whether a verdict suggests it to users of this platform who do not have it."""
        return self.relevant and sys.platform.startswith(self.suggested_on)

    @property
    def sign(self) -> str | None:
        """A file which shows that this machine has its hardware; None if no such file exists."""
        return next((path for path in self.signs if os.path.exists(path)), None)


_NVIDIA = ("/dev/nvidiactl", "/proc/driver/nvidia/version")

CPU = CatalogEntry("cpu", "hotshoe-ggml-cpu", DeviceType.CPU, "CPUs", ("linux", "darwin", "win32"))
RPC = CatalogEntry(
    "rpc",
    "hotshoe-ggml-rpc",
    DeviceType.ACCEL,
    "devices of other machines (ggml's RPC)",
    ("linux", "darwin", "win32"),
    suggested_on=(),
)

CATALOG = (
    # In the order of preference for the same GPU: the vendor's own interface before a general one.
    CatalogEntry(
        "cuda",
        "hotshoe-ggml-cuda",
        DeviceType.GPU,
        "NVIDIA GPUs",
        ("linux", "win32"),
        signs=_NVIDIA,
        vendors=("NVIDIA",),
        min_driver=580,  # CUDA 13's
    ),
    CatalogEntry("metal", "hotshoe-ggml-metal", DeviceType.GPU, "Apple GPUs", ("darwin",), vendors=("Apple",)),
    CatalogEntry(
        "mlx",
        "hotshoe-mlx",
        DeviceType.GPU,
        "Apple GPUs (MLX)",
        ("darwin", "linux"),
        machines=(("darwin", "arm64"), ("linux", "aarch64"), ("linux", "x86_64")),
        vendors=("Apple",),
        suggested_on=("darwin",),  # elsewhere it is another engine for the CPU
    ),
    CatalogEntry(
        "vulkan",
        "hotshoe-ggml-vulkan",
        DeviceType.GPU,
        "GPUs of any vendor (Vulkan)",
        ("linux", "win32"),
        signs=("/dev/dri/renderD128",),
        vendors=("NVIDIA", "AMD", "Intel"),
    ),
    RPC,
    CPU,
)


def find_entry(name: str) -> CatalogEntry | None:
    """The plugin with this short name or distribution; None if it is unknown."""
    return next((entry for entry in CATALOG if name in (entry.name, entry.distribution)), None)


def by_distribution(distribution: str) -> CatalogEntry | None:
    """The plugin with this (normalised) distribution name; None if it is unknown."""
    return next((entry for entry in CATALOG if entry.distribution == distribution), None)


def owner_of_provider(name: str) -> CatalogEntry | None:
    """The plugin for which this (normalised) provider name, short name or distribution name is reserved, or None."""
    return next((entry for entry in CATALOG if name in (entry.name, entry.provider, entry.distribution)), None)


def owner_of_device(name: str) -> CatalogEntry | None:
    """The plugin for which this device name is reserved ("cuda:0" for the plugin "cuda"), or None."""
    return next((entry for entry in CATALOG if entry.name == name.partition(":")[0]), None)
