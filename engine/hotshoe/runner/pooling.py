"""Pooling: how the hidden states of a text's tokens are reduced to one vector."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.errors import ModelFileError

if TYPE_CHECKING:
    from hotshoe_core.gguf import Metadata

__all__ = ["Pooling", "pooling_of", "pooling_weights"]


class Pooling(enum.IntEnum):
    """The pooling type of a GGUF file (``<arch>.pooling_type``), with its number there."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4  # rerankers: the token that the classifier reads


def pooling_of(metadata: Metadata, default: Pooling, *known: Pooling) -> Pooling:
    """Return the file's pooling type, or ``default``. Raises ModelFileError if it is not one of ``known``."""
    number = metadata.arch.get("pooling_type", int(default))
    if number not in known:
        names = ", ".join(f"{int(p)} ({p.name.lower()})" for p in known)
        raise ModelFileError(
            f"pooling type {number} is not possible for this model; expected {names}",
            field=f"{metadata.architecture}.pooling_type",
        )
    return Pooling(number)


def pooling_weights(pooling: Pooling, inside: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the weight of each token in its text's vector: (batch, 1, n) float32.

    Every pooling is a weighted sum, so the same graph computes all of them. inside: (batch, n) bool, False for padding.
    """
    lengths = inside.sum(axis=1, keepdims=True)
    columns = np.arange(inside.shape[1])
    if pooling is Pooling.MEAN:
        weights = inside / lengths
    else:
        weights = columns == (0 if pooling is Pooling.CLS else lengths - 1)
    return np.broadcast_to(weights, inside.shape).astype(np.float32)[:, None, :]
