"""What a model takes: per device and layer, weights and cache, and the compute graph.

Sizes are bytes. ``BackendMemory`` is what ``backend.memory()`` returns and what InsufficientMemoryError
carries: the amount that failed is marked, so a caller can move layers elsewhere and try again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from hotshoe_core.errors.text import format_bytes

__all__ = ["AllocationStatus", "BackendMemory", "DeviceMemory", "Memory"]


class AllocationStatus(enum.Enum):
    UNALLOCATED = "unallocated"  # known, but not asked of the device yet (a dry run stays here)
    FAILED = "failed"
    ALLOCATED = "allocated"


@dataclass(frozen=True, slots=True)
class Memory:
    """One amount in bytes and what became of it."""

    size: int = 0
    status: AllocationStatus = AllocationStatus.UNALLOCATED

    def __str__(self) -> str:
        mark = "" if self.status is AllocationStatus.ALLOCATED else f" ({self.status.value})"
        return f"{format_bytes(self.size)}{mark}"


@dataclass(slots=True)
class DeviceMemory:
    """Memory on one device.

    ``weights`` and ``cache`` are keyed by layer: -1 is what is read before the first layer, the input embedding above
    all, and n_layers what is read after the last. uuid: of the device, where its driver tells one. larger: by the
    file's element type, weights that the device cannot use as they are and keeps in more bytes: those of the file, and
    those here.
    """

    device: str
    weights: dict[int, Memory] = field(default_factory=dict)
    cache: dict[int, Memory] = field(default_factory=dict)
    graph: Memory = field(default_factory=Memory)
    uuid: str | None = None
    larger: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def input_weights(self) -> Memory:
        """The weights read before the first layer."""
        return self.weights.get(-1, Memory())

    @property
    def total(self) -> int:
        """Bytes on this device, whatever their status."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the weights, of the cache and of the graph."""
        weights, cache = (sum(m.size for m in amounts.values()) for amounts in (self.weights, self.cache))
        return weights, cache, self.graph.size

    @property
    def failed(self) -> bool:
        return bool(self.failures)

    @property
    def failures(self) -> list[str]:
        """What could not be had, in words: ``"cache of layer 3, 1.5 MiB"``, ``"graph"``."""
        found = [
            f"{what} of {'the input' if layer < 0 else f'layer {layer}'}, {format_bytes(memory.size)}"
            for what, by_layer in (("weights", self.weights), ("cache", self.cache))
            for layer, memory in by_layer.items()
            if memory.status is AllocationStatus.FAILED
        ]
        return [*found, "graph"] if self.graph.status is AllocationStatus.FAILED else found


@dataclass(slots=True, repr=False)
class BackendMemory:
    """The breakdown over all devices of a backend."""

    devices: list[DeviceMemory] = field(default_factory=list)

    def on(self, device: str) -> DeviceMemory:
        """The entry of this device, made if there is none yet."""
        for d in self.devices:
            if d.device == device:
                return d
        self.devices.append(DeviceMemory(device))
        return self.devices[-1]

    def fail(self, device: str, what: Literal["weights", "cache", "graph"], size: int, layer: int = -1) -> None:
        """Mark the amount that could not be had. What the layer or the graphs had before counts as part of it."""
        entry = self.on(device)
        if what == "graph":
            entry.graph = Memory(entry.graph.size + size, AllocationStatus.FAILED)
        else:
            where = entry.weights if what == "weights" else entry.cache
            where[layer] = Memory(where.get(layer, Memory()).size + size, AllocationStatus.FAILED)

    @property
    def total(self) -> int:
        return sum(d.total for d in self.devices)

    def __str__(self) -> str:
        lines = []
        for d in self.devices:
            failed = " FAILED" if d.failed else ""
            weights, cache, _ = d.sizes
            of_input = f", {format_bytes(d.input_weights.size)} of them the input's" if d.input_weights.size else ""
            lines.append(
                f"{d.device}: {format_bytes(d.total)}{failed} "
                f"(weights {format_bytes(weights)}{of_input}, cache {format_bytes(cache)}, graph {d.graph})"
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
