"""Layouts of weights: how each is stored on its device, and which ops may read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.tensor import Tensor

__all__ = ["PRODUCTS", "DualLayout", "Layout", "PackedLayout", "PlainLayout", "RearrangedLayout"]

PRODUCTS = {2: "linear", 3: "linear_experts"}
"""By the weight's number of axes: the op whose weight, operand 1, may have another layout than the file's."""


class Layout(ABC):
    """A weight or a state as it is stored on a device: the ``handle`` of its Tensor. It tells what each op reads."""

    __slots__ = ()

    @abstractmethod
    def read_by(self, weight: Tensor, op: str, operand: int) -> Any:
        """What operand number ``operand`` of ``op`` reads: a ggml tensor or, for a product, a PackedLayout.

        Raises UnsupportedOpError if the op cannot read ``weight`` in this layout.
        """


class PlainLayout(Layout):
    """A ggml tensor in the layout of GGUF files. Every op can read it."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def read_by(self, weight: Tensor, op: str, operand: int) -> Any:
        return self.tensor


class RearrangedLayout(Layout):
    """A ggml tensor in a layout that only ggml's product reads.

    ggml would not notice: to its other ops, and to views, these are the bytes of the tensor's type.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def read_by(self, weight: Tensor, op: str, operand: int) -> Any:
        _require_product(weight, op, operand)
        return self.tensor


class PackedLayout(Layout):
    """A weight in a layout that only our kernels read, in products that the unit's builder makes."""

    __slots__ = ("nbytes",)

    nbytes: int

    def read_by(self, weight: Tensor, op: str, operand: int) -> PackedLayout:
        _require_product(weight, op, operand)
        return self


class DualLayout(Layout):
    """A weight with a layout for ``linear`` and, for other ops, the layout of the file.

    An embedding that is also the output's weight has both: its rows are taken from the mapped file, so that only
    the pages of these rows are read, and the product over the whole vocabulary runs in the fast layout.
    """

    __slots__ = ("linear", "other")

    def __init__(self, other: Layout, linear: Layout) -> None:
        self.other = other
        self.linear = linear

    def read_by(self, weight: Tensor, op: str, operand: int) -> Any:
        layout = self.linear if _is_product(weight, op, operand) and op == "linear" else self.other
        return layout.read_by(weight, op, operand)


def _is_product(weight: Tensor, op: str, operand: int) -> bool:
    return operand == 1 and PRODUCTS.get(weight.ndim) == op


def _require_product(weight: Tensor, op: str, operand: int) -> None:
    if not _is_product(weight, op, operand):
        raise UnsupportedOpError(
            f"{op}: {weight!r} is rearranged for {PRODUCTS[weight.ndim]}, the only use it was loaded for",
            hint=f"name {op!r} among its uses as well, or open the backend with repack=False",
        )
