"""Plan: the memory that a model would take on each device, layer by layer, without allocating it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hotshoe.placement.fit import fits
from hotshoe_core import BackendMemory, CacheConfig, Device, DType, Placement

__all__ = ["SIMULATED_CACHE", "LayerShare", "Plan"]

SIMULATED_CACHE = CacheConfig(padding=256, mask_dtype=DType.F16)
"""The cache of simulated devices: that of ggml's GPUs."""


class LayerShare(NamedTuple):
    """What one device would hold of one layer, in bytes."""

    layer: str
    """A number, "input" or "output"."""

    device: str
    weights: int
    cache: int


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Which device would hold which layers of a model. Made by ``hotshoe.plan_model``."""

    file: str
    architecture: str
    n_layers: int
    n_ctx: int
    kv_dtype: str
    devices: tuple[Device, ...]
    """The devices, in the order requested."""

    free: Mapping[str, int]
    """Free bytes of each device by its name; 0 if unknown."""

    placement: Placement
    memory: BackendMemory
    """As ``model.memory()`` of the loaded model: the same bytes of weights and caches, and the largest graph."""

    unused: Mapping[str, int] = field(default_factory=dict)
    """The bytes of tensors that the model does not use, and which are not loaded, by the reason."""

    moved: tuple[str, ...] = ()
    """What was moved to other devices because it would not fit, one sentence for each time."""

    @property
    def fits(self) -> bool:
        """Whether each device has room for what it would hold, as far as its free memory is known."""
        return fits({d.device: d.total for d in self.memory.devices}, self.devices, self.free)

    @property
    def parts(self) -> tuple[LayerShare, ...]:
        """The shares of each layer, one for each device that would hold some of it."""
        found = []
        for layer in range(-1, self.n_layers + 1):
            name = {-1: "input", self.n_layers: "output"}.get(layer, str(layer))
            for d in self.memory.devices:
                weights, cache = (amounts[layer].size if layer in amounts else 0 for amounts in (d.weights, d.cache))
                if weights or cache:
                    found.append(LayerShare(name, d.device, weights, cache))
        return tuple(found)

    def __repr__(self) -> str:
        names = ", ".join(device.name for device in self.devices)
        verdict = "fits" if self.fits else "does not fit"
        return f"<Plan: {self.architecture}, n_ctx={self.n_ctx}, on {names}: {verdict}>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import memory_table

        rows = [(d.name, *self.memory.on(d.name).sizes, self.free.get(d.name, 0)) for d in self.devices]
        return memory_table(rows, f"{self.file}\n{self!r}", free=True)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as values for ``json.dumps``."""
        return {
            "file": self.file,
            "architecture": self.architecture,
            "n_ctx": self.n_ctx,
            "kv_dtype": self.kv_dtype,
            "fits": self.fits,
            "unused": dict(self.unused),
            "moved": list(self.moved),
            "layers": [part._asdict() for part in self.parts],
            "devices": [
                {
                    "name": d.name,
                    "type": d.type.value,
                    "free": self.free.get(d.name, 0),
                    **dict(zip(("weights", "cache", "graph"), self.memory.on(d.name).sizes)),
                    "total": self.memory.on(d.name).total,
                }
                for d in self.devices
            ],
        }
