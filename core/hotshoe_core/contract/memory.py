"""Memory reports: weights and cache by device and layer, and compute graphs by device. Sizes are in bytes.

``backend.memory()`` returns a BackendMemory, and InsufficientMemoryError carries one. In an error, the amount that
failed is marked, so a caller can move layers to another device and try again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hotshoe_core.errors.text import format_bytes

if TYPE_CHECKING:
    from typing import Self

    from hotshoe_core.contract.device import Device

__all__ = ["AllocationStatus", "BackendMemory", "DeviceMemory", "Memory"]


class AllocationStatus(enum.Enum):
    """Whether an amount of memory was allocated."""

    UNALLOCATED = "unallocated"
    """The size is known, but it is not allocated yet. In a dry run it stays so."""

    FAILED = "failed"
    ALLOCATED = "allocated"


@dataclass(frozen=True, slots=True)
class Memory:
    """One amount in bytes, and whether it was allocated."""

    size: int = 0
    status: AllocationStatus = AllocationStatus.UNALLOCATED

    def __str__(self) -> str:
        mark = "" if self.status is AllocationStatus.ALLOCATED else f" ({self.status.value})"
        return f"{format_bytes(self.size)}{mark}"


@dataclass(slots=True)
class DeviceMemory:
    """Memory on one device."""

    device: str
    """The name of the device."""

    weights: dict[int, Memory] = field(default_factory=dict)
    """By layer: -1 is read before the first layer (mainly the embedding), n_layers after the last one."""

    cache: dict[int, Memory] = field(default_factory=dict)
    """States, by layer as ``weights``."""

    graph: Memory = field(default_factory=Memory)
    """Temporaries of all graphs."""

    uuid: str | None = None
    """The UUID of the device, if its driver reports one."""

    larger: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Weights that the device stores in more bytes than the file, by their element type: (bytes in the file, here)."""

    @property
    def input_weights(self) -> Memory:
        """The weights read before the first layer."""
        return self.weights.get(-1, Memory())

    @property
    def total(self) -> int:
        """Bytes on this device, with any status."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the weights, of the cache and of the graph."""
        weights, cache = (sum(m.size for m in amounts.values()) for amounts in (self.weights, self.cache))
        return weights, cache, self.graph.size

    def add_input(self, size: int, status: AllocationStatus = AllocationStatus.ALLOCATED) -> None:
        """Add bytes to the weights read before the first layer."""
        self.weights[-1] = Memory(self.input_weights.size + size, status)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as values for ``json.dumps``: bytes, the allocations that failed, and each layer's share."""
        weights, cache, graph = self.sizes
        layers = sorted(self.weights.keys() | self.cache.keys())
        parts = [(i, self.weights.get(i, Memory()).size, self.cache.get(i, Memory()).size) for i in layers]
        return {
            "device": self.device,
            "uuid": self.uuid,
            "total": self.total,
            "weights": weights,
            "cache": cache,
            "graph": graph,
            "failures": self.failures,
            "layers": [{"layer": i, "weights": of_weights, "cache": of_cache} for i, of_weights, of_cache in parts],
            "larger": {dtype: {"in_file": there, "here": here} for dtype, (there, here) in self.larger.items()},
        }

    @property
    def failed(self) -> bool:
        """Whether an allocation on this device failed."""
        return bool(self.failures)

    @property
    def failures(self) -> list[str]:
        """The allocations that failed, as text: ``"cache of layer 3, 1.5 MiB"``, ``"graph"``."""
        found = [
            f"{what} of {'the input' if layer < 0 else f'layer {layer}'}, {format_bytes(memory.size)}"
            for what, by_layer in (("weights", self.weights), ("cache", self.cache))
            for layer, memory in by_layer.items()
            if memory.status is AllocationStatus.FAILED
        ]
        return [*found, "graph"] if self.graph.status is AllocationStatus.FAILED else found


@dataclass(slots=True, repr=False)
class BackendMemory:
    """The memory of all devices of a backend."""

    devices: list[DeviceMemory] = field(default_factory=list)

    @classmethod
    def of(cls, devices: Iterable[Device]) -> Self:
        """A report with an empty entry for each device."""
        return cls([DeviceMemory(device.name, uuid=device.uuid) for device in devices])

    def on(self, device: str) -> DeviceMemory:
        """The entry of this device; it is added if it is missing."""
        for d in self.devices:
            if d.device == device:
                return d
        self.devices.append(DeviceMemory(device))
        return self.devices[-1]

    def fail(self, device: str, what: Literal["weights", "cache", "graph"], size: int, layer: int = -1) -> None:
        """Mark an amount as failed. What the layer or the graphs had before is added to it."""
        entry = self.on(device)
        if what == "graph":
            entry.graph = Memory(entry.graph.size + size, AllocationStatus.FAILED)
        else:
            by_layer = entry.weights if what == "weights" else entry.cache
            by_layer[layer] = Memory(by_layer.get(layer, Memory()).size + size, AllocationStatus.FAILED)

    @property
    def total(self) -> int:
        """Bytes on all devices, with any status."""
        return sum(d.total for d in self.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the report as values for ``json.dumps``: bytes by device and layer. Layer -1 is before the first."""
        return {"total": self.total, "devices": [device.to_json() for device in self.devices]}

    def __str__(self) -> str:
        lines = []
        for d in self.devices:
            failed = " FAILED" if d.failed else ""
            weights, cache, _ = d.sizes
            input_part = (
                f", including {format_bytes(d.input_weights.size)} for the input" if d.input_weights.size else ""
            )
            lines.append(
                f"{d.device}: {format_bytes(d.total)}{failed} "
                f"(weights {format_bytes(weights)}{input_part}, cache {format_bytes(cache)}, graph {d.graph})"
            )
            lines += [f"  failed: {what}" for what in d.failures if what != "graph"]
            lines += [
                f"  {dtype} weights take {format_bytes(here)}, {format_bytes(in_file)} in the file"
                for dtype, (in_file, here) in sorted(d.larger.items())
            ]
        return "\n".join(lines) or "nothing allocated"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{d.device} {format_bytes(d.total)}{' FAILED' if d.failed else ''}" for d in self.devices)
        return f"<BackendMemory: {sizes or 'nothing allocated'}>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import memory_table

        return memory_table((d.device, *d.sizes, 0) for d in self.devices)
