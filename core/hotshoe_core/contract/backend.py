"""What a backend author implements: Backend holds weights and compiles graphs, Executable runs one graph.

A backend never sees a model and never subclasses Tensor: it receives whole graphs and lowers them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.contract.memory import BackendMemory, Memory
from hotshoe_core.errors import BackendError, DTypeError, ForkedProcessError, ShapeError
from hotshoe_core.errors.arguments import described, integer
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
"""Called with the fraction done, 0 to 1. If it raises an exception, the work is cancelled."""

EXPERT_OPS = frozenset({"linear_experts", "add_experts"})
"""The ops that read weights of experts. A layer has many experts, and a token reads a few of them."""


@dataclass(frozen=True, slots=True)
class WeightData:
    """One weight in the format of its file.

    Raises ShapeError unless ``data`` has the length that ``shape`` and ``dtype`` imply: native code would read past it.
    """

    name: str
    """The tensor's name in the file."""

    shape: Shape
    dtype: DType

    data: np.ndarray[Any, Any]
    """The bytes as a flat uint8 array, usually a view of a mapped file."""

    uses: tuple[str, ...] = ()
    """The ops that will read the weight ("linear", "take", "mul", …). They decide whether it may be repacked."""

    layer: int = -1
    """-1 if it is read before the first layer, n_layers if it is read after the last one."""

    compute_bound: bool = False
    """The weight multiplies many rows at once, as in an encoder, so arithmetic is the limit and not memory bandwidth.

    A backend may keep it in a larger layout that multiplies faster.
    """

    variant: str = ""
    """Distinguishes loads of one tensor: the name of the device, if layers of several devices read the tensor."""

    @property
    def key(self) -> str:
        """The key of the weight's tensor in the result of ``Backend.load``; unique among the weights of one call."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def __post_init__(self) -> None:
        require_sizes(f"weight {self.name!r}", self.shape)
        size = self.dtype.nbytes(self.shape)
        if self.data.dtype != np.uint8 or self.data.shape != (size,):
            raise ShapeError(
                f"weight {self.name!r}: {self.dtype.name}{list(self.shape)} takes {size} bytes; "
                f"got {self.data.dtype}{list(self.data.shape)}"
            )


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The key/value cache that a backend wants, and the lengths of its graphs.

    Raises BackendError for an invalid value.
    """

    padding: int = 1
    """The cache length that a graph sees is a multiple of this."""

    mask_dtype: DType = DType.F32
    """The element type of the attention mask."""

    lengths_per_octave: int | None = None
    """How many lengths graphs may have from a power of two to the next one: 1, 2, 4, 8 or 16.

    It applies to the rows of a graph and to the length of the cache, in units of ``padding``. A backend that compiles
    for seconds sets a small number: with 1, prompts of 1 to 512 tokens have 10 lengths; with 2, 18. Padding adds at
    most ``1 / lengths_per_octave`` to a graph. None: 16 for rows, and 8 for the cache.

    If it is a number, hotshoe keeps up to 32 graphs of the largest size, and 8 if it is None.
    """

    cell_dtype: DType = DType.I32
    """The type of the indices by which a graph writes keys and values: I32 or I64."""

    n_rows: int = 512
    """The most tokens of a text model's step, if the user gives no ``n_batch``. Large steps take more memory."""

    reads_lists: bool = False
    """Whether caches give attention lists of cells (``cached_attention``) instead of masks over all cells.

    Set it if the backend has ``cached_attention`` natively: decomposed, it copies the keys of all lists. Where a cache
    has many texts, lists are shorter than masks, and a text's results can be independent of the other texts. Lists
    begin at positions that are multiples of 512: if the steps of your sums divide it, a window that moves does not
    change their order.
    """

    @staticmethod
    def rows_for(device: Device) -> int:
        """Return an ``n_rows`` for a device: 2048 for a GPU that has 30 GiB of memory or more, else 512."""
        return 2048 if device.type is DeviceType.GPU and device.memory_total >= 30 << 30 else 512

    def __post_init__(self) -> None:
        integer("padding", self.padding, 1, BackendError)
        integer("n_rows", self.n_rows, 1, BackendError)
        if not isinstance(self.mask_dtype, DType):
            raise BackendError(f"mask_dtype is {described(self.mask_dtype)}; expected a DType, such as DType.F32")
        n = self.lengths_per_octave
        if n is not None and (type(n) is bool or not isinstance(n, (int, np.integer)) or n not in (1, 2, 4, 8, 16)):
            raise BackendError(f"lengths_per_octave is {described(n)}; expected None, 1, 2, 4, 8 or 16")
        if type(self.reads_lists) is not bool:
            raise BackendError(f"reads_lists is {described(self.reads_lists)}; expected True or False")
        if self.cell_dtype not in (DType.I32, DType.I64):
            raise BackendError(f"cell_dtype is {described(self.cell_dtype)}; expected DType.I32 or DType.I64")


