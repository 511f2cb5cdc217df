"""What a probe found out about one plugin: plain values, which pass through a pipe and through the cache as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotshoe_core.device import Device, DeviceType
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Rejected

__all__ = ["Job", "LibraryReport", "ProviderReport", "Report"]


@dataclass(slots=True)
class Job:
    """What to probe.

    ggml: a folder to adopt, or "". skip: what earlier children died of, by the step they died at; not tried again.
    """

    plugin: PluginCandidate
    block: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    ggml: str = ""
    skip: dict[str, Rejected] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        plugin = {name: getattr(self.plugin, name) for name in PluginCandidate.__slots__}
        skip = {step: rejected.to_json() for step, rejected in self.skip.items()}
        options = {name: getattr(self, name) for name in ("block", "allow", "paths", "ggml")}
        return {"plugin": plugin, **options, "skip": skip}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        return Job(
            PluginCandidate(**data["plugin"]),
            tuple(data["block"]),
            tuple(data["allow"]),
            tuple(data["paths"]),
            str(data["ggml"]),
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


@dataclass(slots=True)
class ProviderReport:
    """One provider. ``library``: the one to use. ``dropped``: devices that failed their test, and why."""

    name: str
    family: str = ""
    rejected: Rejected | None = None
    native: str | None = None
    core: str = ""
    library: str | None = None
    libraries: list[LibraryReport] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    elapsed: float = 0.0


@dataclass(slots=True)
class Report:
    """One plugin. ``rejected`` is about all of it.

    met: names of block= and allow= that met something. changes: what it altered in its process. folders:
    where its libraries were looked for. environment: variables its manifest names. age: seconds since the probe,
    None if it was made just now.
    """

    rejected: Rejected | None = None
    providers: list[ProviderReport] = field(default_factory=list)
    met: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    elapsed: float = 0.0
    age: float | None = None

    @property
    def failed(self) -> bool:
        """Whether something in it may be otherwise soon, with nothing changed that the cache looks at."""
        parts: list[Any] = [self, *self.providers, *(each for one in self.providers for each in one.libraries)]
        broken = any(part.rejected is not None and part.rejected.outcome.broken for part in parts)
        return broken or any(provider.dropped or not provider.devices for provider in self.providers)

    def to_json(self) -> dict[str, Any]:
        return {
            "rejected": _rejection(self.rejected),
            "providers": [
                {
                    **{name: getattr(each, name) for name in ProviderReport.__slots__},
                    "rejected": _rejection(each.rejected),
                    "libraries": [
                        {
                            **{name: getattr(library, name) for name in LibraryReport.__slots__},
                            "rejected": _rejection(library.rejected),
                        }
                        for library in each.libraries
                    ],
                    "devices": [_device_to_json(device) for device in each.devices],
                }
                for each in self.providers
            ],
            **{name: getattr(self, name) for name in ("met", "changes", "folders", "environment", "elapsed")},
        }

    @staticmethod
    def from_json(data: Any) -> Report:
        """The report. Raises ValueError for what is none: files get damaged, and a plugin may write to the pipe."""
        try:
            providers = [
                ProviderReport(
                    **{
                        **each,
                        "rejected": _rejected(each["rejected"]),
                        "libraries": [
                            LibraryReport(**{**library, "rejected": _rejected(library["rejected"])})
                            for library in each["libraries"]
                        ],
                        "devices": [_device_from_json(device) for device in each["devices"]],
                    }
                )
                for each in data["providers"]
            ]
            lists: Any = {name: list(map(str, data[name])) for name in ("met", "changes", "folders", "environment")}
            report = Report(_rejected(data["rejected"]), providers, **lists)
            report.elapsed = float(data["elapsed"])
            return report
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"no report: {type(error).__name__}: {error}") from error


def _rejection(rejected: Rejected | None) -> dict[str, Any] | None:
    return None if rejected is None else rejected.to_json()


def _rejected(data: dict[str, Any] | None) -> Rejected | None:
    return None if data is None else Rejected.from_json(data)


def _device_to_json(device: Device) -> dict[str, Any]:
    fields = {name: getattr(device, name) for name in Device.__slots__}
    library = None if device.library is None else str(device.library)
    properties = {
        str(key): value if isinstance(value, (str, int, bool)) else str(value)
        for key, value in dict(device.properties).items()
    }
    return {**fields, "type": device.type.value, "library": library, "properties": properties}


def _device_from_json(data: dict[str, Any]) -> Device:
    library = data["library"]
    return Device(
        **{**data, "type": DeviceType(data["type"]), "library": None if library is None else Path(library)},
    )
