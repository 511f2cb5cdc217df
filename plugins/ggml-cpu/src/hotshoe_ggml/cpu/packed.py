"""Weights of linear layers packed once for our own matrix product (``native/hotshoe_linear.c``).

It runs on the CPU only. A packed weight takes 4 bytes an element for an F32 file, 2 otherwise (Q8_0 in the file: 1.06).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.backend import WeightData
from hotshoe_core.dtypes import DType
from hotshoe_ggml._native import ffi, kernels, lib

if TYPE_CHECKING:
    from hotshoe_ggml.lowering import Builder

__all__ = ["PackedFormat", "PackedWeight", "linear_node", "packable"]

_CHUNK = 1 << 20  # elements dequantized at once: 4 MiB
_ALIGNMENT = 64


class PackedFormat(enum.IntEnum):
    """``enum hotshoe_linear_format``. BF16 rounds the activations too; the others multiply what is stored."""

    F32 = 0
    F16 = 1
    BF16 = 2


# The first that this CPU multiplies fast. F16 holds a Q8_0 weight to 2^-12 of itself, BF16 to 2^-9; the rounding that
# made it Q8_0 is up to 2^-8 of the largest in its block, and ggml's own product rounds the activations likewise.
_FORMATS = {
    DType.F32: (PackedFormat.F32,),
    DType.F16: (PackedFormat.F16,),
    DType.BF16: (PackedFormat.BF16, PackedFormat.F32),
    DType.Q8_0: (PackedFormat.BF16, PackedFormat.F16),
}
_ACTIVATIONS = {"none": "HOTSHOE_LINEAR_NONE", "gelu": "HOTSHOE_LINEAR_GELU_ERF"}  # gelu: the exact one


def packable(weight: WeightData) -> PackedFormat | None:
    """The format to pack this weight in, or None: ggml's own product is to be used."""
    if len(weight.shape) != 2 or 0 in weight.shape or not weight.uses or any(u != "linear" for u in weight.uses):
        return None
    fast = kernels().hotshoe_linear_formats()
    return next((f for f in _FORMATS.get(weight.dtype, ()) if fast >> f & 1), None)


class PackedWeight:
    """A packed weight W (m, k). It must outlive every graph with a node of it: their kernels read its memory.

    The parameters of those nodes, a few bytes for each kind of use, are owned here as well.
    """

    __slots__ = ("_address", "_memory", "_params", "format", "k", "m", "nbytes")

    def __init__(self, weight: WeightData, format: PackedFormat, *, dry: bool = False) -> None:
        """Packs the weight; its file may be closed afterwards. ``dry`` takes no memory: only nbytes is of use.

        Raises:
            MemoryError: there is no room for ``nbytes``.
        """
        self.m, self.k = weight.shape
        self.format = format
        self.nbytes = int(kernels().hotshoe_packed_size(format, self.k, self.m))
        # zeroed pages, as the kernel demands, and none is touched before it is written
        self._memory = np.zeros(0 if dry else self.nbytes + _ALIGNMENT, np.uint8)
        self._address = self._memory.__array_interface__["data"][0]
        self._address += -self._address % _ALIGNMENT
        self._params: dict[tuple[str, bool, bool], Any] = {}
        if not dry:
            self._pack(weight)

    def __repr__(self) -> str:
        return f"PackedWeight({self.format.name}, m={self.m}, k={self.k}, {self.nbytes} bytes)"

    def _pack(self, weight: WeightData) -> None:
        pack, packed = kernels().hotshoe_pack_rows, ffi.cast("void *", self._address)
        data = np.ascontiguousarray(weight.data)
        to_float = lib().ggml_get_type_traits(weight.dtype.id).to_float
        source = ffi.cast("const char *", ffi.from_buffer(data))
        row_bytes = weight.dtype.nbytes((self.k,))
        step = max(1, _CHUNK // self.k)
        chunk = ffi.new("float[]", 0 if weight.dtype is DType.F32 else min(step, self.m) * self.k)
        for first in range(0, self.m, step):
            n = min(step, self.m - first)
            rows = source + first * row_bytes
            if weight.dtype is DType.F32:
                floats = ffi.cast("const float *", rows)
            else:
                to_float(rows, chunk, n * self.k)
                floats = chunk
            pack(self.format, self.k, self.m, first, n, floats, packed)

    def params(self, activation: str, has_bias: bool, has_residual: bool) -> Any:
        """The ``struct hotshoe_linear_params`` for this kind of use, valid as long as this object."""
        key = (activation, has_bias, has_residual)
        if key not in self._params:
            params = ffi.new("struct hotshoe_linear_params *")
            params.packed = ffi.cast("void *", self._address)
            params.k, params.m, params.format = self.k, self.m, self.format
            params.activation = getattr(kernels(), _ACTIVATIONS[activation])
            params.has_bias, params.has_residual = has_bias, has_residual
            self._params[key] = params
        return self._params[key]


def linear_node(
    builder: Builder,
    x: Any,
    packed: PackedWeight,
    bias: Any | None = None,
    residual: Any | None = None,
    activation: str = "none",
) -> Any:
    """A ggml node for ``act(x @ W.T + bias) + residual``, of ne ``[m, n]``: reshape it where x has more axes.

    x: ne ``[k, ...]``, n vectors in all. bias: m numbers. residual: n * m, in the order of the result.
    activation: "none" or "gelu", the exact one. The caller keeps ``packed`` alive as long as the graph.
    """
    n = int(builder.g.ggml_nelements(x)) // packed.k
    args = [builder.reshape(builder.f32(x), (n, packed.k))]
    if bias is not None:
        args.append(builder.reshape(builder.f32(bias), (packed.m,)))
    if residual is not None:
        args.append(builder.reshape(builder.f32(residual), (n, packed.m)))
    args = [builder.cont(arg) for arg in args]
    function = ffi.addressof(kernels(), "hotshoe_linear")
    params = packed.params(activation, bias is not None, residual is not None)
    sources = ffi.new("struct ggml_tensor *[]", args)
    tasks = builder.g.GGML_N_TASKS_MAX
    return builder.call(
        "custom_4d", builder.g.GGML_TYPE_F32, packed.m, n, 1, 1, sources, len(args), function, tasks, params
    )
