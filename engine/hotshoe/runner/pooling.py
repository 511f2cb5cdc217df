"""Pooling: how the states of a text's tokens become one vector."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.errors import ModelFileError

if TYPE_CHECKING:
    from hotshoe_core.gguf import Metadata

__all__ = ["Pooling", "pooling_of", "pooling_weights"]


class Pooling(enum.IntEnum):
    """``<arch>.pooling_type`` of a GGUF file, numbered as there."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4  # of rerankers: the token that the classifier reads


def pooling_of(metadata: Metadata, default: Pooling, *known: Pooling) -> Pooling:
    """What the file says. Raises ModelFileError for what is not among ``known``."""
    number = metadata.arch.get("pooling_type", int(default))
    if number not in known:
        names = ", ".join(f"{int(p)} ({p.name.lower()})" for p in known)
        raise ModelFileError(
            f"pooling type {number} does not serve here; expected {names}",
            field=f"{metadata.architecture}.pooling_type",
        )
    return Pooling(number)


def pooling_weights(pooling: Pooling, inside: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(batch, 1, n): what each token counts for. Every pooling is a weighted sum, so one graph serves all.

    inside: (batch, n) bool, the tokens that are no padding.
    """
    lengths = inside.sum(axis=1, keepdims=True)
    at = np.arange(inside.shape[1])
    if pooling is Pooling.MEAN:
        weights = inside / lengths
    else:
        weights = at == (0 if pooling is Pooling.CLS else lengths - 1)
    return np.broadcast_to(weights, inside.shape).astype(np.float32)[:, None, :]
