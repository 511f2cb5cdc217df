"""Composites that PyTorch computes itself, and which nodes of them. Known without torch."""

from __future__ import annotations

from hotshoe_core.tensor import Tensor

COMPOSITES = frozenset(
    "attention ceil conv1d conv2d conv_transpose1d conv_transpose2d layer_norm maximum minimum rms_norm".split()
)


def plain_attention(node: Tensor) -> bool:
    """With a mask or without. Others are decomposed."""
    _q, _k, _v, _mask, sinks, slopes = node.sources
    return sinks is None and slopes is None and not node.attrs["softcap"]


ACCEPTS = {"attention": plain_attention}
