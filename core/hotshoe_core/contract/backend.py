"""What a backend author writes: Backend holds weights and compiles graphs, Executable runs one.

A backend never sees a model and never subclasses Tensor: it receives whole graphs and lowers them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.contract.memory import BackendMemory, Memory
from hotshoe_core.errors import BackendError, DTypeError, ForkedProcessError, ShapeError
from hotshoe_core.graphs.context import Context
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.leaf_checks import require_sizes
from hotshoe_core.tensors.quants import can_quantize, dequantize, quantize
from hotshoe_core.tensors.tensor import Shape, Tensor

if TYPE_CHECKING:
    from typing import Self

    from hotshoe_core.graphs.graph import Graph

__all__ = ["Backend", "CacheConfig", "Counters", "Executable", "NodePlacement", "Placement", "Progress", "WeightData"]

Array = np.ndarray[Any, Any]

Progress = Callable[[float], None]
"""Called with the fraction done, 0 to 1. An exception it raises cancels the work."""

EXPERT_OPS = frozenset({"linear_experts", "add_experts"})
"""The ops whose weights are those of experts: many, of which a token reads a few."""


@dataclass(frozen=True, slots=True)
class WeightData:
    """One weight as a file holds it.

    Raises ShapeError if ``data`` is not as long as shape and dtype need: native code would read beyond it.
    """

    name: str
    """The tensor's name in the file."""

    shape: Shape
    dtype: DType

    data: np.ndarray[Any, Any]
    """Its bytes as a flat uint8 array, usually a view of a mapped file."""

    uses: tuple[str, ...] = ()
    """The ops that will read it ("linear", "take", "mul", …). They decide whether a backend may repack it."""

    layer: int = -1
    """-1 if it is read before the first layer, n_layers if it is read after the last."""

    compute_bound: bool = False
    """It multiplies many rows at once, as in an encoder: arithmetic is the limit, not memory.

    A backend may keep it in a larger layout that multiplies faster.
    """

    variant: str = ""
    """Distinguishes several loads of one tensor: the device's name, if layers of several devices read the tensor."""

    @property
    def key(self) -> str:
        """What ``Backend.load`` returns the weight's tensor under. Unique among the weights of one call."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def __post_init__(self) -> None:
        require_sizes(f"weight {self.name!r}", self.shape)
        size = self.dtype.nbytes(self.shape)
        if self.data.dtype != np.uint8 or self.data.shape != (size,):
            raise ShapeError(
                f"weight {self.name!r}: {self.dtype.name}{list(self.shape)} takes {size} bytes; "
                f"got {self.data.dtype}{list(self.data.shape)}"
            )


class CacheConfig(NamedTuple):
    """What a backend wants of a KV cache.

    padding: the cache length a graph sees is a multiple of this. mask_dtype: element type of the mask.
    """

    padding: int = 1
    mask_dtype: DType = DType.F32


@dataclass(frozen=True, slots=True)
class Placement:
    """Which device holds which part of a model, by the devices' names.

    layers: of each layer; its weights, its states and its nodes are there. input: of what comes before the first
    layer, the embedding above all. output: of what comes after the last. experts, cache: of each layer, where the
    weights of its experts and its states are if they lie apart from it; "", and what is not named, is with the layer.
    What reads them runs where they are: see ``hotshoe_core.graphs.splits``.
    """

    input: str
    layers: tuple[str, ...] = ()
    output: str = ""
    experts: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()

    def device(self, layer: int) -> str:
        """The device of this layer: -1 is the input, and every number from ``len(layers)`` on the output."""
        if layer < 0:
            return self.input
        return self.layers[layer] if layer < len(self.layers) else self.output or self.input

    def of_weight(self, layer: int, uses: Sequence[str]) -> str:
        """The device of a weight of this layer that these ops read."""
        apart = self.experts[layer] if 0 <= layer < len(self.experts) and not EXPERT_OPS.isdisjoint(uses) else ""
        return apart or self.device(layer)

    def of_state(self, layer: int) -> str:
        """The device of a state of this layer."""
        return (self.cache[layer] if 0 <= layer < len(self.cache) else "") or self.device(layer)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device named, in the order of the model."""
        named = (self.input, *self.layers, self.output, *self.experts, *self.cache)
        return tuple(dict.fromkeys(d for d in named if d))


class NodePlacement(NamedTuple):
    """Where one node of a graph runs.

    how: "native", "decomposed", or "fallback" where the device that the placement means for it cannot run it.
    """

    node: str
    op: str
    device: str
    how: str
    layer: int = -1


@dataclass(slots=True)
class Counters:
    """How much building a backend has done; replaying a context must leave all of it alone."""

    compiled: int = 0
    lowered: int = 0


class Executable(ABC):
    """A compiled graph with its memory. Tensors given to write and read are those of the compiled graph."""

    @abstractmethod
    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Set an input of the next run. ``array`` is contiguous and has the tensor's shape and NumPy dtype.

        It stays as it is until then: an executable may keep it and copy it in the run.
        """

    @abstractmethod
    def run(self) -> None:
        """Compute all outputs and state updates."""

    @abstractmethod
    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        """Copy an output into ``out``, which is contiguous and has the tensor's shape and NumPy dtype."""

    @abstractmethod
    def memory(self) -> Mapping[str, Memory]:
        """Bytes of this graph's temporaries, by device name."""

    @abstractmethod
    def placements(self) -> Sequence[NodePlacement]:
        """Where each node runs."""

    @abstractmethod
    def close(self) -> None:
        """Free the graph's memory. Idempotent."""


