"""Devices, and how a plugin offers them: everything the loader and a backend author share.

Imports nothing heavy: discovery reads this file before NumPy is wanted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from hotshoe_core.errors import BackendError, PluginError
from hotshoe_core.errors.arguments import described, integer
from hotshoe_core.errors.text import shown

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["API_VERSION", "BackendParams", "Device", "DeviceType", "Provider", "name_problem"]

API_VERSION = 1
"""Version of the plugin contract. A Provider states the one it was written for."""


class DeviceType(enum.Enum):
    """What kind of hardware a device is; also what ``device="gpu"`` selects by."""

    CPU = "cpu"
    GPU = "gpu"
    IGPU = "igpu"
    ACCEL = "accel"


_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,47}")
_NUMBER = re.compile(r"[a-z0-9_.-]{1,16}")
_TYPES = frozenset(type.value for type in DeviceType)
_RESERVED = _TYPES | {"all", "any", "auto", "best", "default", "none"}
_MOST_TEXT = 512
_MOST_PROPERTIES, _MOST_PROPERTY_TEXT = 256, 8192
_MOST_NUMBER = 1 << 64  # Python refuses to write an int of 5,000 digits, in words or as JSON


def name_problem(name: object) -> str | None:
    """Why a provider, a family, or a device before its colon may not be called so; None if it may.

    Users type these names, separate them by commas, and write types ("gpu") in the same places.
    """
    if not isinstance(name, str):
        return f"it is {shown(name)}, and not a str"
    if not _NAME.fullmatch(name):
        return (
            f"it is {shown(name)}; a name is 1 to 48 lower-case letters, digits, '_', '-' or '.', and begins with a "
            "letter or digit"
        )
    if name in _RESERVED:
        return f"{name!r} is a word with a meaning of its own, as are {', '.join(sorted(_RESERVED - {name}))}"
    return None


@dataclass(frozen=True, slots=True, repr=False)
class Device:
    """One piece of hardware a provider offers.

    ``name`` is what a user types ("cpu", "cuda:0") and is unique in a registry: a name, and perhaps a colon and a
    number or a word. A type's word may only name devices of that type: "cpu" a CPU, "gpu:0" a GPU. Memory is in bytes,
    0 where it is not known. ``pci_id`` and ``uuid`` tell one physical device that two providers show from two devices.
    ``library`` is the native library that drives the device, if there is one.

    Raises PluginError for a field of the wrong type, a name that is none, or text with control characters
    (``hotshoe_core.errors.text.printable`` mends what a driver says).
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
    uuid: str | None = None

    def __post_init__(self) -> None:
        self.check()

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.description or self.type.value} ({self.provider})>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import device_table

        return device_table([self])

    def check(self) -> None:
        """Raises PluginError unless every field is what it must be. The loader asks again what a plugin made."""
        if not isinstance(self.type, DeviceType):
            raise _bad("type", self.type, "a DeviceType, such as DeviceType.CPU")
        self._check_name()
        for what in ("provider", "family"):
            problem = name_problem(getattr(self, what))
            if problem is not None:
                raise PluginError(f"Device.{what}: {problem}")
        for what in ("description", "pci_id", "uuid"):
            value = getattr(self, what)
            if not (_is_text(value) or (value is None and what != "description")):
                raise _bad(what, value, f"printable text of at most {_MOST_TEXT} characters")
        for what in ("memory_total", "memory_free"):
            value = getattr(self, what)
            if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MOST_NUMBER:
                raise _bad(what, value, "a whole number of bytes")
        if self.library is not None and not isinstance(self.library, Path):
            raise _bad("library", self.library, "the Path that devices() was given, or None")
        if not isinstance(self.properties, Mapping):
            raise _bad("properties", self.properties, "a mapping")
        if len(self.properties) > _MOST_PROPERTIES:
            raise _bad("properties", self.properties, f"at most {_MOST_PROPERTIES} of them")
        for key, value in self.properties.items():
            number = isinstance(value, int) and abs(value) < _MOST_NUMBER
            if not _is_text(key) or not (number or _is_text(value, _MOST_PROPERTY_TEXT)):
                raise _bad("properties", {key: value}, "printable names with printable text, int or bool")

    def _check_name(self) -> None:
        name, kind = self.name, self.type.value
        base, colon, number = name.partition(":") if isinstance(name, str) else (name, "", "")
        own = base == kind or (base == "gpu" and self.type is DeviceType.IGPU)
        if own and (colon or base == "cpu"):  # "gpu:0", or the one "cpu": what the word means anyway
            problem = None
        else:
            problem = name_problem(base)
        if problem is None and colon and not _NUMBER.fullmatch(number):
            problem = f"it is {shown(name)}; after the colon comes a number, or up to 16 characters of a name"
        if problem is not None:
            raise PluginError(f"Device.name: {problem}", hint="call it as in 'cpu', 'cuda:0' or 'acme-npu:1'")


