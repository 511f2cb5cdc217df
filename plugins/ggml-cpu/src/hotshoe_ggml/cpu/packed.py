"""Our own matrix products (``native/``), which run on the CPU only, and the weights packed for them once."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml._native import ffi, kernels, lib

if TYPE_CHECKING:
    from typing import Self

    from hotshoe_ggml.lowering import Builder

__all__ = [
    "ALIGNMENT",
    "PRODUCTS",
    "DenseWeight",
    "PackedFormat",
    "PackedWeight",
    "QuantizedWeight",
    "experts_node",
    "linear_node",
    "multiplies_bf16",
    "multiplies_stored",
    "pack_format",
    "rounds_stored",
]

PRODUCTS = {2: "linear", 3: "linear_experts"}
"""The products whose weight, their second operand, may lie in a layout of its own, by the axes that it has."""

Array = np.ndarray[Any, Any]

Before = Callable[[int, int], object]
"""Told from where to where a packed weight is written next, in bytes of it."""
After = Callable[[Array], object]
"""Told of each part of a file's bytes that was packed and is not needed any more."""

_CHUNK = 1 << 20  # elements widened at once: as F32 4 MiB
_PART = 2 << 20  # bytes of a file that are packed between two calls of Before and After
_PANEL = 16  # rows that lie among each other in a packed quantized weight
ALIGNMENT = 64  # of a packed weight


class PackedFormat(enum.IntEnum):
    """``enum hotshoe_linear_format``. BF16 rounds the activations too; the others multiply what is stored."""

    F32 = 0
    F16 = 1
    BF16 = 2


# The first that this CPU multiplies fast.
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
    """The layout in which this weight's products are fastest, or None: ggml's own product is to be used.

    bf16: F32 and F16 may be rounded to BF16, and what they are multiplied with.

    A quantized type stands for that type, rearranged.
    """
    product = PRODUCTS.get(len(weight.shape))
    if 0 in weight.shape or not weight.uses or any(use != product for use in weight.uses):
        return None
    fast = kernels().hotshoe_linear_formats() if weight.compute_bound and product == "linear" else 0
    formats = _FORMATS.get(weight.dtype, ())
    if bf16 and weight.dtype in (DType.F32, DType.F16):
        formats = (PackedFormat.BF16, *formats)
    format = next((f for f in formats if fast >> f & 1), None)
    if format is None and kernels().hotshoe_quants_has(weight.dtype.id, weight.shape[-1]):
        return weight.dtype
    return format


def multiplies_stored(weight: Tensor, n_rows: int, *, bf16: bool = False) -> bool:
    """Whether our product of so many rows with this weight, as the file has it, is faster here than ggml's.

    bf16: F16 may be rounded to BF16, and what it is multiplied with.
    """
    if weight.op != "weight" or weight.ndim != 2:
        return False
    dtype = DType.BF16 if bf16 and rounds_stored(weight.dtype, weight.shape[-1]) else weight.dtype
    least = int(kernels().hotshoe_linear_stored_rows(dtype.id))
    return 0 < least <= n_rows


def rounds_stored(dtype: DType, k: int) -> bool:
    """Whether products of our own with such a weight, as the file has it, may be made in BF16.

    An F32 one among others, as that which chooses experts, was kept so for a reason.
    """
    return dtype is DType.F16 and k % 2 == 0 and multiplies_bf16()


class PackedWeight(ABC):
    """A weight W (m, k), or those of ``n_experts``, to be packed by ``pack``. It must outlive every graph with it.

    Their kernels read its memory. The parameters of those nodes, a few bytes for each kind of use, are owned here too.
    """

    __slots__ = ("_address", "_memory", "_params", "_weight", "format", "k", "m", "n_experts", "nbytes")

    separate_outliers: bool = False

    function: ClassVar[str]
    """The kernel that multiplies with it: a callback of ggml's custom op."""

    format: PackedFormat | DType

    def __init__(self, weight: WeightData, nbytes_each: int) -> None:
        """nbytes_each: of a matrix of (m, k); 0 experts are one, too."""
        self.m, self.k = weight.shape[-2:]
        self.n_experts = weight.shape[0] if len(weight.shape) == 3 else 0
        self.nbytes = nbytes_each * max(1, self.n_experts)
        self._weight: WeightData | None = weight
        self._address = 0  # until it is packed: graphs may be planned, not run
        self._params: dict[tuple[str, bool, bool, int], Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.format.name}, m={self.m}, k={self.k}, {self.nbytes} bytes)"

    def pack(self, memory: Array | None = None, *, before: Before | None = None, after: After | None = None) -> Self:
        """Packs the weight, whose file may be closed afterwards; returns itself.

        memory: ``nbytes`` of zeros at a multiple of 64, to be packed into; None for some of its own.

        Raises:
            MemoryError: there is no room for ``nbytes``.
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
        """How many rows of that size in the file to pack in one call."""

    @abstractmethod
    def _pack_rows(self, dtype: DType, first: int, n: int, rows: Any, packed: Any) -> None:
        """Packs rows [first, first + n) of one matrix, given as in the file."""

    def params(self, activation: str, has_bias: bool, has_residual: bool, gate: PackedWeight | None = None) -> Any:
        """The ``struct hotshoe_linear_params`` for this kind of use, valid as long as this object and the gate."""
        gate_address = 0 if gate is None else gate._address
        key = (activation, has_bias, has_residual, gate_address)
        if key not in self._params:
            params = _params(self.k, self.m, activation, has_bias, has_residual)
            params.packed = ffi.cast("void *", self._address)
            params.gate = ffi.cast("void *", gate_address)
            params.n_experts = self.n_experts
            params.separate_outliers = self.separate_outliers
            params.format = self.format.id if isinstance(self.format, DType) else self.format
            self._params[key] = params
        return self._params[key]


class DenseWeight(PackedWeight):
    """For ``hotshoe_linear``: 4 bytes an element for an F32 file, 2 otherwise."""

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
    """For ``hotshoe_quants`` and ``hotshoe_quants_experts``: the file's blocks, those of 16 rows among each other.

    Of a compute-bound model activations near outliers are rounded to 16 bits, not to 8: encoders have such.
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


