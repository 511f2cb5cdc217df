"""Read the parameters of RoPE from a file's metadata."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

__all__ = ["rope_from"]


_INTEGERS = ("rope.dimension_count", "rope.scaling.original_context_length")
_MAX_INTEGER = 1 << 31
_MIN_VALUES = {
    "rope.dimension_count": 1,
    "rope.freq_base": 1.0,
    "rope.scaling.factor": 0.0,
    "rope.scaling.original_context_length": 0,
    "rope.scaling.attn_factor": 0.0,
    "rope.scaling.yarn_attn_factor": 0.0,
    "rope.scaling.yarn_ext_factor": 0.0,
    "rope.scaling.yarn_beta_fast": 1e-3,
    "rope.scaling.yarn_beta_slow": 1e-3,
}
"""Smaller values would break a logarithm or a division."""


def rope_from(
    metadata: Metadata,
    head_dim: int,
    *,
    interleaved: bool,
    base: float = 10000.0,
    sections: Literal["", "contiguous", "interleaved"] = "",
) -> RoPE:
    """Read the RoPE of a model.

    head_dim: the number of rotated elements, if the file does not give one.
    interleaved: how the architecture pairs elements: (2i, 2i + 1) if true, else (i, i + dim / 2).
    base: the frequency base, if the file does not give one.
    sections: the layout of the sections, if tokens have several positions (RoPE.section_layout).

    Raises ModelFileError for invalid values and for an unknown scaling: a guess would give fluent but wrong text.
    """
    arch = metadata.arch
    for name, minimum in _MIN_VALUES.items():
        value = arch.get(name, None, int if name in _INTEGERS else float)
        limit = _MAX_INTEGER if name in _INTEGERS else math.inf
        if value is not None and not minimum <= value < limit:
            raise arch.error(name, f"is {value}; expected {minimum} or more, and below {limit}")
    kind = arch.get("rope.scaling.type", "none")
    factor = arch.get("rope.scaling.factor", 1.0) or 1.0
    rope = RoPE(
        dim=arch.get("rope.dimension_count", head_dim),
        base=arch.get("rope.freq_base", base),
        interleaved=interleaved,
        attn_factor=arch.get("rope.scaling.attn_factor", 1.0) or 1.0,
        original_context=arch.get("rope.scaling.original_context_length", 0) or arch.require("context_length", int),
    )
    if sections:
        rope = dataclasses.replace(rope, sections=_sections(metadata, rope.dim), section_layout=sections)
    if kind in ("none", "longrope"):  # the factors of longrope are tensors
        return rope
    if kind == "linear":
        return dataclasses.replace(rope, scale=1.0 / factor)
    if kind == "yarn":
        # YaRN (Peng et al. 2023, arXiv:2309.00071). The key holds the total magnitude, as checkpoints do; attn_factor
        # multiplies YaRN's own magnitude, as in ggml.
        magnitude = 1.0 + 0.1 * math.log(factor)
        # DeepSeek's models scale the scores instead: see models/deepseek2.py
        default = 1.0 if arch.get("rope.scaling.yarn_log_multiplier", 0.0) else magnitude
        attn_factor = arch.get("rope.scaling.yarn_attn_factor", default) or default
        return dataclasses.replace(
            rope,
            scale=1.0 / factor,
            attn_factor=attn_factor / magnitude,
            ext_factor=arch.get("rope.scaling.yarn_ext_factor", 1.0),
            beta_fast=arch.get("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=arch.get("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise arch.error(
        "rope.scaling.type", f"unknown RoPE scaling {kind[:60]!r}; expected none, linear, yarn or longrope"
    )


def _sections(metadata: Metadata, dim: int) -> tuple[int, ...]:
    """How many pairs each position of a token turns. Files name four; an image needs three."""
    found = tuple(metadata.arch.per_layer("rope.dimension_sections", 4, int))
    while found and not found[-1]:
        found = found[:-1]
    if min(found, default=-1) < 0 or sum(found) != dim // 2:
        raise metadata.arch.error("rope.dimension_sections", f"is {list(found)}; expected a sum of {dim // 2}")
    return found
