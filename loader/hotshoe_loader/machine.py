"""The facts about a machine: GPUs and drivers, CPU, memory, container. They are read from files; no program is run.

A test can create a Machine from a folder: ``Machine(root=tmp_path, platform="linux", …)``.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotshoe_core.contract.host_memory import HostMemory, host_memory

__all__ = ["Cpu", "Driver", "Gpu", "Machine", "Node"]

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
"""PCI vendors of GPUs that can compute. Other display controllers (virtual machines, server consoles) cannot."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the PCI bus shows it."""

    vendor: str
    pci_id: str | None = None
    driver: str | None = None
    """The kernel driver that is bound to it ("nvidia", "amdgpu", "vfio-pci"), if any."""

    def __str__(self) -> str:
        return f"{self.vendor} GPU" + (f" at {self.pci_id}" if self.pci_id else "")


@dataclass(frozen=True, slots=True)
class Driver:
    """A vendor's kernel driver, with its version: "550.54.14"."""

    version: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])


@dataclass(frozen=True, slots=True)
class Node:
    """A device file."""

    path: str
    allowed: bool
    """Whether this user may read and write it."""
    group: str | None
    """The group whose members may."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor."""

    name: str
    features: frozenset[str] = frozenset()
    """The features that the operating system enables, by its own names ("avx2"); empty if it does not say."""


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _may_use(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _group(path: Path) -> str | None:
    try:
        return path.group()
    except (KeyError, OSError, NotImplementedError):  # a group without a name; Windows
        return None


@dataclass(frozen=True)
class Machine:
    """A machine whose facts are read on first use. The defaults are this machine and this process."""

    root: Path = Path("/")
    platform: str = sys.platform
    machine: str = field(default_factory=lambda: platform.machine().lower())
    python: tuple[int, int, int] = (sys.version_info[0], sys.version_info[1], sys.version_info[2])
    bits: int = struct.calcsize("P") * 8
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    has_module: Callable[[str], bool] = _has_module
    may_use: Callable[[Path], bool] = _may_use
    group_of: Callable[[Path], str | None] = _group

    # -- files --

    def _below_root(self, path: str) -> Path:
        """The path below ``root``."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """The text of a file; "" if it cannot be read."""
        try:
            return self._below_root(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        try:
            return self._below_root(path).exists()
        except OSError:
            return False

    def names(self, folder: str, start: str = "") -> list[str]:
        """The sorted names in a folder that begin with ``start``; [] if it cannot be read."""
        try:
            return sorted(name for name in os.listdir(self._below_root(folder)) if name.startswith(start))
        except OSError:
            return []

    # -- GPUs --

    @functools.cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that can compute, from the PCI bus; if the bus is not visible, from the files of their drivers."""
        if self.platform == "darwin":
            return (Gpu("Apple"),) if self.machine == "arm64" or self.rosetta else ()
        found = [gpu for name in self.names("/sys/bus/pci/devices") for gpu in self._pci(name)]
        if not any(gpu.vendor == "NVIDIA" for gpu in found) and (self.nvidia_driver or self.exists("/dev/nvidiactl")):
            found.append(Gpu("NVIDIA", driver="nvidia"))
        if self.exists("/dev/dxg") and self.exists("/usr/lib/wsl/lib/libcuda.so.1"):
            found.append(Gpu("NVIDIA", driver="dxg"))  # Windows' driver, through WSL
        if not self.names("/sys/bus/pci/devices"):  # hidden, as in some containers
            found += self._from_device_files()
        return tuple(found)

    def _from_device_files(self) -> list[Gpu]:
        """The GPUs of AMD and Intel whose device files exist."""
        nodes = self.names("/dev/dri", "renderD")
        vendors = [VENDORS.get(self.read(f"/sys/class/drm/{name}/device/vendor").strip()) for name in nodes]
        if self.exists("/dev/kfd") and "AMD" not in vendors:
            vendors.append("AMD")
        return [Gpu(vendor) for vendor in vendors if vendor in ("AMD", "Intel")]

    def _pci(self, name: str) -> list[Gpu]:
        folder = f"/sys/bus/pci/devices/{name}"
        # 0x03: display controllers. 0x12: accelerators, such as AMD's GPUs for data centres.
        if not self.read(f"{folder}/class").startswith(("0x03", "0x12")):
            return []
        vendor = VENDORS.get(self.read(f"{folder}/vendor").strip())
        try:
            driver: str | None = os.path.basename(os.readlink(self._below_root(f"{folder}/driver")))
        except OSError:
            driver = None
        return [Gpu(vendor, name, driver)] if vendor else []

    @functools.cached_property
    def nvidia_driver(self) -> Driver | None:
        """NVIDIA's kernel driver; None if it is not loaded."""
        match = re.search(r"Module.*?\s(\d+\.\d[\d.]*)\s", self.read("/proc/driver/nvidia/version"))
        return Driver(match[1]) if match else None

    def nodes(self, vendor: str) -> list[Node]:
        """The device files through which programs use the GPUs of a vendor."""
        if vendor == "NVIDIA":
            found = [f"/dev/{name}" for name in self.names("/dev", "nvidia") if re.fullmatch(r"nvidia(\d+|ctl)", name)]
        else:
            found = [f"/dev/dri/{name}" for name in self.names("/dev/dri", "renderD")]
        paths = [(name, self._below_root(name)) for name in found]
        return [Node(name, self.may_use(path), self.group_of(path)) for name, path in paths]

    # -- the rest --

    @functools.cached_property
    def cpu(self) -> Cpu:
        """The first processor in /proc/cpuinfo. It lists the features that the kernel has enabled."""
        first = self.read("/proc/cpuinfo").partition("\n\n")[0]
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
        features = (fields.get("flags") or fields.get("Features") or "").split()  # x86 and ARM
        return Cpu(fields.get("model name") or self.machine, frozenset(features))

    @functools.cached_property
    def memory(self) -> HostMemory | None:
        """The memory that this process may use; None if the system does not say."""
        return host_memory(str(self.root))

    @functools.cached_property
    def container(self) -> str | None:
        """The kind of container ("docker", "podman", "kubernetes"); None outside a container."""
        if self.environ.get("KUBERNETES_SERVICE_HOST") or "kubepods" in self.read("/proc/1/cgroup"):
            return "kubernetes"
        if self.exists("/run/.containerenv"):
            return "podman"
        if self.exists("/.dockerenv") or "docker" in self.read("/proc/1/cgroup"):
            return "docker"
        return None

    @functools.cached_property
    def rosetta(self) -> bool:
        """Whether this is a Python for Intel on a Mac with an Apple processor."""
        runtime = "/Library/Apple/usr/libexec/oah/libRosettaRuntime"
        return self.platform == "darwin" and self.machine == "x86_64" and self.exists(runtime)
