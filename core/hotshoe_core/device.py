"""Devices, and how a plugin offers them: everything the loader and a backend author share.

Imports nothing heavy: discovery reads this file before NumPy is wanted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from hotshoe_core.errors import BackendError

if TYPE_CHECKING:
    from hotshoe_core.backend import Backend

__all__ = ["API_VERSION", "BackendParams", "Device", "DeviceType", "NativeLibraries", "Provider"]

API_VERSION = 1
"""Version of the plugin contract. A Provider states the one it was written for."""


class DeviceType(enum.Enum):
    """What kind of hardware a device is; also what ``device="gpu"`` selects by."""

    CPU = "cpu"
    GPU = "gpu"
    IGPU = "igpu"
    ACCEL = "accel"


@dataclass(frozen=True, slots=True)
class Device:
    """One piece of hardware a provider offers.

    ``name`` is what a user types ("cpu", "cuda:0") and is unique in a registry. Memory is in bytes,
    0 where it is not known. ``library`` is the native library that drives the device, if there is one.
    """

    name: str
    type: DeviceType
    provider: str
    family: str
    description: str = ""
    memory_total: int = 0
    memory_free: int = 0
    pci_id: str | None = None
    library: Path | None = None
    properties: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BackendParams:
    """How a backend is opened. A field a backend cannot honour is named in a logged warning.

    n_threads: CPU threads for compute; None for the number of physical cores.
    mmap: use the file's pages as the weights' memory where the device allows it.
    repack: store weights in the layout the device multiplies fastest, where there is one.
    flash_attention: "auto" for what the backend measured to be fastest; "on" for its engine's own fused kernel, which
    with ggml computes as llama.cpp does; "off" for scores, softmax and values one after the other.
    allocate: False makes a dry run: ``memory()`` is right, nothing is allocated and nothing can run.
    """

    n_threads: int | None = None
    mmap: bool = True
    repack: bool = True
    flash_attention: Literal["auto", "on", "off"] = "auto"
    allocate: bool = True

    def __post_init__(self) -> None:
        if self.flash_attention not in ("auto", "on", "off"):
            raise BackendError(f"flash_attention is {self.flash_attention!r}; expected auto, on or off")


@dataclass(frozen=True, slots=True)
class NativeLibraries:
    """Where a provider's native libraries lie, in ggml's naming: ``libggml-<name>[-<variant>].so``.

    core: the ``libggml-base`` every one of them binds to; loaded first and once in a process.
    """

    name: str
    directories: tuple[Path, ...]
    core: Path


@runtime_checkable
class Provider(Protocol):
    """What a plugin gives the loader: it lists devices, and opens a Backend over some of them.

    Providers of one ``family`` share an engine: the loader passes devices of the whole family to one
    ``open``. A provider without native libraries returns None from ``native``, and is asked for its
    devices with ``library=None``.
    """

    name: str
    family: str
    api_version: int

    def native(self) -> NativeLibraries | None:
        """Where the native libraries lie; None for a pure Python provider."""

    def devices(self, library: Path | None) -> Sequence[Device]:
        """The devices present, through ``library``, the variant the loader chose. Empty if there are none."""

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        """An opened backend over ``devices``, the preferred one first."""
