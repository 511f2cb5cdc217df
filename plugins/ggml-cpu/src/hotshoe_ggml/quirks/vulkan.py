"""VulkanUnit and VulkanBuilder: a device of ggml's Vulkan library, without the nodes that it computes wrong."""

from __future__ import annotations

from functools import cache
from typing import Any

from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.errors import DeviceLostError
from hotshoe_ggml.lowering import DeviceBuilder
from hotshoe_ggml.lowering.builder import Ptr
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import OutOfMemory, is_view_op
from hotshoe_ggml.unit import Unit

__all__ = ["VulkanBuilder", "VulkanUnit"]

_ANY_OFFSET = (
    "ADD", "SUB", "MUL", "DIV", "SQR", "SQRT", "SIN", "COS", "LOG", "UNARY", "GLU", "SCALE", "CLAMP", "SUM_ROWS",
    "MEAN", "CPY", "CONT", "DUP", "CONCAT", "REPEAT", "PAD", "SET_ROWS", "RMS_NORM", "L2_NORM",
)  # fmt: skip
"""Ops whose shaders handle offsets that are not aligned, of all sources."""

_A_GROUP_FOR_EACH_ROW = ("RMS_NORM", "ADD_ID")

_MAX_GROUPS = 65_535
"""Groups of threads in one dimension, as every device has them: Vulkan's maxComputeWorkGroupCount. ggml does not tell
which devices have more.
"""


class VulkanBuilder(DeviceBuilder):
    """Makes nodes for a device of ggml's Vulkan library."""

    def factor(self, x: Ptr) -> Ptr:
        """As the base class; without gaps between matrices whose rows have none.

        The shaders take the distance between matrices from their sizes if rows follow each other
        (ggml_vk_dim01_contiguous in ggml-vulkan.cpp).
        """
        x = super().factor(x)
        rows_follow = x.nb[1] == self.g.ggml_row_size(x.type, x.ne[0])
        return self.call("cont", x) if rows_follow and x.ne[2] > 1 and x.nb[2] != x.nb[1] * x.ne[1] else x


class VulkanUnit(Unit):
    """A device of ggml's Vulkan library."""

    builder_type = VulkanBuilder

    def __init__(self, device: Device, params: BackendParams, n_threads: int) -> None:
        super().__init__(device, params, n_threads)
        self._alignment = int(lib().ggml_backend_buft_get_alignment(self.buffer_type))

    def supports(self, node: Any) -> bool:
        return not self._is_misaligned(node) and not _has_too_many_rows(node) and super().supports(node)

    def _is_misaligned(self, node: Any) -> bool:
        """Whether a source begins where Vulkan can bind no buffer, and the op's shader does not handle that.

        ggml asserts then, or drops the rest of the offset if blocks of a quantized type do not divide it.
        """
        misaligned = [s for s in node.src if s != ffi.NULL and s.view_offs % self._alignment]
        if not misaligned or is_view_op(node):
            return False
        if node.op == lib().GGML_OP_ROPE:  # the shader drops the offsets of positions and factors without a word
            return misaligned != [node.src[0]]
        return node.op not in _numbers(_ANY_OFFSET) or any(lib().ggml_is_quantized(s.type) for s in misaligned)

    def require_alive(self) -> None:
        """As the base class. Raises OutOfMemory, once, if the device had no memory for a copy: it is not lost."""
        try:
            super().require_alive()
        except DeviceLostError as error:
            if "OutOfDeviceMemory" not in error.message:
                raise
            self._failures = self.library.failures(self._native_name)
            raise OutOfMemory(0, self.name) from None


def _has_too_many_rows(node: Any) -> bool:
    """Whether the shader needs more groups than a device may have. ggml asserts then."""
    return max(node.ne[1], node.ne[2], node.ne[3]) > _MAX_GROUPS and node.op in _numbers(_A_GROUP_FOR_EACH_ROW)


@cache
def _numbers(ops: tuple[str, ...]) -> frozenset[int]:
    return frozenset(getattr(lib(), f"GGML_OP_{name}") for name in ops)
