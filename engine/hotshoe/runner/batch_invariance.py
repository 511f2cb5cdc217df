"""Batch invariance: whether a token has the same bits alone as among others, so that guesses cannot change a text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hotshoe.kvcache import cross_part

if TYPE_CHECKING:
    from hotshoe.kvcache import Cache
    from hotshoe.runner.base import ModelParts
    from hotshoe_core.gguf import TensorInfo

__all__ = ["is_batch_invariant"]

_MAX_SMALL = 4 << 20  # elements of a matrix without quantization that backends multiply in one order of sums


def is_batch_invariant(parts: ModelParts, cache: Cache) -> bool:
    """Whether a token's logits do not depend on the tokens that are computed with it. docs/serve.md lists the cases."""
    backend = parts.backend
    exact = backend.cache_config().reads_lists and backend.params.matmul_precision == "stored"
    return exact and cross_part(cache) is None and not any(map(_is_large, parts.file.tensors.values()))


def _is_large(tensor: TensorInfo) -> bool:
    """Whether a tensor is a large matrix without quantization."""
    return len(tensor.shape) > 1 and not tensor.dtype.is_quantized and math.prod(tensor.shape) > _MAX_SMALL
