"""Weights packed for hotshoe's matrix products, the C kernels in the plugin's folder `native/`."""

from __future__ import annotations

import enum
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.cpu.bf16 import multiplies_bf16
from hotshoe_ggml.memory.host import drop_pages, is_in_memory, is_mapped
from hotshoe_ggml.memory.layouts import PRODUCTS, PackedLayout
from hotshoe_ggml.native import ffi, kernels
from hotshoe_ggml.native.context import address

__all__ = [
    "ALIGNMENT",
    "DenseWeight",
    "PackedFormat",
    "PackedWeight",
    "QuantizedWeight",
    "pack_format",
]

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 20  # elements of a dense weight that are packed at once
_PART = 2 << 20  # bytes of a file that are packed at once
_PANEL = 16  # rows that are interleaved in a packed quantized weight
DENSE_PANEL = 32
"""Rows that are interleaved in another packed weight: a multiple of ``_PANEL``."""
ALIGNMENT = 64  # of a packed weight


class PackedFormat(enum.IntEnum):
    """``enum hotshoe_linear_format``: each named after the type whose weights it stores as they are.

    With BF16 the activations are rounded to BF16 too if the CPU ``multiplies_bf16``, unless the weight is ``in_f32``.
    """

    F32 = 0
    F16 = 1
    BF16 = 2


_FORMATS = {DType.F32: PackedFormat.F32, DType.F16: PackedFormat.F16, DType.BF16: PackedFormat.BF16}
_ACTIVATIONS = {
    "none": "HOTSHOE_LINEAR_NONE",
    "gelu": "HOTSHOE_LINEAR_GELU_ERF",  # the exact one
    "silu": "HOTSHOE_LINEAR_SILU",
    "gelu_tanh": "HOTSHOE_LINEAR_GELU_TANH",
}


def pack_format(weight: WeightData, *, bf16: bool = False) -> PackedFormat | DType | None:
    """The layout in which this weight's products are fastest: a PackedFormat, or the quantized type it is packed as.

    None if ggml's product should be used. bf16: F16 weights, and F32 weights of a compute-bound model, may be rounded
    to BF16, with what they multiply. Other F32 weights are exact: the router of experts needs its precision.
    """
    product = PRODUCTS.get(len(weight.shape))
    if 0 in weight.shape or not weight.uses or any(use != product for use in weight.uses):
        return None
    format = _FORMATS.get(weight.dtype) if product == "linear" else None
    if format is not None and kernels().hotshoe_linear_has():
        may_round = weight.dtype is DType.F16 or (weight.dtype is DType.F32 and weight.compute_bound)
        return PackedFormat.BF16 if bf16 and may_round and multiplies_bf16() else format
    return weight.dtype if kernels().hotshoe_quants_has(weight.dtype.id, weight.shape[-1]) else None


