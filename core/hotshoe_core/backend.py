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

from hotshoe_core.device import BackendParams, Device
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import ForkedProcessError, ShapeError
from hotshoe_core.memory import BackendMemory, Memory
from hotshoe_core.tensor import Shape, Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

    from hotshoe_core.context import Context
    from hotshoe_core.graph import Graph

__all__ = ["Backend", "CacheConfig", "Counters", "Executable", "Placement", "Progress", "WeightData", "require_sizes"]

Progress = Callable[[float], None]
"""Called with the fraction done, 0 to 1. An exception it raises cancels the work."""


@dataclass(frozen=True, slots=True)
class WeightData:
    """One weight as a file holds it.

    data: its bytes as a flat uint8 array, usually a view of a mapped file. use: the op that will read it
    ("linear", "take", "mul", …), which decides whether it may be repacked; a weight several ops read
    names the most demanding last. layer: -1 for what belongs to no layer. many_rows: it multiplies many rows at
    once, as in an encoder, so that arithmetic and not memory is the limit: a backend may keep it in a larger
    layout that multiplies faster. Raises ShapeError if data is not
    as long as shape and dtype say: native code would read beyond it.
    """

    name: str
    shape: Shape
    dtype: DType
    data: np.ndarray[Any, Any]
    uses: tuple[str, ...] = ()
    layer: int = -1
    many_rows: bool = False

    def __post_init__(self) -> None:
        require_sizes(f"weight {self.name!r}", self.shape)
        size = self.dtype.nbytes(self.shape)
        if self.data.dtype != np.uint8 or self.data.shape != (size,):
            raise ShapeError(
                f"weight {self.name!r}: {self.dtype.name}{list(self.shape)} takes {size} bytes; "
                f"got {self.data.dtype}{list(self.data.shape)}"
            )


def require_sizes(what: str, shape: Sequence[int]) -> None:
    """Raise ShapeError unless all sizes are positive: no backend agrees with another on what is empty."""
    if any(d < 1 for d in shape):
        raise ShapeError(f"{what}: sizes must be positive, got {tuple(shape)}")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What a backend wants of a KV cache.

    padding: the cache length a graph sees is a multiple of this. mask_dtype: element type of the mask.
    """

    padding: int = 1
    mask_dtype: DType = DType.F32


class Placement(NamedTuple):
    """Where one node of a graph runs. ``how``: "native", "decomposed" or "fallback" (on another device)."""

    node: str
    op: str
    device: str
    how: str


@dataclass(slots=True)
class Counters:
    """How much building a backend has done; replaying a context must leave all of it alone."""

    compiled: int = 0
    lowered: int = 0


class Executable(ABC):
    """A compiled graph with its memory. Tensors given to write and read are those of the compiled graph."""

    @abstractmethod
    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Set an input. ``array`` is contiguous and has the tensor's shape and NumPy dtype."""

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
    def placements(self) -> Sequence[Placement]:
        """Where each node runs."""

    @abstractmethod
    def close(self) -> None:
        """Free the graph's memory. Idempotent."""


class Backend(ABC):
    """An opened engine on one or more devices. Calls from several threads are serialised by the backend.

    It belongs to the process that opened it: methods call ``require_process`` before they take a lock, and
    ``close`` in another process does nothing. ``close`` sets ``_closed``.
    """

    name: str
    devices: tuple[Device, ...]
    params: BackendParams
    counters: Counters
    honours: frozenset[str] = frozenset()
    """The fields of BackendParams that this backend acts on. The loader warns of any other one that was set."""
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

    @abstractmethod
    def load(self, weights: Sequence[WeightData], progress: Progress | None = None) -> dict[str, Tensor]:
        """Take weights in; returns a weight tensor for each name.

        Raises InsufficientMemoryError. If it raises, for this or any other reason, nothing stays loaded.
        """

    @abstractmethod
    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        """A zeroed persistent tensor that graphs read and update. Raises InsufficientMemoryError."""

    @abstractmethod
    def release(self, tensors: Sequence[Tensor]) -> None:
        """Free weights or states of this backend. Graphs that use them must be closed before."""

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether this node can be lowered as it is. Core decomposes composites for which it cannot."""

    @abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Lower a graph and allocate its memory. Raises UnsupportedOpError or InsufficientMemoryError."""

    @abstractmethod
    def memory(self) -> BackendMemory:
        """What is allocated now, by device and layer, graphs included."""

    def cache_config(self) -> CacheConfig:
        """What this backend wants of a KV cache."""
        return CacheConfig()

    @abstractmethod
    def close(self) -> None:
        """Free everything. Idempotent; later use raises ClosedError."""

    def new_context(self) -> Context:
        """A context to build a graph in."""
        from hotshoe_core.context import Context

        return Context(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
