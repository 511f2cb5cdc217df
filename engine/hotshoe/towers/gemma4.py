"""The encoder of Gemma 4: any size, two tables of positions and a RoPE for each axis, the mean of 3 x 3 patches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import GatedMLP, Linear, RMSNorm, UnweightedRMSNorm, layers, submodule, tensor
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, RMSTowerBlock, Rows, Tower, TowerConfig, TwoAxisAttention, patch_shape
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE

Array = np.ndarray[Any, Any]

_ROWS = 280  # of the text model, at most, unless the file says it in pixels
_CAUSAL = (1536, 2560)  # elements of the rows of E2B and E4B


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    pool: int = key("vision.projector.scale_factor", default=3, minimum=1, maximum=16)
    """Patches on each side whose mean is one row."""
    max_pixels: int = key("vision.image_max_pixels", minimum=1, default=lambda c: _ROWS * (c.patch_size * c.pool) ** 2)

    def rope_for(self, layer: int) -> RoPE:
        return RoPE(self.head_dim // 2, base=100.0)


class ClippedLinear(Linear):
    """A linear layer whose input and output have limits, if the file has them."""

    input_min: Tensor | None = tensor("input_min", use="maximum", optional=True, shape=lambda c, i: (1,))
    input_max: Tensor | None = tensor("input_max", use="minimum", optional=True, shape=lambda c, i: (1,))
    output_min: Tensor | None = tensor("output_min", use="maximum", optional=True, shape=lambda c, i: (1,))
    output_max: Tensor | None = tensor("output_max", use="minimum", optional=True, shape=lambda c, i: (1,))

    def __call__(self, x: Tensor) -> Tensor:
        return _within(super().__call__(_within(x, self.input_min, self.input_max)), self.output_min, self.output_max)


def _within(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    x = x if low is None else x.maximum(low)
    return x if high is None else x.minimum(high)


class Attention(TwoAxisAttention):
    q: ClippedLinear = submodule("attn_q", shape=lambda c, i: (c.dim, c.dim))
    k: ClippedLinear = submodule("attn_k", shape=lambda c, i: (c.dim, c.dim))
    v: ClippedLinear = submodule("attn_v", shape=lambda c, i: (c.dim, c.dim))
    qkv = None
    out: ClippedLinear = submodule("attn_out", shape=lambda c, i: (c.dim, c.dim))
    q_norm: RMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.head_dim,))
    k_norm: RMSNorm = submodule("attn_k_norm", shape=lambda c, i: (c.head_dim,))
    v_norm: UnweightedRMSNorm = submodule()
    scale = 1.0


class MLP(GatedMLP):
    activation = "gelu_tanh"
    gate: ClippedLinear = submodule("ffn_gate", shape=lambda c, i: (c.ff, c.dim))
    up: ClippedLinear = submodule("ffn_up", shape=lambda c, i: (c.ff, c.dim))
    down: ClippedLinear = submodule("ffn_down", shape=lambda c, i: (c.dim, c.ff))
    gate_up = None


class Block(RMSTowerBlock):
    attention: Attention = submodule()
    post_attention_norm: RMSNorm = submodule("attn_post_norm", shape=lambda c, i: (c.dim,))  # type: ignore[assignment]
    mlp: MLP = submodule()  # type: ignore[assignment]
    post_mlp_norm: RMSNorm = submodule("ffn_post_norm", shape=lambda c, i: (c.dim,))  # type: ignore[assignment]


class Gemma4(Tower):
    config: Config
    marker = "<|image|>"
    placeholder = "<|image|>"
    architectures = frozenset({"gemma4"})
    patches: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    tables: Tensor = tensor("v.position_embd.weight", use="take", shape=lambda c, i: (2, None, c.dim))
    blocks: list[Block] = layers("v.blk")
    bias: Tensor | None = tensor("v.std_bias", use="sub", optional=True, shape=lambda c, i: (c.dim,))
    factor: Tensor | None = tensor("v.std_scale", use="mul", optional=True, shape=lambda c, i: (c.dim,))
    row_norm: UnweightedRMSNorm = submodule()
    project: Linear = submodule("mm.input_projection", shape=lambda c, i: (c.projection_dim, c.dim))

    @property
    def bidirectional(self) -> bool:  # type: ignore[override]
        # no file says it; llama.cpp knows the small models by the same sizes
        return self.config.projection_dim not in _CAUSAL

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        size = budget_size(image, c.patch_size * c.pool, c.max_pixels)
        pixels = images.normalized(images.resized(image.pixels, size, "bicubic"), c.mean, c.std)
        y, x = np.mgrid[: size.height // c.patch_size, : size.width // c.patch_size].reshape(2, -1)
        return Prepared({"pixels": pixels[None], "positions": np.stack([x, y]).astype(np.int32)})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c, positions = self.config, inputs["positions"]
        x = ops.conv2d(inputs["pixels"] * 2 - 1, self.patches, stride=c.patch_size)
        h, w = x.shape[2:]
        x = x.reshape(c.dim, -1).T + self.tables[0].take(positions[0]) + self.tables[1].take(positions[1])
        x = self.run(x, positions).T.reshape(1, c.dim, h, w)
        x = ops.avg_pool2d(x, kernel_size=c.pool).reshape(c.dim, -1).T * math.sqrt(c.dim)
        x = x if self.bias is None else x - self.bias
        x = x if self.factor is None else x * self.factor
        return self.project(self.row_norm(x))

    def expand(self, rows: Array, notes: Any) -> list[str | Rows]:
        return ["<|image>", Rows(rows), "<image|>"]


def budget_size(image: Image, unit: int, max_pixels: int) -> Size:
    """Return the largest size of a picture's shape whose sides are multiples of ``unit`` and whose area is in a limit.

    llama.cpp keeps small pictures small; the model's processor enlarges them.
    """
    scale = math.sqrt(max_pixels / (image.height * image.width))
    h, w = (math.floor(scale * side / unit) * unit for side in (image.height, image.width))
    longest = max_pixels // unit**2 * unit
    if not h:
        return Size(unit, min(image.width // image.height * unit, longest))
    return Size(h, w) if w else Size(min(image.height // image.width * unit, longest), unit)
