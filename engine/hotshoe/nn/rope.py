"""RoPE parameters from a file's metadata."""

from __future__ import annotations

import dataclasses
import math

from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

__all__ = ["rope_from"]


_WHOLE = ("rope.dimension_count", "rope.scaling.original_context_length")
_MOST = 1 << 31
_LEAST = {
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
"""What logarithms and divisions need."""


def rope_from(metadata: Metadata, head_dim: int, *, interleaved: bool, base: float = 10000.0) -> RoPE:
    """The file's RoPE. ``interleaved``: how the architecture pairs elements. Raises ModelFileError for a
    scaling that is not known: guessing would give fluent nonsense.
    """
    arch = metadata.arch
    for name, least in _LEAST.items():
        value = arch.get(name, None, int if name in _WHOLE else float)
        most = _MOST if name in _WHOLE else math.inf
        if value is not None and not least <= value < most:
            raise arch.error(name, f"is {value}; expected {least} or more, and below {most}")
    kind = arch.get("rope.scaling.type", "none")
    factor = arch.get("rope.scaling.factor", 1.0) or 1.0
    rope = RoPE(
        dim=arch.get("rope.dimension_count", head_dim),
        base=arch.get("rope.freq_base", base),
        interleaved=interleaved,
        attn_factor=arch.get("rope.scaling.attn_factor", 1.0) or 1.0,
        original_context=arch.get("rope.scaling.original_context_length", 0) or arch.require("context_length", int),
    )
    if kind in ("none", "longrope"):  # longrope's factors are tensors
        return rope
    if kind == "linear":
        return dataclasses.replace(rope, scale=1.0 / factor)
    if kind == "yarn":
        # as in the checkpoint, the key is the whole magnitude; ggml's and ours is a factor on YaRN's own
        own = 1.0 + 0.1 * math.log(factor)
        # DeepSeek's models scale the scores themselves instead: see models/deepseek2.py
        usual = 1.0 if arch.get("rope.scaling.yarn_log_multiplier", 0.0) else own
        attn_factor = arch.get("rope.scaling.yarn_attn_factor", usual) or usual
        return dataclasses.replace(
            rope,
            scale=1.0 / factor,
            attn_factor=attn_factor / own,
            ext_factor=arch.get("rope.scaling.yarn_ext_factor", 1.0),
            beta_fast=arch.get("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=arch.get("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise arch.error(
        "rope.scaling.type", f"RoPE scaling {kind[:60]!r} is not known; expected none, linear, yarn or longrope"
    )
