"""The composites that PyTorch computes itself, and which of their nodes. Does not import torch."""

from __future__ import annotations

from hotshoe_core import Tensor

# No convolutions: on a GPU, torch computes them in TF32, which has 10 of the 23 bits of F32.
COMPOSITES = frozenset({"attention", "ceil", "layer_norm", "maximum", "minimum", "rms_norm"})


def plain_attention(node: Tensor) -> bool:
    """Whether there are no sinks, no slopes and no softcap. Other attention is decomposed."""
    _q, _k, _v, _mask, sinks, slopes = node.sources
    return sinks is None and slopes is None and not node.attrs["softcap"]


ACCEPTS = {"attention": plain_attention}
