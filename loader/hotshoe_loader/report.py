"""The report of a probe on one plugin: plain values, sent through a pipe and kept in the cache as JSON.

Every value is checked when it is read: a plugin may write to the pipe, and a file may be damaged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import PluginError
from hotshoe_core.errors.text import shown
from hotshoe_loader.contract_checks import checked_devices, memory_problem
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Job", "JobKey", "LibraryReport", "ProviderReport", "Report"]

JobKey = tuple[EntryPoint, str, tuple[str, ...]]


@dataclass(slots=True)
class Job:
    """What to probe: one plugin, with the options that concern it."""

    plugin: EntryPoint
    block: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Folders with more libraries, in addition to the plugin's own."""
    ggml: str = ""
    """The folder of a foreign set of ggml libraries to adopt, or ""."""
    driven_backend: str = ""
    """The backend whose libraries, which have no plugin, this plugin drives in this job; "" for its own libraries."""
    patient: bool = False
    """Whether the caller named a device of the plugin, and so waits longer for it."""
    skip: dict[str, Rejected] = field(default_factory=dict)
    """Steps at which an earlier child process ended, and why; they are not tried again."""

    @property
    def key(self) -> JobKey:
        """Identifies the job among those with the same options."""
        return self.plugin, self.driven_backend, self.paths

    def to_json(self) -> dict[str, Any]:
        plugin = {name: getattr(self.plugin, name) for name in EntryPoint.__slots__}
        skip = {step: rejected.to_json() for step, rejected in self.skip.items()}
        options = {name: getattr(self, name) for name in ("block", "allow", "paths", "ggml", "driven_backend")}
        return {"plugin": plugin, **options, "skip": skip}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        return Job(
            EntryPoint(**data["plugin"]),
            tuple(data["block"]),
            tuple(data["allow"]),
            tuple(data["paths"]),
            str(data["ggml"]),
            str(data["driven_backend"]),
            skip={step: Rejected.from_json(rejected) for step, rejected in data["skip"].items()},
        )


@dataclass(slots=True)
class LibraryReport:
    """The result for one native library."""

    name: str
    path: str
    score: int | None = None
    """The library's own score on this machine; None if it exports no score."""
    rejected: Rejected | None = None
    elapsed: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {**_fields(self), "rejected": _rejection_to_json(self.rejected)}

    @staticmethod
    def from_json(data: Any) -> LibraryReport:
        score = data["score"]
        return LibraryReport(
            _printable_text(data["name"]),
            _text(data["path"]),
            None if score is None else _integer(score),
            _rejection_from_json(data["rejected"]),
            _seconds(data["elapsed"]),
        )