@dataclass(frozen=True, slots=True)
class Placement:
    """Which device holds which part of a model. Devices are given by name.

    Nodes that read experts or states run on the device that holds those: see ``hotshoe_core.graphs.splits``.
    """

    input: str
    """The device of all that comes before the first layer, mainly the embedding."""

    layers: tuple[str, ...] = ()
    """The device of each layer: its weights, its states and its nodes."""

    output: str = ""
    """The device of all that comes after the last layer; "" is the same as ``input``."""

    experts: tuple[str, ...] = ()
    """For each layer, the device of the weights of its experts. "" or no entry: the device of the layer."""

    cache: tuple[str, ...] = ()
    """For each layer, the device of its states. "" or no entry: the device of the layer."""

    def device(self, layer: int) -> str:
        """The device of a layer: -1 is the input, and every number from ``len(layers)`` on is the output."""
        if layer < 0:
            return self.input
        return self.layers[layer] if layer < len(self.layers) else self.output or self.input

    def device_of_weight(self, layer: int, uses: Sequence[str]) -> str:
        """The device of a weight of this layer that the ops in ``uses`` read."""
        is_experts = 0 <= layer < len(self.experts) and not EXPERT_OPS.isdisjoint(uses)
        return (self.experts[layer] if is_experts else "") or self.device(layer)

    def device_of_state(self, layer: int) -> str:
        """The device of a state of this layer."""
        return (self.cache[layer] if 0 <= layer < len(self.cache) else "") or self.device(layer)

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that is named, each once, in the order of the model."""
        named = (self.input, *self.layers, self.output, *self.experts, *self.cache)
        return tuple(dict.fromkeys(d for d in named if d))


class NodePlacement(NamedTuple):
    """Where one node of a graph runs."""

    node: str
    """The name of the node."""

    op: str

    device: str

    how: str
    """"native", "decomposed", or "fallback" if the device that the placement intends cannot run the node."""

    layer: int = -1


@dataclass(slots=True)
class Counters:
    """How much a backend has built. Running a context again must not change these numbers."""

    compiled: int = 0
    """Graphs compiled."""

    lowered: int = 0
    """Nodes lowered."""

    traced: int = 0
    """Graphs, or parts of them, that a compiler of the library has traced."""


class Executable(ABC):
    """A compiled graph with its memory. ``write`` and ``read`` take tensors of the compiled graph."""

    @abstractmethod
    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Set an input of the next run. ``array`` is contiguous and has the tensor's shape and NumPy dtype.

        The caller does not change the array before that run, so an executable may keep it and copy it in ``run``.
        """

    @abstractmethod
    def run(self) -> None:
        """Compute all outputs and state updates."""

    def start(self) -> bool:
        """Begin a run. Return True if the device still computes it: then ``wait`` comes before ``write`` and ``read``.

        ``memory``, ``placements`` and ``close`` may come first, and other executables of the backend may be compiled,
        run and closed meanwhile. By default this is ``run``.
        """
        self.run()
        return False

    def wait(self) -> None:  # noqa: B027 - by default a run is complete when it was started
        """Return when the run that ``start`` began is complete. Raises the errors that ``run`` raises."""

    @abstractmethod
    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        """Copy an output into ``out``, which is contiguous and has the tensor's shape and NumPy dtype."""

    def give(self, tensor: Tensor) -> np.ndarray[Any, Any] | None:
        """Return an output, of the tensor's shape and NumPy dtype, as an array that the caller owns.

        None: the caller must use ``read``. Once an array is returned, the output is not read again before the next run.
        """
        return None

    @abstractmethod
    def memory(self) -> Mapping[str, Memory]:
        """Bytes of this graph's temporaries, by device name."""

    @abstractmethod
    def placements(self) -> Sequence[NodePlacement]:
        """Where each node runs."""

    @abstractmethod
    def close(self) -> None:
        """Free the graph's memory. May be called more than once."""


