"""The encoder of InternVL 2.5 to 3.5 (arXiv:2412.05271, 2504.10479, 2508.18265): InternViT over tiles and the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, WideRMSNorm, layers, submodule, tensor
from hotshoe.nn.basic import LayerNorm, Norm
from hotshoe.nn.config import derived, key
from hotshoe.nn.mlp import Activation
from hotshoe.nn.vision import (
    Prepared,
    ProjectorNorm,
    Rows,
    Tower,
    TowerAttention,
    TowerBlock,
    TowerConfig,
    exact_activation,
    patch_shape,
)
from hotshoe.towers.idefics3 import merged
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import ModelFileError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.projector.scale_factor", minimum=1, maximum=lambda c: c.image_size // c.patch_size)
    """Patches on each side that become one row."""
    fewest: int = key("vision.preproc_min_tiles", default=1, minimum=1, maximum=64)
    most: int = key("vision.preproc_max_tiles", default=12, minimum=1, maximum=64)
    """Limits of the number of tiles that a picture is cut into."""
    activation: Activation = derived(exact_activation)  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.fewest > self.most:
            raise ModelFileError(
                f"the metadata says that a picture is cut into {self.fewest} tiles at least and {self.most} at most"
            )


class Attention(TowerAttention):
    # only the encoder of 6B has these norms; files do not say so
    q_norm: WideRMSNorm | None = submodule("attn_q_norm", optional=True, shape=lambda c, i: (c.dim,))
    k_norm: WideRMSNorm | None = submodule("attn_k_norm", optional=True, shape=lambda c, i: (c.dim,))


class BlockNorm(LayerNorm):
    """A LayerNorm; without a bias, as in the encoder of 6B, an RMS norm."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) if self.bias is not None else ops.rms_norm(x, self.weight, eps=self.eps)


class Block(TowerBlock):
    attention_norm: Norm = submodule("ln1", choose=lambda c, i: BlockNorm, shape=lambda c, i: (c.dim,))
    attention: Attention = submodule()
    mlp_norm: Norm = submodule("ln2", choose=lambda c, i: BlockNorm, shape=lambda c, i: (c.dim,))


class InternVL(Tower):
    config: Config
    marker = "<IMG_CONTEXT>"
    placeholder = "<IMG_CONTEXT>\n"
    architectures = frozenset({"gpt-oss", "internlm2", "llama", "qwen2", "qwen3", "qwen3moe"})
    patches: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    patch_bias: Tensor = tensor("v.patch_embd.bias", use="add", shape=lambda c, i: (c.dim,))
    first: Tensor = tensor("v.class_embd", use="reshape")
    """What stands before the patches. Its row is dropped after the last layer."""
    positions: Tensor = tensor("v.position_embd.weight", use="add")
    blocks: list[Block] = layers("v.blk")
    row_norm: ProjectorNorm = submodule("mm.model.mlp.0", shape=lambda c, i: (c.dim * c.merge**2,))
    up: Linear = submodule("mm.model.mlp.1", shape=lambda c, i: (None, c.dim * c.merge**2))
    down: Linear = submodule("mm.model.mlp.3", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, image: Image) -> Prepared:
        c, tile = self.config, self.config.image_size
        grid = images.tile_grid(image.height, image.width, tile, c.fewest, c.most)
        size = Size(grid.height * tile, grid.width * tile)
        tiles = images.in_tiles(images.resized(image.pixels, size, "bicubic"), Size(tile, tile))
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, images.resized(image.pixels, Size(tile, tile), "bicubic")[None]])
        return Prepared({"pixels": images.normalized(tiles, c.mean, c.std)})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = ops.conv2d(inputs["pixels"], self.patches, self.patch_bias, stride=c.patch_size)
        x = x.reshape(*x.shape[:2], -1).permute(0, 2, 1)  # (tiles, patches, dim)
        first = self.first.reshape(1, 1, c.dim).expand(x.shape[0], 1, c.dim)
        x = ops.concat(first, x, axis=1) + self.positions.reshape(-1, c.dim)
        x = merged(self.run(x)[:, 1:], c.side, c.merge)
        return self.down(self.up(self.row_norm(x)).gelu())

    def expand(self, rows: Array, notes: Any) -> list[str | Rows]:
        return ["<img>", Rows(rows), "</img>"]