class Backend(ABC):
    """An opened engine on one or more devices. Calls from several threads are serialised by the backend.

    honours: the fields of BackendParams that have an effect here. Of the others, the loader tells a user who has set
    them; a backend need not warn. ``load`` sets ``_placement``. strict: refuse a graph of which a node would run on
    another device than the placement means for it; ``Context.reserve`` sees to that. on_lost: whom to tell the name of
    a device that went away, and why, before DeviceLostError is raised; set by the registry that opened the backend.

    It belongs to the process that opened it: methods call ``require_process`` before they take a lock, and
    ``close`` in another process does nothing. ``close`` sets ``_closed``.
    """

    name: str
    devices: tuple[Device, ...]
    params: BackendParams
    counters: Counters
    honours: frozenset[str] = frozenset()
    strict: bool = False
    on_lost: Callable[[str, str], None] | None = None
    _placement: Placement | None = None
    _closed: bool = False
    _process: int

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._process = os.getpid()
        return self

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def foreign(self) -> bool:
        """Whether this is a copy that ``fork`` left in another process than the one that opened it."""
        return self._process != os.getpid()

    def require_process(self) -> None:
        """Raises ForkedProcessError in a process forked after the backend was opened.

        Threads do not survive a fork, and a lock that one of them held stays taken: waiting would not end.
        """
        if self.foreign:
            raise ForkedProcessError(
                f"the {self.name} backend was opened in process {self._process} and is used in process {os.getpid()}, "
                "which was forked after that; its threads and its driver's connection stayed behind",
                hint="load the model in each process after the fork, or start processes with multiprocessing's 'spawn'",
            )

    @property
    def placement(self) -> Placement:
        """Which device holds which layer, as the last ``load`` said."""
        return self._placement or Placement(self.devices[0].name)

    def device_of(self, layer: int) -> Device:
        """The device that ``placement`` names for a layer."""
        name = self.placement.device(layer)
        return next(d for d in self.devices if d.name == name)

    def require_placement(self, placement: Placement | None) -> Placement:
        """``placement``, or the one there is. Raises BackendError if it names a device that is not opened."""
        if placement is None:
            return self.placement
        known = [d.name for d in self.devices]
        unknown = [name for name in placement.devices if name not in known]
        if unknown:
            raise BackendError(
                f"the placement names {', '.join(unknown)}; this backend was opened on {', '.join(known)}",
                hint="open the backend on every device of the placement: registry.open([…])",
            )
        return placement

    def home(self, tensor: Tensor) -> str:
        """The device that holds a weight or state of this backend."""
        return self.placement.of_state(tensor.layer) if tensor.op == "state" else self.placement.device(tensor.layer)

    def memory_free(self) -> Mapping[str, int]:
        """Bytes that each device has left now, 0 where that is not known; by the devices' names."""
        return {d.name: d.memory_free for d in self.devices}

    @abstractmethod
    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        """Take weights in, each on the device that ``placement.of_weight`` says; returns a tensor for each ``key``.

        placement: becomes ``self.placement``, by which later states and graphs go; None for the one there is, at
        first all on the first device. progress: called in the caller's thread, with fractions that do not fall; the
        last is 1. Raises BackendError for a device that is not opened, InsufficientMemoryError with device and layer
        of the failure. If it raises, for these or any other reason, nothing stays loaded.
        """

    @abstractmethod
    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        """A zeroed persistent tensor that graphs read and update, on the device that ``placement.of_state`` says.

        Raises InsufficientMemoryError.
        """

    @abstractmethod
    def release(self, tensors: Sequence[Tensor]) -> None:
        """Free weights or states of this backend. Graphs that use them must be closed before."""

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether this node can be lowered as it is, on the device of its layer or, if it is a primitive, on another.

        Core decomposes composites for which it cannot.
        """

    @abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Lower a graph and allocate its memory. Raises UnsupportedOpError or InsufficientMemoryError."""

    @abstractmethod
    def memory(self) -> BackendMemory:
        """What is allocated now, by device and layer, graphs included.

        Graphs may take turns in one buffer of a device. Then theirs is less than the sum, and falls with the last.
        """

    def cache_config(self) -> CacheConfig:
        """What this backend wants of a KV cache."""
        return CacheConfig()

    def quantizes(self, dtype: DType, *, importance: bool = False) -> bool:
        """Whether ``quantize_rows`` writes this type, and with ``importance`` whether it then makes use of that.

        By default what NumPy can, which has no way to weigh one column more than another.
        """
        return not importance and can_quantize(dtype)

    def quantize_rows(self, rows: Array, dtype: DType, importance: Array | None = None) -> Array:
        """Rows of numbers, contiguous float32 (n, columns), in the storage of ``dtype``: uint8 (n, bytes of a row).

        importance: how much an error in each column matters, float32 (columns,); None for all alike. Where ``dtype``
        cannot make use of it, it has no effect. Needs no weights and no graph, and may run in several threads at once.
        Raises DTypeError for a type, ShapeError for rows that are no whole number of its blocks.
        """
        if not self.quantizes(dtype):
            raise DTypeError(f"the {self.name} backend does not write {dtype.name}", hint="use one that quantizes")
        return quantize(rows, dtype).reshape(len(rows), -1)

    def dequantize_rows(self, data: Array, dtype: DType, n_columns: int) -> Array:
        """What ``quantize_rows`` made, or a file holds, uint8 (n, bytes of a row), as float32 (n, n_columns).

        As free of state as ``quantize_rows``. Raises DTypeError for a type it cannot read.
        """
        return dequantize(data.reshape(-1), dtype, (len(data), n_columns)).astype(np.float32, copy=False)

    @abstractmethod
    def close(self) -> None:
        """Free everything. Idempotent; later use raises ClosedError."""

    def new_context(self) -> Context:
        """A context to build a graph in."""
        return Context(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
