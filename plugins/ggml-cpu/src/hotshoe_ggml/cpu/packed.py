"""Weights packed for hotshoe's matrix products, the C kernels in the plugin's folder `native/`."""

from __future__ import annotations

import enum
import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.cpu.pages import LargePages
from hotshoe_ggml.memory.host import drop_pages, zeros
from hotshoe_ggml.memory.layouts import PRODUCTS, PackedLayout
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import ffi, kernels, lib
from hotshoe_ggml.native.context import OutOfMemory
from hotshoe_ggml.parallel import run_all

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "ALIGNMENT",
    "DenseWeight",
    "PackedFormat",
    "PackedWeight",
    "QuantizedWeight",
    "linear_params",
    "multiplies_bf16",
    "multiplies_stored",
    "pack_all",
    "pack_format",
    "rounds_stored",
]

Array = np.ndarray[Any, Any]

BeforeWrite = Callable[[int, int], object]
"""Called before a part of a packed weight is written, with its start and its stop in bytes."""

AfterPack = Callable[[Array], object]
"""Called after a part of a weight was packed, with its bytes in the file."""

_CHUNK = 1 << 20  # elements widened at once: as F32 4 MiB
_PART = 2 << 20  # bytes of a file that are packed between two calls of BeforeWrite and AfterPack
_MAX_SMALL = 4 << 20  # elements of a matrix that is packed in every model, such as a router: see pack_format
_PANEL = 16  # rows that are interleaved in a packed quantized weight
ALIGNMENT = 64  # of a packed weight


class PackedFormat(enum.IntEnum):
    """``enum hotshoe_linear_format``. BF16 rounds the activations too; the others multiply the stored values."""

    F32 = 0
    F16 = 1
    BF16 = 2


# In order of preference.
_FORMATS = {
    DType.F32: (PackedFormat.F32,),
    DType.F16: (PackedFormat.F16,),
    DType.BF16: (PackedFormat.BF16, PackedFormat.F32),
}
_ACTIVATIONS = {
    "none": "HOTSHOE_LINEAR_NONE",
    "gelu": "HOTSHOE_LINEAR_GELU_ERF",  # the exact one
    "silu": "HOTSHOE_LINEAR_SILU",
    "gelu_tanh": "HOTSHOE_LINEAR_GELU_TANH",
}


def multiplies_bf16() -> bool:
    """Whether this CPU has a product of BF16 with BF16."""
    return bool(kernels().hotshoe_linear_formats() >> PackedFormat.BF16 & 1)


def pack_format(weight: WeightData, *, bf16: bool = False) -> PackedFormat | DType | None:
    """The layout in which this weight's products are fastest: a PackedFormat, or the quantized type it is packed as.

    None if ggml's product should be used. bf16: F32 and F16 weights, and what they multiply, may be rounded to BF16.
    """
    product = PRODUCTS.get(len(weight.shape))
    if 0 in weight.shape or not weight.uses or any(use != product for use in weight.uses):
        return None
    # ggml multiplies one row in another order than several: a router would send a token elsewhere in company
    is_small = math.prod(weight.shape) <= _MAX_SMALL and (weight.dtype is DType.F32 or not bf16)
    fast = kernels().hotshoe_linear_formats() if product == "linear" and (weight.compute_bound or is_small) else 0
    formats = _FORMATS.get(weight.dtype, ())
    if bf16 and weight.compute_bound and weight.dtype in (DType.F32, DType.F16):
        formats = (PackedFormat.BF16, *formats)
    format = next((f for f in formats if fast >> f & 1), None)
    if format is None and kernels().hotshoe_quants_has(weight.dtype.id, weight.shape[-1]):
        return weight.dtype
    return format


def multiplies_stored(weight: Tensor, n_rows: int, *, bf16: bool = False) -> bool:
    """Whether our product of ``n_rows`` rows with this weight, as the file has it, is faster than ggml's on this CPU.

    bf16: F16 weights, and what they multiply, may be rounded to BF16.
    """
    if weight.op != "weight" or weight.ndim != 2:
        return False
    dtype = DType.BF16 if bf16 and rounds_stored(weight.dtype, weight.shape[-1]) else weight.dtype
    min_rows = int(kernels().hotshoe_linear_stored_rows(dtype.id))  # 0: ggml's is always faster
    return 0 < min_rows <= n_rows


