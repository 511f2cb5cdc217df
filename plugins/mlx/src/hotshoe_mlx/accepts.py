"""Decide which nodes MLX computes itself: every primitive, and some composites. Does not import mlx."""

from __future__ import annotations

from hotshoe_core.tensors.tensor import TABLE, Tensor

__all__ = ["ACCEPTS", "COMPOSITES", "supports"]

COMPOSITES = frozenset({"argmin", "attention", "layer_norm", "maximum", "min", "minimum", "rms_norm", "rope"})


def _plain_rope(node: Tensor) -> bool:
    """Whether each token has one position: MLX has no RoPE with sections."""
    return not node.attrs["config"].sections


def _plain_attention(node: Tensor) -> bool:
    """Whether there is no softcap and at most one batch axis: MLX supports no others."""
    return not node.attrs["softcap"] and len(node.shape) <= 4


ACCEPTS = {"rope": _plain_rope, "attention": _plain_attention}


def supports(node: Tensor) -> bool:
    """Whether MLX computes this node itself."""
    if not TABLE[node.op].composite:
        return True
    return node.op in COMPOSITES and (node.op not in ACCEPTS or ACCEPTS[node.op](node))