class PackedWeight(PackedLayout):
    """A weight W (m, k), or ``n_experts`` of them, which ``pack`` packs. It must outlive every graph that reads it.

    The kernels read its memory. It also owns the parameters of those nodes, a few bytes for each kind of use.
    """

    __slots__ = (
        "_address", "_data", "_memory", "_params", "_readers", "_rows_type", "_weight", "format", "k", "m", "n_experts",
    )  # fmt: skip

    separate_outliers: bool = False
    in_f32: bool = False

    function: ClassVar[str]
    """The kernel that multiplies by it: a callback of ggml's custom op."""

    format: PackedFormat | DType

    def __init__(self, weight: WeightData, nbytes_each: int) -> None:
        """nbytes_each: bytes of one packed matrix (m, k)."""
        self.m, self.k = weight.shape[-2:]
        self.n_experts = weight.shape[0] if len(weight.shape) == 3 else 0
        self.nbytes = nbytes_each * max(1, self.n_experts)
        self._rows_type = weight.dtype.id
        self._weight: WeightData | None = weight
        self._data: Array | None = None  # the weight's, or a contiguous copy
        self._address = 0  # of a dry run: graphs can be planned with it, not run
        self._params: dict[tuple[str, bool, bool, int, int, Any], Any] = {}
        self._readers: list[tuple[Any, str]] = []  # parameters of products, and their field with the file's rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.format.name}, m={self.m}, k={self.k}, {self.nbytes} bytes)"

    def use_memory(self, memory: Array) -> None:
        """Say where it is to be packed: ``nbytes`` of zeros at a multiple of 64."""
        self._memory = memory
        self._address = address(memory)

    def describe(self, job: Any) -> None:
        """Fill a ``struct hotshoe_pack_job`` with what is to be packed, except its place among other jobs."""
        weight = self._weight
        assert weight is not None, "packed already"
        self._data = np.ascontiguousarray(weight.data)
        job.rows, job.packed = (ffi.cast("void *", at) for at in (address(self._data), self._address))
        job.k, job.m, job.n_matrices = self.k, self.m, max(1, self.n_experts)
        job.row_bytes, job.matrix_bytes = weight.dtype.nbytes((self.k,)), self.nbytes // job.n_matrices
        job.rows_at_once = max(1, self._rows_at_once(job.row_bytes) // DENSE_PANEL) * DENSE_PANEL
        job.format = self.format.id if isinstance(self.format, DType) else self.format
        job.is_mapped = self._data is weight.data and is_mapped(weight.data)

    def finish(self) -> None:
        """Let all products read what was packed. The file may be closed then. No graph may run meanwhile."""
        if self._weight is not None:
            drop_pages(self._weight.data)  # a step may have read parts again that were packed already
        self._weight = self._data = None
        for params, field in list(self._readers):
            setattr(params, field, ffi.NULL)

    @abstractmethod
    def reads_file(self) -> bool:
        """Whether products may read the weight in its file before it is packed: if the file is in memory."""

    @abstractmethod
    def _rows_at_once(self, row_bytes: int) -> int:
        """How many rows a part has. row_bytes: the size of a row in the file."""

    def params(
        self,
        activation: str,
        has_bias: bool,
        has_residual: bool,
        gate: PackedWeight | None = None,
        features: int = 0,
        next: Any = ffi.NULL,
    ) -> Any:
        """The ``struct hotshoe_linear_params`` for this kind of use, valid as long as this weight and the gate.

        features: the rows of W that are read, the first ones; 0 for all. next: those of the next weight that the same x
        is multiplied by; it must live as long.
        """
        gate_address = 0 if gate is None else gate._address
        key = (activation, has_bias, has_residual, gate_address, features, next)
        if key not in self._params:
            params = ffi.new("struct hotshoe_linear_params *")
            params.k, params.m = self.k, features or self.m
            params.activation = getattr(kernels(), _ACTIVATIONS[activation])
            params.has_bias, params.has_residual = has_bias, has_residual
            params.packed = ffi.cast("void *", self._address)
            params.gate = ffi.cast("void *", gate_address)
            params.next = next
            params.n_experts = self.n_experts
            params.separate_outliers, params.in_f32 = self.separate_outliers, self.in_f32
            params.format = self.format.id if isinstance(self.format, DType) else self.format
            params.rows_type = self._rows_type
            self._add_reader(params, "rows")
            if gate is not None:
                gate._add_reader(params, "gate_rows")
            self._params[key] = params
        return self._params[key]

    def _add_reader(self, params: Any, field: str) -> None:
        """Let a product read the weight in the file as long as it is not packed."""
        data = self._data
        if data is None:
            return
        setattr(params, field, ffi.cast("void *", address(data)))
        self._readers.append((params, field))
        if self._data is None:  # another thread called `finish` meanwhile
            setattr(params, field, ffi.NULL)


class DenseWeight(PackedWeight):
    """A weight for ``hotshoe_linear``: 4 bytes for each element in PackedFormat.F32, otherwise 2.

    in_f32: it is multiplied in F32 in each format, so that activations are not rounded.
    """

    __slots__ = ("in_f32",)
    function = "hotshoe_linear"

    def __init__(self, weight: WeightData, format: PackedFormat, *, in_f32: bool = False) -> None:
        self.format: PackedFormat = format
        self.in_f32 = in_f32
        m, k = weight.shape
        super().__init__(weight, int(kernels().hotshoe_packed_size(format, k, m)))

    def reads_file(self) -> bool:
        weight = self._weight
        if weight is None or (self.format is PackedFormat.BF16 and self.k % 2):
            return False
        is_stored = _FORMATS[weight.dtype] is self.format
        is_converted = weight.dtype is DType.F16 and multiplies_bf16()
        return (is_stored or is_converted) and is_in_memory(weight.data)

    def may_become_bf16(self) -> bool:
        """Whether BF16 is faster, if this weight has only its numbers.

        An odd row of BF16 has another size. The size of a layout must not depend on the numbers.
        """
        return self.format is PackedFormat.F16 and self.k % 2 == 0 and multiplies_bf16() and not self.in_f32

    def is_on_disk(self) -> bool:
        """Whether the weight must be read from the disk, as far as the system says."""
        data = self.stored_data()
        return is_mapped(data) and not is_in_memory(data)

    def stored_data(self) -> Array:
        """The bytes as a file has them, until the weight is packed."""
        assert self._weight is not None, "packed already"
        return self._weight.data

    def _rows_at_once(self, row_bytes: int) -> int:
        return _CHUNK // self.k

    def describe(self, job: Any) -> None:
        super().describe(job)
        job.is_dense, job.type = True, self._rows_type


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

    def reads_file(self) -> bool:
        weight = self._weight
        if weight is None:
            return False
        panel = int(kernels().hotshoe_quants_size(self.format.id, self.k, _PANEL))
        return panel <= kernels().HOTSHOE_MAX_PANEL and is_in_memory(weight.data)

    def takes_gate(self, gate: PackedWeight) -> bool:
        """Whether ``act(x @ gate.T) * (x @ W.T)`` is one product."""
        same = ("format", "k", "m", "n_experts", "separate_outliers")
        alike = all(getattr(gate, name) == getattr(self, name) for name in same)
        return alike and bool(kernels().hotshoe_quants_gates(self.format.id, self.k, self.separate_outliers))

    def _rows_at_once(self, row_bytes: int) -> int:
        return _PART // row_bytes