def linear_node(
    builder: Builder,
    x: Any,
    weight: PackedWeight | Any,
    bias: Any | None = None,
    residual: Any | None = None,
    activation: str = "none",
    gate: PackedWeight | None = None,
) -> Any:
    """A ggml node for ``act(x @ W.T + bias) + residual``, of ne ``[m, n]``: reshape it where x has more axes.

    x: ne ``[k, ...]``, n vectors in all. weight: packed, or as stored, ne ``[k, m]`` of F32, F16 or BF16; the caller
    keeps it alive as long as the graph. bias: m numbers. residual: n * m, in the order of the result. activation:
    "none" or "gelu", the exact one. gate: a weight that ``takes_gate`` allows, for ``act(x @ gate.T) * (x @ W.T)``
    without bias and residual; activation is "silu" or "gelu_tanh" then.
    """
    assert gate is None or isinstance(weight, QuantizedWeight)
    epilogue = (activation, bias is not None, residual is not None)
    if isinstance(weight, PackedWeight):
        k, m, function, params, stored = weight.k, weight.m, weight.function, weight.params(*epilogue, gate), []
    else:
        k, m = weight.ne[0], weight.ne[1]
        function, params, stored = DenseWeight.function, _params(k, m, *epilogue), [weight]
        if builder.bf16 and weight.type == DType.F16.id:
            params.format = PackedFormat.BF16
        builder.keep.append(params)
    n = int(builder.g.ggml_nelements(x)) // k
    args = [builder.reshape(builder.f32(x), (n, k)), *stored]
    if bias is not None:
        args.append(builder.reshape(builder.f32(bias), (m,)))
    if residual is not None:
        args.append(builder.reshape(builder.f32(residual), (n, m)))
    return _product(builder, function, (m, n, 1), [builder.cont(arg) for arg in args], params)


def experts_node(
    builder: Builder,
    x: Any,
    packed: PackedWeight,
    experts: Any,
    activation: str = "none",
    gate: PackedWeight | None = None,
) -> Any:
    """A ggml node of ne ``[m, used, n]``: each row of x by the matrix that ``experts`` names for it.

    x: ne ``[k, 1 or used, n]``. experts: I32, ne ``[used, n]``, each one of the weight's and the gate's. Otherwise as
    ``linear_node``.
    """
    args = [builder.cont(builder.f32(x)), builder.cont(experts)]
    ne = (packed.m, experts.ne[0], experts.ne[1])
    return _product(builder, f"{packed.function}_experts", ne, args, packed.params(activation, False, False, gate))


def _params(k: int, m: int, activation: str, has_bias: bool, has_residual: bool) -> Any:
    """A ``struct hotshoe_linear_params`` without a packed weight."""
    params = ffi.new("struct hotshoe_linear_params *")
    params.k, params.m = k, m
    params.activation = getattr(kernels(), _ACTIVATIONS[activation])
    params.has_bias, params.has_residual = has_bias, has_residual
    return params


def _product(builder: Builder, function: str, ne: tuple[int, int, int], args: list[Any], params: Any) -> Any:
    sources, kernel = ffi.new("struct ggml_tensor *[]", args), ffi.addressof(kernels(), function)
    f32, tasks = builder.g.GGML_TYPE_F32, builder.g.GGML_N_TASKS_MAX
    return builder.call("custom_4d", f32, *ne, 1, sources, len(args), kernel, tasks, params)
