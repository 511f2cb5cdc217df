"""VulkanUnit: a device of ggml's Vulkan library, which binds buffers at aligned addresses only."""

from __future__ import annotations

from functools import cache
from typing import Any

from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import is_view_op
from hotshoe_ggml.unit import Unit

__all__ = ["VulkanUnit"]

_ANY_OFFSET = (
    "ADD", "SUB", "MUL", "DIV", "SQR", "SQRT", "SIN", "COS", "LOG", "UNARY", "GLU", "SCALE", "CLAMP", "SUM_ROWS",
    "MEAN", "CPY", "CONT", "DUP", "CONCAT", "REPEAT", "PAD", "GET_ROWS", "SET_ROWS", "RMS_NORM", "L2_NORM", "ROPE",
)  # fmt: skip
"""Ops whose shaders handle offsets that are not aligned."""


class VulkanUnit(Unit):
    """A device of ggml's Vulkan library."""

    def __init__(self, device: Device, params: BackendParams, n_threads: int) -> None:
        super().__init__(device, params, n_threads)
        self._alignment = int(lib().ggml_backend_buft_get_alignment(self.buffer_type))

    def supports(self, node: Any) -> bool:
        return not self._is_misaligned(node) and super().supports(node)

    def _is_misaligned(self, node: Any) -> bool:
        """Whether a source begins where Vulkan can bind no buffer, and the op's shader does not handle that.

        ggml asserts then, or drops the rest of the offset if blocks of a quantized type do not divide it.
        """
        sources = [s for s in node.src if s != ffi.NULL and s.view_offs % self._alignment]
        if not sources or is_view_op(node):
            return False
        return node.op not in _ops_at_any_offset() or any(lib().ggml_is_quantized(s.type) for s in sources)


@cache
def _ops_at_any_offset() -> frozenset[int]:
    return frozenset(getattr(lib(), f"GGML_OP_{name}") for name in _ANY_OFFSET)
