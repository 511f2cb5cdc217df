"""Composites that PyTorch computes itself, and which nodes of them. Known without torch."""

from __future__ import annotations

from hotshoe_core import Tensor

# Not convolutions: on a GPU torch makes them in TF32, which has 10 bits of an F32's 23.
COMPOSITES = frozenset({"attention", "ceil", "layer_norm", "maximum", "minimum", "rms_norm"})


def plain_attention(node: Tensor) -> bool:
    """With a mask or without. Others are decomposed."""
    _q, _k, _v, _mask, sinks, slopes = node.sources
    return sinks is None and slopes is None and not node.attrs["softcap"]


ACCEPTS = {"attention": plain_attention}
