"""A plan: what a model would take on which device, layer by layer, found without allocating any of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hotshoe.loading import Recipe
from hotshoe.placement.fit import fits
from hotshoe.placement.load_and_adjust import load_settled
from hotshoe.placement.params import PlacementParams
from hotshoe.placement.sizes import open_paper
from hotshoe.runner.params import RunnerParams
from hotshoe_core import Backend, BackendMemory, BackendParams, CacheConfig, Device, DType, Placement
from hotshoe_loader import load_all

__all__ = ["Part", "Plan", "plan_model"]

_GPUS = CacheConfig(padding=256, mask_dtype=DType.F16)  # what ggml's devices want of a cache


class Part(NamedTuple):
    """What a device would hold of one layer; ``layer`` is "input", a number, or "output". Bytes."""

    layer: str
    device: str
    weights: int
    cache: int


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Where a model would lie.

    devices: in the order asked for; free: bytes that each has left, 0 where that is not known. memory: as
    ``model.memory()`` of the loaded model: weights and caches are the same bytes, the graph is that of the largest
    step. moved: what was moved because it would not have fitted.
    """

    file: str
    architecture: str
    n_layers: int
    n_ctx: int
    kv_dtype: str
    devices: tuple[Device, ...]
    free: Mapping[str, int]
    placement: Placement
    memory: BackendMemory
    moved: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every device has what it is to hold, as far as devices say what they have."""
        return fits({d.device: d.total for d in self.memory.devices}, self.devices, self.free)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Layer by layer, of each the devices that hold something of it."""
        found = []
        for layer in range(-1, self.n_layers + 1):
            name = {-1: "input", self.n_layers: "output"}.get(layer, str(layer))
            for d in self.memory.devices:
                weights, cache = (amounts[layer].size if layer in amounts else 0 for amounts in (d.weights, d.cache))
                if weights or cache:
                    found.append(Part(name, d.device, weights, cache))
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
        """What ``json.dumps`` takes."""
        return {
            "file": self.file,
            "architecture": self.architecture,
            "n_ctx": self.n_ctx,
            "kv_dtype": self.kv_dtype,
            "fits": self.fits,
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


def plan_model(
    path: str | os.PathLike[str],
    device: str | Iterable[str] | None = None,
    *,
    n_ctx: int | None = None,
    params: BackendParams | None = None,
    runner: RunnerParams | None = None,
    placement: PlacementParams | None = None,
    simulate: Sequence[Device] | None = None,
) -> Plan:
    """Where ``load_model`` with these arguments would put everything. Reads the file's header, allocates nothing.

    simulate: devices that need not be there, in place of those of this machine; weights then count as many bytes as in
    the file. Raises as ``load_model`` does, but InsufficientMemoryError: a plan that does not fit says so.
    """
    with Recipe.read(path, device, n_ctx, params, runner, placement, None) as recipe:
        recipe.params = replace(recipe.params, allocate=False)

        def open_backend() -> Backend:
            return recipe.open(load_all()) if simulate is None else open_paper(simulate, _GPUS)

        n = recipe.config.n_layers
        model = load_settled(open_backend, recipe.build, n, recipe.placement, dry=True)
        backend = model.backend
        try:
            return Plan(
                str(recipe.file.path),
                recipe.file.architecture,
                n,
                recipe.config.n_ctx,
                recipe.runner.kv_dtype,
                backend.devices,
                backend.memory_free(),
                backend.placement,
                backend.memory(),
                model.moved,
            )
        finally:
            backend.close()
