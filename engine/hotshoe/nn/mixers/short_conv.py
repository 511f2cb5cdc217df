"""ShortConv: a convolution over the last few tokens, between two gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn.basic import Linear
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["ShortConv"]


class ShortConv(Module):
    """A causal convolution between two gates: (n, dim) to (n, dim). One matrix computes both gates and the input.

    The convolution sees ``config.kernel_size`` tokens. Source: LFM2 (Liquid AI 2025, arXiv:2511.23404).
    """

    projection: Linear = submodule("shortconv.in_proj", shape=lambda c, i: (3 * c.dim, c.dim))
    conv: Tensor = tensor("shortconv.conv.weight", use="ssm_conv", shape=lambda c, i: (c.dim, c.kernel_size))
    out: Linear = submodule("shortconv.out_proj", shape=lambda c, i: (c.dim, c.dim))

    def cache_spec(self) -> RecurrentSpec:
        return RecurrentSpec({"conv": (self.config.kernel_size - 1, self.config.dim)})

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        before_gate, after_gate, x = view.split(self.projection(x)).chunk(3)  # each (b, t, dim)
        x = before_gate * x
        return self.out(view.merge(after_gate * ops.ssm_conv(x, view.roll("conv", x), self.conv)))
