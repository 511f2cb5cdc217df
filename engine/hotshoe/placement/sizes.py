"""The sizes of a model's parts before it is loaded: weights, caches, and the temporaries of the largest graph.

They are measured with a simulated backend, which allocates and computes nothing and counts bytes as the file does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hotshoe_core import BackendParams, CacheConfig, Device, DeviceType, EagerBackend, EagerLibrary, Memory, Placement
from hotshoe_core.tensors.tensor import TABLE

if TYPE_CHECKING:
    from hotshoe_core import Backend, BackendMemory, Tensor
    from hotshoe_core.contract.backend import Progress

__all__ = ["Build", "LayerSizes", "M", "ModelSizes", "PlacedModel", "measure", "open_simulated"]


class PlacedModel(Protocol):
    """What device placement asks of a loaded model."""

    backend: Backend
    moved: tuple[str, ...]

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights by their names in the file, each once."""

    def memory(self) -> BackendMemory:
        """Return the memory that the model uses, by device and layer."""

    def reserve(self) -> None:
        """Allocate the largest graph."""


M = TypeVar("M", bound=PlacedModel)
M_co = TypeVar("M_co", bound=PlacedModel, covariant=True)


class Build(Protocol[M_co]):
    """A function that loads a model into a backend, by a placement."""

    def __call__(self, backend: Backend, placement: Placement, progress: Progress | None = None) -> M_co: ...


_MAIN, _SECOND = "main", "second"  # two simulated devices


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """The bytes of one layer."""

    weights: int = 0
    """Weights, without those of experts."""

    cache: int = 0
    experts: int = 0
    """Weights of experts."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The bytes of a model's parts."""

    layers: tuple[LayerSizes, ...]
    input: int = 0
    """What is read before the first layer."""

    output: int = 0
    """What is read after the last layer, without ``tied``."""

    tied: int = 0
    """The weights of the input that the output reads too. They are stored twice if the two are on two devices."""

    graph: int = 0
    """The temporaries of the largest graph."""


def measure(build: Build[PlacedModel], n_layers: int, config: CacheConfig) -> ModelSizes:
    """Measure the model that ``build`` loads, with the cache of a backend whose ``cache_config()`` is ``config``."""
    placement = Placement(_MAIN, (_MAIN,) * n_layers, _SECOND, experts=(_SECOND,) * n_layers)
    devices = [Device(name, DeviceType.ACCEL, "simulated", "simulated") for name in (_MAIN, _SECOND)]
    with open_simulated(devices, config) as simulated:
        model = build(simulated, placement)
        model.reserve()
        main, second = (simulated.memory().on(name) for name in (_MAIN, _SECOND))
        total = sum(memory.size for device in (main, second) for memory in device.weights.values())
        tied = total - sum(t.nbytes for t in model.weights.values())  # model.weights has each tensor of the file once
    layers = [
        LayerSizes(_size(main.weights, i), _size(main.cache, i), _size(second.weights, i)) for i in range(n_layers)
    ]
    graph = max(main.graph.size, second.graph.size)
    return ModelSizes(tuple(layers), _size(main.weights, -1), _size(second.weights, n_layers) - tied, tied, graph)


def _size(amounts: Mapping[int, Memory], layer: int) -> int:
    return amounts[layer].size if layer in amounts else 0


def open_simulated(devices: Sequence[Device], config: CacheConfig) -> EagerBackend:
    """Open a backend over simulated devices. It supports every op and knows every size, but holds nothing."""
    return EagerBackend("simulated", devices, BackendParams(allocate=False), [_library(config)] * len(devices))


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
    raise NotImplementedError("a simulated backend computes nothing")
