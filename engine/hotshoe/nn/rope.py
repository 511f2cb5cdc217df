"""Read the parameters of RoPE from a file's metadata."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, TypeVar

from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

__all__ = ["rope_from", "yarn_magnitude"]

N = TypeVar("N", int, float)

_MAX_INTEGER = 1 << 31


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """The factor of sine and cosine that YaRN wants for contexts ``factor`` times as long (arXiv:2309.00071).

    mscale: what DeepSeek's and Mistral's checkpoints multiply its logarithm by.
    """
    return 1.0 + 0.1 * mscale * math.log(max(factor, 1.0))


def rope_from(
    metadata: Metadata,
    head_dim: int,
    *,
    interleaved: bool,
    base: float = 10000.0,
    sections: Literal["", "contiguous", "interleaved"] = "",
    magnitude: Callable[[Metadata, float], float] = lambda _, factor: yarn_magnitude(factor),
    truncate: bool = True,
) -> RoPE:
    """Read the RoPE of a model.

    head_dim: the number of rotated elements, if the file does not give one.
    interleaved: how the architecture pairs elements: (2i, 2i + 1) if true, else (i, i + dim / 2).
    base: the frequency base, if the file does not give one.
    sections: the layout of the sections, if tokens have several positions (RoPE.section_layout).
    magnitude: ``(metadata.arch, factor) -> float``: YaRN's factor of sine and cosine, if the file does not give it.
    truncate: whether the ends of YaRN's ramp are rounded, if the file does not say (``hotshoe.rope.yarn_truncate``).

    Raises ModelFileError for invalid values and for an unknown scaling: a guess would give fluent but wrong text.
    """
    arch = metadata.arch
    context = _number(arch, "rope.scaling.original_context_length", 0, 0)
    rope = RoPE(
        dim=_number(arch, "rope.dimension_count", head_dim, 1),
        base=_number(arch, "rope.freq_base", base, 1.0),
        interleaved=interleaved,
        attn_factor=_number(arch, "rope.scaling.attn_factor", 1.0, 0.0) or 1.0,
        original_context=context or arch.require("context_length", int),
    )
    if sections:
        rope = dataclasses.replace(rope, sections=_sections(metadata, rope.dim), section_layout=sections)
    kind = arch.get("rope.scaling.type", "linear")
    if kind in ("none", "longrope"):  # the factors of longrope are tensors
        return rope
    if kind not in ("linear", "yarn"):
        raise arch.error(
            "rope.scaling.type", f"unknown RoPE scaling {kind[:60]!r}; expected none, linear, yarn or longrope"
        )
    # files of 2023 call the factor scale_linear
    name = "rope.scaling.factor" if "rope.scaling.factor" in arch else "rope.scale_linear"
    factor = _number(arch, name, 1.0, 0.0) or 1.0
    rope = dataclasses.replace(rope, scale=1.0 / factor)
    if kind == "linear":
        return rope
    total = _number(arch, "rope.scaling.yarn_attn_factor", 0.0, 0.0) or magnitude(arch, factor)
    return dataclasses.replace(
        rope,
        # the key holds the total magnitude, as checkpoints do; attn_factor multiplies YaRN's own one, as in ggml
        attn_factor=rope.attn_factor * total / (1.0 + 0.1 * math.log(factor)),
        ext_factor=_number(arch, "rope.scaling.yarn_ext_factor", 1.0, 0.0),
        beta_fast=_number(arch, "rope.scaling.yarn_beta_fast", 32.0, 1e-3),
        beta_slow=_number(arch, "rope.scaling.yarn_beta_slow", 1.0, 1e-3),
        truncate=metadata.get("hotshoe.rope.yarn_truncate", truncate),
    )


def _sections(metadata: Metadata, dim: int) -> tuple[int, ...]:
    """How many pairs each position of a token turns. Files name four; an image needs three."""
    found = tuple(metadata.arch.per_layer("rope.dimension_sections", 4, int))
    while found and not found[-1]:
        found = found[:-1]
    if min(found, default=-1) < 0 or sum(found) != dim // 2:
        raise metadata.arch.error("rope.dimension_sections", f"is {list(found)}; expected a sum of {dim // 2}")
    return found


def _number(arch: Metadata, name: str, default: N, minimum: N) -> N:
    """Read a number. Smaller values than the minimum would break a logarithm or a division."""
    value = arch.get(name, default)
    if not minimum <= value < (_MAX_INTEGER if isinstance(value, int) else math.inf):
        limit = _MAX_INTEGER if isinstance(default, int) else math.inf
        raise arch.error(name, f"is {value}; expected {minimum} or more, and below {limit}")
    return value
