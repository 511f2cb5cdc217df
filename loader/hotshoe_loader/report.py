"""What a probe found out about one plugin: plain values, which pass through a pipe and through the cache as JSON.

Read back, every value is checked: a plugin may write to the pipe, and a file may be damaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import PluginError
from hotshoe_core.errors.text import shown
from hotshoe_loader.contract import checked_devices, memory_problem
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Rejected

__all__ = ["Job", "LibraryReport", "ProviderReport", "Report"]


@dataclass(slots=True)
class Job:
    """What to probe.

    ggml: a folder to adopt, or "". drives: the backend whose libraries, which no plugin brings, this one is to drive in
    place of its own; or "". skip: what earlier children died of, by the step they died at; not tried again.
    """

    plugin: PluginCandidate
    block: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    ggml: str = ""
    drives: str = ""
    skip: dict[str, Rejected] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        plugin = {name: getattr(self.plugin, name) for name in PluginCandidate.__slots__}
        skip = {step: rejected.to_json() for step, rejected in self.skip.items()}
        options = {name: getattr(self, name) for name in ("block", "allow", "paths", "ggml", "drives")}
        return {"plugin": plugin, **options, "skip": skip}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        return Job(
            PluginCandidate(**data["plugin"]),
            tuple(data["block"]),
            tuple(data["allow"]),
            tuple(data["paths"]),
            str(data["ggml"]),
            str(data["drives"]),
            {step: Rejected.from_json(each) for step, each in data["skip"].items()},
        )


@dataclass(slots=True)
class LibraryReport:
    """One native library: its score (None where it exports none), or why it is not used."""

    name: str
    path: str
    score: int | None = None
    rejected: Rejected | None = None
    elapsed: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**_fields(self), "rejected": _rejection(self.rejected)}

    @staticmethod
    def from_json(data: Any) -> LibraryReport:
        score = data["score"]
        return LibraryReport(
            _text(data["name"]),
            _string(data["path"]),
            None if score is None else _whole(score),
            _rejected(data["rejected"]),
            _seconds(data["elapsed"]),
        )


@dataclass(slots=True)
class ProviderReport:
    """One provider.

    kind: of its native libraries ("ggml"), "" for none; native: their backend's name; core: the library that all of
    them need; library: the one to use. files: size and time of core and library, as when they were vetted. dropped:
    devices that failed their test, and why.
    """

    name: str
    family: str = ""
    rejected: Rejected | None = None
    kind: str = ""
    native: str | None = None
    core: str = ""
    library: str | None = None
    libraries: list[LibraryReport] = field(default_factory=list)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    elapsed: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **_fields(self),
            "rejected": _rejection(self.rejected),
            "libraries": [each.to_json() for each in self.libraries],
            "devices": [_device_to_json(each) for each in self.devices],
        }

    @staticmethod
    def from_json(data: Any) -> ProviderReport:
        name, family, library = _text(data["name"]), _text(data["family"]), data["library"]
        libraries = [LibraryReport.from_json(each) for each in _list(data["libraries"])]
        if library is not None and library not in [each.path for each in libraries]:
            raise ValueError(f"its library {library!r} is none of those that were tried")
        listed = [_device_from_json(each) for each in _list(data["devices"])]
        devices = checked_devices(listed, name, family, None if library is None else Path(library))
        if any(map(memory_problem, devices)):
            raise ValueError("a device has an amount of memory that does not pass a probe")
        rejected = _rejected(data["rejected"])
        if rejected is None and not devices:
            raise ValueError("a provider that was not rejected has devices")
        return ProviderReport(
            name,
            family,
            rejected,
            _text(data["kind"]),
            None if data["native"] is None else _text(data["native"]),
            _string(data["core"]),
            None if library is None else _string(library),
            libraries,
            {_string(path): (_whole(size), _whole(time)) for path, (size, time) in data["files"].items()},
            devices,
            [_text(each) for each in _list(data["dropped"])],
            _seconds(data["elapsed"]),
        )


@dataclass(slots=True)
class Report:
    """One plugin. ``rejected`` is about all of it.

    met: names of block= and allow= that met something. changes: what it altered in its process. folders:
    where its libraries were looked for. environment: variables its manifest names. drives: whether it can drive
    libraries that no plugin brings. age: seconds since the probe, None if it was made just now. tried: False where
    there was no time left for a probe; such a report is not kept.
    """

    rejected: Rejected | None = None
    providers: list[ProviderReport] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    drives: bool = False
    elapsed: float = 0.0
    age: float | None = None
    tried: bool = True

    @property
    def failed(self) -> bool:
        """Whether something in it may be otherwise soon, with nothing changed that the cache looks at."""
        parts: list[Any] = [self, *self.providers, *(each for one in self.providers for each in one.libraries)]
        broken = any(part.rejected is not None and part.rejected.outcome.broken for part in parts)
        return broken or any(provider.dropped or not provider.devices for provider in self.providers)

    def to_json(self) -> dict[str, Any]:
        return {
            "rejected": _rejection(self.rejected),
            "providers": [each.to_json() for each in self.providers],
            **{name: getattr(self, name) for name in ("met", "changes", "folders", "environment", "drives", "elapsed")},
        }

    @staticmethod
    def from_json(data: Any) -> Report:
        """The report. Raises ValueError for what is none."""
        try:
            providers = [ProviderReport.from_json(each) for each in _list(data["providers"])]
            met, changes, folders, environment = (
                [_string(each) for each in _list(data[name])] for name in ("met", "changes", "folders", "environment")
            )
            rejected, elapsed = _rejected(data["rejected"]), _seconds(data["elapsed"])
            if rejected is None and not providers:
                raise ValueError("a plugin that was not rejected has providers")
            return Report(rejected, providers, met, changes, folders, environment, _flag(data["drives"]), elapsed)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, PluginError) as error:
            raise ValueError(f"no report: {type(error).__name__}: {error}") from error
        except RecursionError:  # an enum's words about a value that is nested deeply
            raise ValueError("no report: it is nested too deeply") from None


# -- values, written and read ---------------------------------------------------------------------------------


def _fields(report: LibraryReport | ProviderReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__}


def _string(value: Any) -> str:
    """A path, say, which may hold any character but NUL."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"expected text, got {shown(value)}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not _string(value).isprintable():
        raise ValueError("expected printable text")
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 64:
        raise ValueError(f"expected a whole number, got {shown(value)}")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected seconds, got {shown(value)}")
    return float(value)


def _rejection(rejected: Rejected | None) -> dict[str, Any] | None:
    return None if rejected is None else rejected.to_json()


def _rejected(data: Any) -> Rejected | None:
    return None if data is None else Rejected.from_json(data)


def _device_to_json(device: Device) -> dict[str, Any]:
    fields = {name: getattr(device, name) for name in Device.__slots__}
    library = None if device.library is None else str(device.library)
    return {**fields, "type": device.type.value, "library": library, "properties": dict(device.properties)}


def _device_from_json(data: Any) -> Device:
    library = data["library"]
    return Device(
        **{**data, "type": DeviceType(data["type"]), "library": None if library is None else Path(_string(library))},
    )
