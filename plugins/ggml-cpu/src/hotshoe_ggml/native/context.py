"""ggml's contexts, shapes in ggml's order, and nodes that are views."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.tensor import Shape
from hotshoe_ggml.native.libraries import ffi, lib

__all__ = [
    "MAX_AXES",
    "MAX_EXTENT",
    "NativeContext",
    "OutOfMemory",
    "address",
    "extents",
    "is_view_op",
    "require_memory",
]

MAX_AXES = 4
MAX_EXTENT = 2**31 - 1
"""The largest size of an axis: some functions, such as ggml_permute, keep sizes in an int."""

_CONTEXT_ALIGNMENT = 64  # more than GGML_MEM_ALIGN


class OutOfMemory(Exception):  # noqa: N818  (distinct from MemoryError)
    """The device named ``device`` refused ``size`` bytes for ``layer``."""

    def __init__(self, size: int, device: str = "", layer: int = -1) -> None:
        super().__init__(size)
        self.size = size
        self.device = device
        self.layer = layer


class NativeContext:
    """A ggml context: memory for the descriptions of tensors and graphs, not for their data.

    The memory is allocated here, because ggml ends the process if it gets none. Raises OutOfMemory.
    """

    def __init__(self, n_tensors: int, n_graph: int = 0) -> None:
        g = lib()
        size = max(64, n_tensors * g.ggml_tensor_overhead())
        if n_graph:
            size += g.ggml_graph_overhead_custom(n_graph, False)
        self._memory = require_memory(size + _CONTEXT_ALIGNMENT)
        start = address(self._memory)
        start += -start % _CONTEXT_ALIGNMENT
        self.pointer = g.ggml_init({"mem_size": size, "mem_buffer": ffi.cast("void *", start), "no_alloc": True})

    def free(self) -> None:
        """Free the context. Further calls do nothing."""
        if self.pointer != ffi.NULL:
            lib().ggml_free(self.pointer)
            self.pointer = ffi.NULL


def require_memory(size: int) -> np.ndarray[Any, Any]:
    """Allocate ``size`` bytes without touching them. Raises OutOfMemory.

    ggml ends the process if malloc fails. Call this first and drop the result: then ggml's allocation of this size
    will succeed, too.
    """
    try:
        return np.empty(size, np.uint8)
    except MemoryError:
        raise OutOfMemory(size) from None


def address(array: np.ndarray[Any, Any]) -> int:
    """The address of the array's first element."""
    return int(array.__array_interface__["data"][0])


def extents(shape: Shape) -> list[int]:
    """A NumPy shape as ggml's four sizes, fastest axis first. Raises UnsupportedOpError where ggml would abort."""
    if len(shape) > MAX_AXES:
        raise UnsupportedOpError(
            f"ggml's tensors have at most {MAX_AXES} axes; got the shape {shape}",
            hint="merge two axes: a weight of conv3d may be (out * in, depth, height, width)",
        )
    if max(shape, default=1) > MAX_EXTENT:
        raise UnsupportedOpError(
            f"ggml counts along an axis in 32 bits; got the shape {shape}", hint="divide the longest axis into two"
        )
    return [*reversed(shape), *(1,) * (MAX_AXES - len(shape))]


def is_view_op(node: Any) -> bool:
    """Whether the ggml node computes nothing: its result is a view of its source's memory.

    ``ggml_is_view`` is also true for nodes that compute and write in place.
    """
    g = lib()
    views = (g.GGML_OP_RESHAPE, g.GGML_OP_VIEW, g.GGML_OP_PERMUTE, g.GGML_OP_TRANSPOSE)
    return node.view_src != ffi.NULL and node.op in views