def _is_text(value: object, limit: int = _MOST_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= limit and value.isprintable()


def _bad(what: str, value: Any, expected: str) -> PluginError:
    return PluginError(f"Device.{what} is {shown(value)}; expected {expected}")


@dataclass(frozen=True, slots=True)
class BackendParams:
    """How a backend is opened. The loader warns of each field that was set and that the backend does not honour.

    n_threads: CPU threads for compute; None for the number of physical cores.
    mmap: use the file's pages as the weights' memory where the device allows it.
    repack: store weights in the layout the device multiplies fastest, where there is one. "engine" takes only layouts
    of the backend's engine: with flash_attention="on" too, hotshoe's own kernels for products and attention stay out,
    and the engine computes as it does for other programs.
    flash_attention: "auto" for what the backend measured to be fastest; "on" for its engine's own fused kernel;
    "off" for scores, softmax and values one after the other.
    matmul_precision: "stored" multiplies weights as the file has them; "bf16" lets products of many rows, as those of
    prompts, round F16 weights, those of compute-bound models (encoders) also F32 ones, and what they are multiplied
    with, to BF16, 2^-9 of each number, where the device is faster at that. Sums stay in F32.
    allocate: False makes a dry run: ``memory()`` is right, nothing is allocated and nothing can run.
    """

    n_threads: int | None = None
    mmap: bool = True
    repack: bool | Literal["engine"] = True
    flash_attention: Literal["auto", "on", "off"] = "auto"
    matmul_precision: Literal["stored", "bf16"] = "stored"
    allocate: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.flash_attention, str) or self.flash_attention not in ("auto", "on", "off"):
            raise BackendError(f"flash_attention is {self.flash_attention!r}; expected auto, on or off")
        if not isinstance(self.matmul_precision, str) or self.matmul_precision not in ("stored", "bf16"):
            raise BackendError(f"matmul_precision is {described(self.matmul_precision)}; expected 'stored' or 'bf16'")
        if self.n_threads is not None:
            integer("n_threads", self.n_threads, 0, BackendError)  # the backend knows how many there may be
        if not isinstance(self.repack, bool) and not (isinstance(self.repack, str) and self.repack == "engine"):
            raise BackendError(f"repack is {described(self.repack)}; expected True, False or 'engine'")
        for name in ("mmap", "allocate"):
            if not isinstance(getattr(self, name), bool):
                raise BackendError(f"{name} is {described(getattr(self, name))}; expected True or False")


@runtime_checkable
class Provider(Protocol):
    """What a plugin gives the loader: it lists devices, and opens a Backend over some of them.

    Providers of one ``family`` share an engine: the loader passes devices of the whole family to one
    ``open``. A provider without native libraries returns None from ``native``, and is asked for its
    devices with ``library=None``.

    ``name`` and ``family`` are names as ``name_problem`` accepts them.
    """

    name: str
    family: str
    api_version: int

    def native(self) -> object | None:
        """What the loader must know to find and judge native libraries before one is opened; None if there are none.

        Plain data that core gives no meaning: a mapping whose "kind" says which room of the loader understands it.
        """

    def devices(self, library: Path | None) -> Sequence[Device]:
        """The devices present, through ``library``, the variant the loader chose.

        Empty if there are none; where the reason is known, DeviceNotFoundError with it and the next step.
        """

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        """An opened backend over ``devices``, the preferred one first."""
