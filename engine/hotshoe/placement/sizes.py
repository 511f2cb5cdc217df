"""What a model takes, part by part, before it lies anywhere: weights, caches, and the largest step's temporaries.

It is measured on paper: a backend that holds nothing and computes nothing, and so says the bytes of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.runner.base import LoadedModel
from hotshoe_core import BackendParams, CacheConfig, Device, DeviceType, EagerBackend, EagerLibrary, Memory, Placement
from hotshoe_core.tensors.tensor import TABLE

if TYPE_CHECKING:
    from hotshoe_core import Backend
    from hotshoe_core.contract.backend import Progress

__all__ = ["Build", "LayerSizes", "ModelSizes", "measure", "open_paper"]


class Build(Protocol):
    """Loads the model into a backend, by a placement."""

    def __call__(self, backend: Backend, placement: Placement, progress: Progress | None = None) -> LoadedModel: ...


_HERE, _APART = "here", "apart"


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of one layer. experts: of its experts' weights, which are not among ``weights``."""

    weights: int = 0
    cache: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.experts


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Bytes of a model's parts.

    input, output: what is read before the first layer and after the last. tied: the part of the input that the output
    reads too, so that it is there twice if they lie on two devices. graph: the temporaries of the largest step.
    """

    layers: tuple[LayerSizes, ...]
    input: int = 0
    output: int = 0
    tied: int = 0
    graph: int = 0


def measure(build: Build, n_layers: int, config: CacheConfig) -> ModelSizes:
    """The sizes of the model that ``build`` loads, with the cache that a backend of this ``cache_config()`` wants."""
    placement = Placement(_HERE, (_HERE,) * n_layers, _APART, experts=(_APART,) * n_layers)
    devices = [Device(name, DeviceType.ACCEL, "paper", "paper") for name in (_HERE, _APART)]
    with open_paper(devices, config) as paper:
        model = build(paper, placement)
        model.reserve()
        here, apart = (paper.memory().on(name) for name in (_HERE, _APART))
        total = sum(memory.size for device in (here, apart) for memory in device.weights.values())
        tied = total - sum(t.nbytes for t in model.weights.values())  # ``weights`` has each tensor of the file once
    layers = [
        LayerSizes(_size(here.weights, i), _size(here.cache, i), _size(apart.weights, i)) for i in range(n_layers)
    ]
    graph = max(here.graph.size, apart.graph.size)
    return ModelSizes(tuple(layers), _size(here.weights, -1), _size(apart.weights, n_layers) - tied, tied, graph)


def _size(amounts: Mapping[int, Memory], layer: int) -> int:
    return amounts[layer].size if layer in amounts else 0


def open_paper(devices: Sequence[Device], config: CacheConfig) -> EagerBackend:
    """A backend over devices that need not be there: it knows every op and every size, and holds nothing."""
    return EagerBackend("paper", devices, BackendParams(allocate=False), [_library(config)] * len(devices))


def _library(config: CacheConfig) -> EagerLibrary:
    return EagerLibrary(
        functions=dict.fromkeys(TABLE, _nothing),
        from_numpy=_nothing,
        to_numpy=_nothing,
        weight=_nothing,
        nbytes=lambda shape, dtype: dtype.nbytes(shape),
        in_place=dict.fromkeys(("set_rows", "set_slice"), _nothing),
        copy=_nothing,
        cache_config=config,
    )


def _nothing(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a backend on paper computes nothing")