@dataclass(slots=True)
class ProviderReport:
    """The result for one provider."""

    name: str
    family: str = ""
    rejected: Rejected | None = None
    kind: str = ""
    """The kind of its native libraries ("ggml"), or "" if it has no libraries."""
    native: str | None = None
    """The backend's name in the libraries' file names, such as "cuda"."""
    core: str = ""
    """Path of the library that all of them need."""
    library: str | None = None
    """Path of the library to use."""
    libraries: list[LibraryReport] = field(default_factory=list)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Size and time of ``core`` and ``library`` when they were vetted (see ``file_state``)."""
    devices: list[Device] = field(default_factory=list)
    """The devices that passed their test."""
    dropped: list[Rejected] = field(default_factory=list)
    """For each device that failed its test, why."""
    elapsed: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **_fields(self),
            "rejected": _rejection_to_json(self.rejected),
            "libraries": [library.to_json() for library in self.libraries],
            "devices": [_device_to_json(device) for device in self.devices],
            "dropped": [rejected.to_json() for rejected in self.dropped],
        }

    @staticmethod
    def from_json(data: Any) -> ProviderReport:
        name, family, library = _printable_text(data["name"]), _printable_text(data["family"]), data["library"]
        libraries = [LibraryReport.from_json(entry) for entry in _list(data["libraries"])]
        if library is not None and library not in [tested.path for tested in libraries]:
            raise ValueError(f"its library {library!r} is not among the libraries that were tested")
        listed = [_device_from_json(entry) for entry in _list(data["devices"])]
        devices = checked_devices(listed, name, family, None if library is None else Path(library))
        if any(map(memory_problem, devices)):
            raise ValueError("a device has an invalid amount of memory")
        rejected = _rejection_from_json(data["rejected"])
        if rejected is None and not devices:
            raise ValueError("a provider that was not rejected must have devices")
        return ProviderReport(
            name,
            family,
            rejected,
            _printable_text(data["kind"]),
            None if data["native"] is None else _printable_text(data["native"]),
            _text(data["core"]),
            None if library is None else _text(library),
            libraries,
            {_text(path): (_integer(size), _integer(time)) for path, (size, time) in data["files"].items()},
            devices,
            [Rejected.from_json(entry) for entry in _list(data["dropped"])],
            _seconds(data["elapsed"]),
        )


@dataclass(slots=True)
class Report:
    """The result for one plugin."""

    rejected: Rejected | None = None
    """Why the plugin cannot be used at all."""
    providers: list[ProviderReport] = field(default_factory=list)
    matched: list[str] = field(default_factory=list)
    """Names of block= and allow= that matched something."""
    changes: list[str] = field(default_factory=list)
    """What the plugin changed in its process."""
    folders: list[str] = field(default_factory=list)
    """The folders that were searched for its libraries."""
    environment: list[str] = field(default_factory=list)
    """The environment variables that its manifest names."""
    missing: list[str] = field(default_factory=list)
    """The top-level modules that it looked for and that do not exist."""
    mapped: list[str] = field(default_factory=list)
    """The native files that its process opened."""
    modules: dict[str, str] = field(default_factory=dict)
    """The file of each top-level module that it imported (see ``used.file_of``)."""
    can_drive: bool = False
    """Whether it can drive libraries without a plugin."""
    elapsed: float = 0.0
    age: float | None = None
    """Seconds since the probe; None if it was made just now."""
    tested: bool = True
    """False if no time was left for a probe. Such a report is not kept."""

    @property
    def failed(self) -> bool:
        """Whether the next probe may give another result although nothing changed that the cache compares."""
        libraries = [library for provider in self.providers for library in provider.libraries]
        parts: list[Report | ProviderReport | LibraryReport] = [self, *self.providers, *libraries]
        broken = any(part.rejected is not None and part.rejected.outcome.broken for part in parts)
        return broken or any(provider.dropped or not provider.devices for provider in self.providers)

    @property
    def timed_out(self) -> bool:
        """Whether a test was ended because it took too long."""
        libraries = [library.rejected for provider in self.providers for library in provider.libraries]
        devices = [rejected for provider in self.providers for rejected in provider.dropped]
        found = [self.rejected, *(provider.rejected for provider in self.providers), *libraries, *devices]
        return any(rejected is not None and rejected.outcome is Outcome.TIMED_OUT for rejected in found)

    def to_json(self) -> dict[str, Any]:
        return {
            "rejected": _rejection_to_json(self.rejected),
            "providers": [provider.to_json() for provider in self.providers],
            **{name: getattr(self, name) for name in (*_LISTS, "modules", "can_drive", "elapsed")},
        }

    @staticmethod
    def from_json(data: Any) -> Report:
        """Return the report. Raise ValueError if ``data`` is not a valid report."""
        try:
            providers = [ProviderReport.from_json(entry) for entry in _list(data["providers"])]
            lists: dict[str, Any] = {name: [_text(text) for text in _list(data[name])] for name in _LISTS}
            modules = {_text(name): _text(file) for name, file in data["modules"].items()}
            rejected, elapsed = _rejection_from_json(data["rejected"]), _seconds(data["elapsed"])
            if rejected is None and not providers:
                raise ValueError("a plugin that was not rejected must have providers")
            can_drive = _flag(data["can_drive"])
            return Report(rejected, providers, **lists, modules=modules, can_drive=can_drive, elapsed=elapsed)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, PluginError) as error:
            raise ValueError(f"invalid report: {type(error).__name__}: {error}") from error
        except RecursionError:  # an enum's message about a deeply nested value
            raise ValueError("invalid report: it is nested too deeply") from None


# The fields of Report that hold texts.
_LISTS = ("matched", "changes", "folders", "environment", "missing", "mapped")


# -- values, written and read ---------------------------------------------------------------------------------


def _fields(report: LibraryReport | ProviderReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__}


def _text(value: Any) -> str:
    """A text such as a path, which may hold any character except NUL."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"expected text, got {shown(value)}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return value


def _printable_text(value: Any) -> str:
    if not _text(value).isprintable():
        raise ValueError("expected printable text")
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 64:
        raise ValueError(f"expected a whole number, got {shown(value)}")
    return value


def _seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected seconds, got {shown(value)}")
    return float(value)


def _rejection_to_json(rejected: Rejected | None) -> dict[str, Any] | None:
    return None if rejected is None else rejected.to_json()


def _rejection_from_json(data: Any) -> Rejected | None:
    return None if data is None else Rejected.from_json(data)


def _device_to_json(device: Device) -> dict[str, Any]:
    fields = {name: getattr(device, name) for name in Device.__slots__}
    library = None if device.library is None else str(device.library)
    return {**fields, "type": device.type.value, "library": library, "properties": dict(device.properties)}


def _device_from_json(data: Any) -> Device:
    library = data["library"]
    return Device(
        **{**data, "type": DeviceType(data["type"]), "library": None if library is None else Path(_text(library))},
    )