def rounds_stored(dtype: DType, k: int) -> bool:
    """Whether our products with a weight of k columns, as the file has it, may round it to BF16.

    F32 is not rounded: a matrix that is F32 among smaller types, such as the router of experts, needs its precision.
    """
    return dtype is DType.F16 and k % 2 == 0 and multiplies_bf16()


class PackedWeight(PackedLayout):
    """A weight W (m, k), or ``n_experts`` of them, which ``pack`` packs. It must outlive every graph that reads it.

    The kernels read its memory. It also owns the parameters of those nodes, a few bytes for each kind of use.
    """

    __slots__ = ("_address", "_memory", "_params", "_weight", "format", "k", "m", "n_experts")

    separate_outliers: bool = False

    function: ClassVar[str]
    """The kernel that multiplies by it: a callback of ggml's custom op."""

    format: PackedFormat | DType

    def __init__(self, weight: WeightData, nbytes_each: int) -> None:
        """nbytes_each: bytes of one packed matrix (m, k)."""
        self.m, self.k = weight.shape[-2:]
        self.n_experts = weight.shape[0] if len(weight.shape) == 3 else 0
        self.nbytes = nbytes_each * max(1, self.n_experts)
        self._weight: WeightData | None = weight
        self._address = 0  # until it is packed; graphs can be planned with it, not run
        self._params: dict[tuple[str, bool, bool, int], Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.format.name}, m={self.m}, k={self.k}, {self.nbytes} bytes)"

    def pack(
        self, memory: Array | None = None, *, before: BeforeWrite | None = None, after: AfterPack | None = None
    ) -> Self:
        """Pack the weight and return it. Its file may be closed afterwards.

        memory: where to pack it, ``nbytes`` of zeros at a multiple of 64; None allocates them. Raises MemoryError.
        """
        weight, self._weight = self._weight, None
        assert weight is not None, "packed already"
        self._memory = np.zeros(self.nbytes + ALIGNMENT, np.uint8) if memory is None else memory
        self._address = self._memory.__array_interface__["data"][0]
        self._address += -self._address % ALIGNMENT
        data = np.ascontiguousarray(weight.data)
        n_matrices = max(1, self.n_experts)
        n_rows = n_matrices * self.m
        row_bytes = weight.dtype.nbytes((self.k,))
        step = max(1, self._rows_at_once(row_bytes) // _PANEL) * _PANEL
        for i in range(n_matrices):
            packed = ffi.cast("void *", self._address + i * (self.nbytes // n_matrices))
            for first in range(0, self.m, step):
                n = min(step, self.m - first)
                row = i * self.m + first
                if before is not None:
                    before(row * self.nbytes // n_rows, (row + n) * self.nbytes // n_rows)
                rows = slice(row * row_bytes, (row + n) * row_bytes)
                self._pack_rows(weight.dtype, first, n, ffi.from_buffer(data[rows]), packed)
                if after is not None:
                    after(weight.data[rows])
        return self

    @abstractmethod
    def _rows_at_once(self, row_bytes: int) -> int:
        """How many rows to pack in one call. row_bytes: the size of a row in the file."""

    @abstractmethod
    def _pack_rows(self, dtype: DType, first: int, n: int, rows: Any, packed: Any) -> None:
        """Pack rows [first, first + n) of one matrix. rows: their bytes in the file."""

    def params(self, activation: str, has_bias: bool, has_residual: bool, gate: PackedWeight | None = None) -> Any:
        """The ``struct hotshoe_linear_params`` for this kind of use, valid as long as this weight and the gate."""
        gate_address = 0 if gate is None else gate._address
        key = (activation, has_bias, has_residual, gate_address)
        if key not in self._params:
            params = linear_params(self.k, self.m, activation, has_bias, has_residual)
            params.packed = ffi.cast("void *", self._address)
            params.gate = ffi.cast("void *", gate_address)
            params.n_experts = self.n_experts
            params.separate_outliers = self.separate_outliers
            params.format = self.format.id if isinstance(self.format, DType) else self.format
            self._params[key] = params
        return self._params[key]


class DenseWeight(PackedWeight):
    """A weight for ``hotshoe_linear``: 4 bytes for each element in PackedFormat.F32, otherwise 2."""

    __slots__ = ()
    function = "hotshoe_linear"

    def __init__(self, weight: WeightData, format: PackedFormat) -> None:
        self.format: PackedFormat = format
        m, k = weight.shape
        super().__init__(weight, int(kernels().hotshoe_packed_size(format, k, m)))

    def _rows_at_once(self, row_bytes: int) -> int:
        return _CHUNK // self.k

    def _pack_rows(self, dtype: DType, first: int, n: int, rows: Any, packed: Any) -> None:
        if dtype is DType.F32:
            floats = ffi.cast("const float *", rows)
        else:
            floats = ffi.new("float[]", n * self.k)
            lib().ggml_get_type_traits(dtype.id).to_float(rows, floats, n * self.k)
        kernels().hotshoe_pack_rows(self.format, self.k, self.m, first, n, floats, packed)


class QuantizedWeight(PackedWeight):
    """A weight for ``hotshoe_quants`` and ``hotshoe_quants_experts``: the file's blocks, interleaved over 16 rows.

    In a compute-bound model, activations near outliers are rounded to 16 bits, not to 8: encoders have outliers.
    """

    __slots__ = ("separate_outliers",)
    function = "hotshoe_quants"

    def __init__(self, weight: WeightData) -> None:
        self.format: DType = weight.dtype
        self.separate_outliers = weight.compute_bound
        m, k = weight.shape[-2:]
        super().__init__(weight, int(kernels().hotshoe_quants_size(weight.dtype.id, k, m)))

    def takes_gate(self, gate: PackedWeight) -> bool:
        """Whether ``act(x @ gate.T) * (x @ W.T)`` is one product."""
        same = ("format", "k", "m", "n_experts", "separate_outliers")
        alike = all(getattr(gate, name) == getattr(self, name) for name in same)
        return alike and bool(kernels().hotshoe_quants_gates(self.format.id, self.k, self.separate_outliers))

    def _rows_at_once(self, row_bytes: int) -> int:
        return _PART // row_bytes

    def _pack_rows(self, dtype: DType, first: int, n: int, rows: Any, packed: Any) -> None:
        kernels().hotshoe_quants_pack(dtype.id, self.k, self.m, first, n, rows, packed)


def linear_params(k: int, m: int, activation: str, has_bias: bool, has_residual: bool) -> Any:
    """A ``struct hotshoe_linear_params`` for a weight that is not packed."""
    params = ffi.new("struct hotshoe_linear_params *")
    params.k, params.m = k, m
    params.activation = getattr(kernels(), _ACTIVATIONS[activation])
    params.has_bias, params.has_residual = has_bias, has_residual
    return params


def pack_all(weights: Sequence[PackedWeight], n_threads: int, meter: Meter) -> None:
    """Pack weights into one piece of memory, several at a time. Raises OutOfMemory."""

    def after(part: Array) -> None:
        drop_pages(part)
        meter.add(part.nbytes)

    def pack(packed: PackedWeight, start: int) -> None:
        part = memory[start : start + packed.nbytes]
        packed.pack(part, before=lambda first, stop: pages.request(start + first, start + stop), after=after)

    # experts go last: a token reads a few of them, so that a large page saves little time
    weights = sorted(weights, key=lambda w: (w.n_experts > 0, -w.nbytes))
    sizes = [-(-packed.nbytes // ALIGNMENT) * ALIGNMENT for packed in weights]
    starts = list(itertools.accumulate(sizes, initial=0))
    n_hot = sum(size for weight, size in zip(weights, sizes) if not weight.n_experts)
    largest_first = sorted(zip(weights, starts), key=lambda job: -job[0].nbytes)  # so that none is left to one thread
    try:
        memory = zeros(starts[-1])
        pages = LargePages(memory, n_hot)
        run_all([functools.partial(pack, *job) for job in largest_first], n_threads)
    except MemoryError:
        raise OutOfMemory(starts[-1]) from None
    pages.get_rest()