class Backend(ABC):
    """An opened engine on one or more devices. The backend serialises calls from several threads.

    It belongs to the process that opened it: methods call ``require_process`` before they take a lock, and ``close``
    does nothing in another process.
    """

    name: str

    devices: tuple[Device, ...]
    """The devices it was opened on, the preferred one first."""

    params: BackendParams
    """The options it was opened with."""

    counters: Counters

    honours: frozenset[str] = frozenset()
    """The fields of BackendParams that have an effect. The loader warns a user who sets another one."""

    strict: bool = False
    """Whether ``Context.reserve`` refuses a graph with a node that cannot run on the device the placement intends."""

    fast_math: bool = False
    """Whether its kernels compute F32 with fewer digits: products in TF32 or F16, functions such as exp approximated.

    The conformance kit then accepts larger errors: see ``OpConformance.tolerance``.
    """

    batch_invariant: bool = False
    """Whether a row has the same bits whatever rows are computed with it, with all weights that were loaded.

    A text is then the same alone and among others, and hotshoe guesses tokens by default: see ``max_draft``. Set it
    only if products, attention and all else add up in an order that does not depend on the number of rows.
    """

    independent: bool = True
    """Whether it may compute while another backend of the process computes, in another thread."""

    on_lost: Callable[[str, str], None] | None = None
    """``on_lost(device, reason)`` is called just before DeviceLostError is raised. The loader's registry sets it."""

    _placement: Placement | None = None
    """Set by ``load``."""

    _closed: bool = False
    """Set by ``close``."""

    _process: int
    """The id of the process that opened the backend."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._process = os.getpid()
        return self

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def is_forked_copy(self) -> bool:
        """Whether this is a copy in a process that was forked after the backend was opened."""
        return self._process != os.getpid()

    def require_process(self) -> None:
        """Raise ForkedProcessError in a process that was forked after the backend was opened.

        Threads do not survive a fork, and a lock that one of them held stays locked: waiting for it would never end.
        """
        if self.is_forked_copy:
            raise ForkedProcessError(
                f"the {self.name} backend was opened in process {self._process} and is used in process {os.getpid()}, "
                "which was forked later; its threads and its connection to the driver exist only in the first process",
                hint="load the model in each process after the fork, or start processes with multiprocessing's 'spawn'",
            )

    @property
    def placement(self) -> Placement:
        """Which device holds which layer: set by the last ``load``, at first all on the first device."""
        return self._placement or Placement(self.devices[0].name)

    def device_of(self, layer: int) -> Device:
        """The device that ``placement`` names for a layer."""
        name = self.placement.device(layer)
        return next(d for d in self.devices if d.name == name)

    def require_placement(self, placement: Placement | None) -> Placement:
        """``placement``, or the current one if None. Raises BackendError for a device that is not opened."""
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

    def device_of_tensor(self, tensor: Tensor) -> str:
        """The device that holds a weight or state of this backend."""
        placement = self.placement
        return placement.device_of_state(tensor.layer) if tensor.op == "state" else placement.device(tensor.layer)

    def memory_free(self) -> Mapping[str, int]:
        """Free bytes of each device now, by device name; 0 if unknown."""
        return {d.name: d.memory_free for d in self.devices}

    @abstractmethod
    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        """Load weights, each on the device ``placement.device_of_weight(…)``; returns a tensor for each ``key``.

        placement: becomes ``self.placement``, which later states and graphs follow; None keeps the current one, at
        first all on the first device. progress: called in the caller's thread with fractions that never decrease; the
        last is 1. Raises BackendError for a device that is not opened, InsufficientMemoryError with device and layer of
        the failure. If it raises any error, nothing stays loaded.
        """

    @abstractmethod
    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        """A persistent tensor of zeros that graphs read and update, on the device ``placement.device_of_state(layer)``.

        Raises InsufficientMemoryError.
        """

    @abstractmethod
    def release(self, tensors: Sequence[Tensor]) -> None:
        """Free weights or states of this backend. Close the graphs that use them first."""

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether this node can be lowered: on the device of its layer or, if it is a primitive, on any device.

        Core decomposes the composites that cannot.
        """

    @abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Lower a graph and allocate its memory. Raises UnsupportedOpError or InsufficientMemoryError."""

    @abstractmethod
    def memory(self) -> BackendMemory:
        """The bytes allocated now, by device and layer, graphs included.

        Graphs of one device may share a buffer. Then the graphs' amount is less than their sum, and it decreases when
        the last of them is closed.
        """

    def tuning(self) -> Mapping[str, str]:
        """What the backend found out while it loaded and computed, if that decides how it computes.

        A text for each subject; ``hotshoe bench -v`` prints them. Empty for a backend that looks for nothing, and
        before it has computed enough.
        """
        return {}

    def cache_config(self) -> CacheConfig:
        """The key/value cache that this backend wants."""
        return CacheConfig()

    def quantizes(self, dtype: DType, *, importance: bool = False) -> bool:
        """Whether ``quantize_rows`` can write this type; with ``importance``, whether it also uses the importance.

        The default is what NumPy can write; that ignores the importance.
        """
        return not importance and can_quantize(dtype)

    def quantize_rows(self, rows: Array, dtype: DType, importance: Array | None = None) -> Array:
        """Quantize contiguous float32 rows (n, columns) to the storage of ``dtype``: uint8 (n, bytes of a row).

        importance: how much an error in each column matters, float32 (columns,); None: all columns are equal. It has no
        effect on types that cannot use it. Needs no weights and no graph, and may run in several threads at once.
        Raises DTypeError for a type it cannot write, ShapeError if a row is not a whole number of blocks.
        """
        if not self.quantizes(dtype):
            raise DTypeError(
                f"the {self.name} backend cannot write {dtype.name}", hint="use a backend that can quantize to it"
            )
        return quantize(rows, dtype).reshape(len(rows), -1)

    def dequantize_rows(self, data: Array, dtype: DType, n_columns: int) -> Array:
        """Convert quantized rows, uint8 (n, bytes of a row), to float32 (n, n_columns). Inverse of ``quantize_rows``.

        May run in several threads at once. Raises DTypeError for a type it cannot read.
        """
        return dequantize(data.reshape(-1), dtype, (len(data), n_columns)).astype(np.float32, copy=False)

    @abstractmethod
    def close(self) -> None:
        """Free everything. May be called more than once; later use of the backend raises ClosedError."""

    def new_context(self) -> Context:
        """A context to build a graph in."""
        return Context(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
