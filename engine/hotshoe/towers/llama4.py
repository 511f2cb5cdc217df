"""The encoder of Llama 4 (Meta 2025): a ViT with 2-D RoPE over tiles and the whole picture; 2 x 2 patches are a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, layers, submodule, tensor
from hotshoe.nn.basic import LayerNorm, Norm
from hotshoe.nn.config import derived, key
from hotshoe.nn.mlp import Activation
from hotshoe.nn.vision import Prepared, Rows, Tower, TowerBlock, TowerConfig, TwoAxisAttention, exact_activation
from hotshoe.towers.idefics3 import merged
from hotshoe.towers.mllama import size_within
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE

Array = np.ndarray[Any, Any]

MAX_TILES = 16  # no file says it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.projector.scale_factor", minimum=1, maximum=lambda c: c.image_size // c.patch_size)
    """Patches on each side that become one row."""
    activation: Activation = derived(exact_activation)  # noqa: RUF009

    def rope_for(self, layer: int) -> RoPE:
        return RoPE(self.head_dim // 2, interleaved=True)


class Block(TowerBlock):
    attention: TwoAxisAttention = submodule()


class Llama4(Tower):
    config: Config
    marker = "<|image|>"
    placeholder = "<|image|>"
    row_marker = "<|patch|>"
    architectures = frozenset({"llama4"})
    patches: Linear = submodule("v.patch_embd", shape=lambda c, i: (c.dim, 3 * c.patch_size**2))
    last: Tensor = tensor("v.class_embd", use="reshape", shape=lambda c, i: (c.dim,))
    """What stands behind the patches. Its row is dropped after the last layer."""
    positions: Tensor = tensor("v.position_embd.weight", use="add", shape=lambda c, i: (c.side**2 + 1, c.dim))
    first_norm: Norm = submodule("v.pre_ln", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    blocks: list[Block] = layers("v.blk")
    norm: Norm = submodule("v.post_ln", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    up: Linear = submodule("mm.model.mlp.1", shape=lambda c, i: (None, c.dim * c.merge**2))
    down: Linear = submodule("mm.model.mlp.2", shape=lambda c, i: (None, None))
    project: Linear = submodule("mm.model.fc", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, image: Image) -> Prepared:
        c, tile = self.config, self.config.image_size
        grid = _canvas(image.height, image.width, tile)
        canvas = np.zeros((grid.height * tile, grid.width * tile, 3), np.uint8)
        size = size_within(image, grid, tile)
        canvas[: size.height, : size.width] = images.resized(image.pixels, size, "bilinear")
        tiles = images.in_tiles(canvas, Size(tile, tile))
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, images.resized(image.pixels, Size(tile, tile), "bilinear")[None]])
        pixels = _normalized(tiles, c).reshape(-1, 3, c.side, c.patch_size, c.side, c.patch_size)
        patches = np.ascontiguousarray(pixels.transpose(0, 2, 4, 1, 3, 5)).reshape(len(tiles), c.side**2, -1)
        y, x = np.mgrid[1 : c.side + 1, 1 : c.side + 1].reshape(2, -1).astype(np.int32)
        places = np.stack([np.append(x, np.int32(0)), np.append(y, np.int32(0))])[:, None].repeat(len(tiles), axis=1)
        return Prepared({"patches": patches, "positions": places}, grid)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c, x = self.config, self.patches(inputs["patches"])  # (tiles, patches, dim)
        n = x.shape[0]
        x = ops.concat(x, self.last.reshape(1, 1, c.dim).expand(n, 1, c.dim), axis=1) + self.positions
        x = self.norm(self.run(self.first_norm(x), inputs["positions"]))
        x = merged(x[:, :-1], c.side, c.merge)
        return self.project(self.down(self.up(x).gelu()).gelu())

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        n = (self.config.side // self.config.merge) ** 2
        parts: list[str | Rows] = ["<|image_start|>"]
        for _ in range(notes.height if len(rows) > n else 0):
            for x in range(notes.width):
                parts += [*(["<|tile_x_separator|>"] if x else []), Rows(rows[:n])]
                rows = rows[n:]
            parts.append("<|tile_y_separator|>")
        return [*parts, "<|image|>", Rows(rows), "<|image_end|>"]


def _canvas(height: int, width: int, tile: int) -> Size:
    """The rows and columns of tiles on which a picture is largest, without being enlarged more than need be."""
    grids: dict[float, list[Size]] = {}
    for n in range(MAX_TILES, 0, -1):
        for rows in (rows for rows in range(1, n + 1) if not n % rows):
            grids.setdefault(rows / (n // rows), []).append(Size(rows, n // rows))
    # of equally large ones, the processor takes the first in this order
    ordered = [grid for same in grids.values() for grid in same]
    h, w = (np.array([grid[i] * tile for grid in ordered], np.float32) for i in (0, 1))
    scales = np.minimum(h / np.float32(height), w / np.float32(width))
    best = scales[scales >= 1].min() if (scales >= 1).any() else scales.max()
    return min((grid for grid, scale in zip(ordered, scales, strict=True) if scale == best), key=math.prod)


def _normalized(pixels: Array, c: Config) -> Array:
    """As ``images.normalized``, with the steps rounded to BF16: (n, h, w, 3) uint8 to (n, 3, h, w) float32."""
    mean, std = (_bf16(np.asarray(values, np.float32)) for values in (c.mean, c.std))
    values = _bf16(_bf16(_bf16(pixels * np.float32(1 / 255)) - mean) / std)
    return np.ascontiguousarray(np.moveaxis(values, -1, 1))


def _bf16(values: Array) -> Array:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
