"""Device, BackendParams and Provider: everything that the loader and a backend author share.

Imports nothing heavy, because discovery reads this file before NumPy is needed.
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

API_VERSION = 2
"""Version of the plugin contract. A Provider states the version it was written for.

2: the modules of core are in folders; ``Backend.home`` is ``device_of_tensor``, ``Placement.of_weight`` and
``of_state`` are ``device_of_weight`` and ``device_of_state``; ``Backend.load`` returns its tensors by
``WeightData.key``.
"""

_PRECISIONS = ("stored", "bf16", "f32")


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
_MAX_TEXT = 512
_MAX_PROPERTIES, _MAX_PROPERTY_TEXT = 256, 8192
_MAX_NUMBER = 1 << 64  # Python refuses to print an int of 5,000 digits, as text or as JSON


def name_problem(name: object) -> str | None:
    """Why ``name`` is invalid for a provider, a family, or a device (before its colon); None if it is valid.

    Users type these names, separate them by commas, and write types ("gpu") in the same places.
    """
    if not isinstance(name, str):
        return f"it is {shown(name)}, not a str"
    if not _NAME.fullmatch(name):
        return (
            f"it is {shown(name)}; a name is 1 to 48 lower-case letters, digits, '_', '-' or '.', and begins with a "
            "letter or digit"
        )
    if name in _RESERVED:
        return f"{name!r} is reserved, as are {', '.join(sorted(_RESERVED - {name}))}"
    return None


@dataclass(frozen=True, slots=True, repr=False)
class Device:
    """One piece of hardware that a provider offers.

    Raises PluginError for a field of the wrong type, an invalid name, or text with control characters
    (``hotshoe_core.errors.text.printable`` escapes those in a driver's text).
    """

    name: str
    """What a user types ("cpu", "cuda:0"): a name, optionally with a colon and a number or a word.

    It is unique in a registry. The word of a type may only name devices of that type: "cpu" a CPU, "gpu:0" a GPU.
    """

    type: DeviceType

    provider: str
    """The name of the provider that offers it."""

    family: str
    """The engine that drives it: one backend can be opened over devices of one family."""

    description: str = ""

    memory_total: int = 0
    """Bytes; 0 if unknown."""

    memory_free: int = 0
    """Bytes when the device was listed; 0 if unknown."""

    pci_id: str | None = None
    """Identifies the physical device: two providers may offer the same one."""

    library: Path | None = None
    """The native library that drives the device, if there is one."""

    properties: Mapping[str, str | int | bool] = field(default_factory=dict)
    """More facts about the device, for display and for the provider itself."""

    uuid: str | None = None
    """Identifies the physical device, as ``pci_id`` does."""

    def __post_init__(self) -> None:
        self.check()

    def __repr__(self) -> str:
        return f"<Device {self.name}: {self.description or self.type.value} ({self.provider})>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import device_table

        return device_table([self])

    def check(self) -> None:
        """Raise PluginError unless every field is valid. The loader calls it again for devices that a plugin made."""
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
                raise _bad(what, value, f"printable text of at most {_MAX_TEXT} characters")
        for what in ("memory_total", "memory_free"):
            value = getattr(self, what)
            if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MAX_NUMBER:
                raise _bad(what, value, "a whole number of bytes")
        if self.library is not None and not isinstance(self.library, Path):
            raise _bad("library", self.library, "the Path that devices() was given, or None")
        if not isinstance(self.properties, Mapping):
            raise _bad("properties", self.properties, "a mapping")
        if len(self.properties) > _MAX_PROPERTIES:
            raise _bad("properties", self.properties, f"at most {_MAX_PROPERTIES} of them")
        for key, value in self.properties.items():
            number = isinstance(value, int) and abs(value) < _MAX_NUMBER
            if not _is_text(key) or not (number or _is_text(value, _MAX_PROPERTY_TEXT)):
                raise _bad("properties", {key: value}, "printable names with printable text, int or bool")

    def _check_name(self) -> None:
        name, kind = self.name, self.type.value
        base, colon, number = name.partition(":") if isinstance(name, str) else (name, "", "")
        is_type = base == kind or (base == "gpu" and self.type is DeviceType.IGPU)
        if is_type and (colon or base == "cpu"):  # "gpu:0" or "cpu": names a device of that type
            problem = None
        else:
            problem = name_problem(base)
        if problem is None and colon and not _NUMBER.fullmatch(number):
            problem = (
                f"it is {shown(name)}; expected 1 to 16 lower-case letters, digits, '_', '-' or '.' after the colon"
            )
        if problem is not None:
            raise PluginError(
                f"Device.name: {problem}", hint="rename the device, for example 'cpu', 'cuda:0' or 'acme-npu:1'"
            )


def _is_text(value: object, limit: int = _MAX_TEXT) -> bool:
    return isinstance(value, str) and len(value) <= limit and value.isprintable()


def _bad(what: str, value: Any, expected: str) -> PluginError:
    return PluginError(f"Device.{what} is {shown(value)}; expected {expected}")


@dataclass(frozen=True, slots=True)
class BackendParams:
    """How a backend is opened. The loader warns about each field that was set and has no effect on the backend.

    Raises BackendError for a value of the wrong type or an unknown word.
    """

    n_threads: int | None = None
    """CPU threads for compute; None for the number of physical cores."""

    mmap: bool = True
    """Use the file's pages as the memory of the weights, if the device can."""

    repack: bool | Literal["engine"] = True
    """Store weights in the layout that the device multiplies fastest.

    "engine" allows only the layouts of the backend's engine. With flash_attention="on" too, hotshoe's own kernels for
    products and attention are not used, and the engine computes as it does in other programs.
    """

    flash_attention: Literal["auto", "on", "off"] = "auto"
    """"auto": what the backend measured to be fastest; "on": the engine's own fused kernel; "off": scores, softmax and
    values one after the other.
    """

    matmul_precision: Literal["stored", "bf16", "f32"] = "stored"
    """"stored" rounds no weight. If all numbers of an F16 weight are BF16 numbers, as in the file of a model published
    in BF16, a device may multiply it as BF16: then activations may be rounded to BF16.

    "bf16" lets products round their operands to BF16 (by at most 2^-8 of each number) if the device is faster then.
    This applies to F16 weights and, in compute-bound models (encoders), to F32 weights. Sums stay in F32.

    "f32" rounds neither weights nor activations in products with F32, F16 and BF16 weights. A backend that honours it
    logs a warning if it cannot multiply some weights so, such as quantized ones or experts.
    """

    allocate: bool = True
    """False makes a dry run: ``memory()`` is correct, but nothing is allocated and nothing can run."""

    def __post_init__(self) -> None:
        if not isinstance(self.flash_attention, str) or self.flash_attention not in ("auto", "on", "off"):
            raise BackendError(f"flash_attention is {described(self.flash_attention)}; expected auto, on or off")
        if not isinstance(self.matmul_precision, str) or self.matmul_precision not in _PRECISIONS:
            raise BackendError(f"matmul_precision is {described(self.matmul_precision)}; expected stored, bf16 or f32")
        if self.n_threads is not None:
            integer("n_threads", self.n_threads, 1, BackendError)  # the backend checks the upper limit
        if not isinstance(self.repack, bool) and not (isinstance(self.repack, str) and self.repack == "engine"):
            raise BackendError(f"repack is {described(self.repack)}; expected True, False or 'engine'")
        for name in ("mmap", "allocate"):
            if not isinstance(getattr(self, name), bool):
                raise BackendError(f"{name} is {described(getattr(self, name))}; expected True or False")


@runtime_checkable
class Provider(Protocol):
    """What a plugin gives the loader: it lists devices, and opens a Backend over some of them."""

    name: str
    """The name of the provider; ``name_problem`` says which names are valid."""

    family: str
    """The name of the engine. Providers of one family share it: one ``open`` gets devices of the whole family."""

    api_version: int
    """The version of the contract that the plugin was written for; see API_VERSION."""

    def native(self) -> object | None:
        """What the loader must know to find and check native libraries before it opens one; None without libraries.

        A mapping whose "kind" says which part of the loader understands it; core does not read it.
        """

    def devices(self, library: Path | None) -> Sequence[Device]:
        """The devices that are present.

        library: the native library that the loader chose; None if the provider has none. Returns [] if there are no
        devices; if the reason is known, raises DeviceNotFoundError with the reason and the next step.
        """

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        """Open a backend over ``devices``, the preferred one first."""
