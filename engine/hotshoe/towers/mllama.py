"""The encoder of Llama 3.2 Vision (Meta 2024, arXiv:2407.21783): tiles, a local and a global encoder, joined states.

The text model attends to the rows; one token of the text stands for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.kvcache import UncachedView
from hotshoe.nn import LayerNorm, Linear, Module, layers, submodule, tensor
from hotshoe.nn.basic import Norm
from hotshoe.nn.batch import Batch
from hotshoe.nn.config import derived, key
from hotshoe.nn.mlp import Activation
from hotshoe.nn.vision import Prepared, Tower, TowerAttention, TowerBlock, TowerConfig, TowerMLP, patch_shape
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata

MAX_TILES = 16
"""The most tiles of a picture; the published models have 4."""
_JOINED = "vision.intermediate_layers_indices"
_MULTIPLE = 8  # rows of a tile are filled up to a multiple of it, and every row attends to these, too


def _joined(metadata: Metadata, found: SimpleNamespace, _: Any) -> tuple[int, ...]:
    numbers = metadata.arch.require(_JOINED, list)
    valid = isinstance(numbers, Iterable) and all(type(i) is int and 0 <= i < found.n_layers for i in numbers)
    joined = tuple(sorted(set(numbers))) if valid else ()
    if not joined:
        raise metadata.arch.error(_JOINED, f"expected numbers of layers, 0 to {found.n_layers - 1}")
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    n_global: int = key("vision.global.block_count", minimum=1, maximum=1000)
    """Layers of the second encoder."""
    max_tiles: int = key("vision.max_num_tiles", minimum=1, maximum=MAX_TILES)
    joined: tuple[int, ...] = derived(_joined)
    """The layers of the first encoder before which a state becomes part of the rows."""
    n_channels: int = key("vision.num_channels", default=3, minimum=3, maximum=3)
    activation: Activation = derived(lambda *_: "gelu")  # noqa: RUF009

    @property
    def n_heads(self) -> tuple[int, ...]:
        return (self.heads,) * max(self.n_layers, self.n_global)

    @property
    def head_dims(self) -> tuple[int, ...]:
        return (self.head_dim,) * max(self.n_layers, self.n_global)

    @property
    def tile_rows(self) -> int:
        """Rows of a tile: its patches, and one more before them."""
        return self.side**2 + 1

    @property
    def grids(self) -> list[Size]:
        """The numbers of rows and columns of tiles that a picture may have, in the order of their numbers."""
        sides = range(1, self.max_tiles + 1)
        return [Size(h, w) for h in sides for w in sides if h * w <= self.max_tiles]


class TilesView(UncachedView):
    """The first ``n_real`` rows attend to all rows, and the others, which fill up, to the first ones only."""

    def __init__(self, n_real: int) -> None:
        super().__init__(None, None)  # type: ignore[arg-type]
        self.n_real = n_real


class Attention(TowerAttention):
    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.dim))

    def average(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, view: TilesView) -> Tensor:  # type: ignore[override]
        n = view.n_real
        real = ops.attention(q[:n], k, v, scale=self.scale)
        return ops.concat(real, ops.attention(q[n:], k[:n], v[:n], scale=self.scale))


class Block(TowerBlock):
    attention_norm: Norm = submodule("attn_norm", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    attention: Attention = submodule()
    post_attention_norm = None
    mlp_norm: Norm = submodule("ffn_norm", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    mlp: TowerMLP = submodule()
    post_mlp_norm = None


class GatedBlock(Block):
    """A block whose halves have a factor, which the file holds after tanh."""

    attention_gate: Tensor = tensor("attn_gate", use="mul", shape=lambda c, i: (1,))
    mlp_gate: Tensor = tensor("ffn_gate", use="mul", shape=lambda c, i: (1,))

    def __call__(self, x: Tensor, batch: Batch, view: TilesView) -> Tensor:
        x = x + self.attention(self.attention_norm(x), batch, view) * self.attention_gate
        return x + self.mlp(self.mlp_norm(x)) * self.mlp_gate


class TileEmbedding(Module):
    """What is added to the rows of each tile, by the grid of tiles. The file holds the factor after tanh."""

    weight: Tensor = tensor("weight", use="take")
    gate: Tensor = tensor("gate", use="mul", shape=lambda c, i: (1,))

    def __call__(self, grid: Tensor) -> Tensor:
        """grid: (1,) I32. Returns (max_tiles, rows, dim)."""
        c = self.config
        return self.weight.take(grid).reshape(c.max_tiles, -1, c.dim) * self.gate


def _of_tiles(config: Config, _: int) -> tuple[int, int]:
    # one row of the table for each grid, and one for no picture
    return len(config.grids) + 1, config.max_tiles * config.dim


def _of_rows(config: Config, _: int) -> tuple[int, int]:
    return len(config.grids) + 1, config.max_tiles * config.tile_rows * config.dim


class Mllama(Tower):
    config: Config
    marker = "<|image|>"
    placeholder = "<|image|>"
    architectures = frozenset({"mllama"})
    patches: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    before_patches: TileEmbedding = submodule("v.pre_tile_position_embd", shape=_of_tiles)
    first: Tensor = tensor("v.class_embd", use="reshape", shape=lambda c, i: (c.dim,))
    positions: Tensor = tensor("v.position_embd.weight", use="mul", shape=lambda c, i: (c.tile_rows, c.dim))
    positions_gate: Tensor = tensor("v.position_embd.gate", use="mul", shape=lambda c, i: (1,))
    tile_positions: TileEmbedding = submodule("v.tile_position_embd", shape=_of_rows)
    first_norm: LayerNorm = submodule("v.pre_ln", shape=lambda c, i: (c.dim,))
    blocks: list[Block] = layers("v.blk")
    norm: LayerNorm = submodule("v.post_ln", shape=lambda c, i: (c.dim,))
    after_blocks: TileEmbedding = submodule("v.post_tile_position_embd", shape=_of_tiles)
    global_blocks: list[GatedBlock] = layers("v.global.blk", count=lambda c: c.n_global)
    project: Linear = submodule("mm.0", shape=lambda c, i: (c.projection_dim, c.dim * (len(c.joined) + 1)))

    @property
    def n_attended(self) -> int:
        return self.config.max_tiles * self.config.tile_rows

    def prepare(self, image: Image) -> Prepared:
        c, side = self.config, self.config.image_size
        grid = choose_grid(image, c.grids, side)
        canvas = np.zeros((grid.height * side, grid.width * side, 3), np.uint8)
        pixels = images.resized(image.pixels, size_within(image, grid, side), "bilinear")
        canvas[: pixels.shape[0], : pixels.shape[1]] = pixels
        tiles = images.in_tiles(canvas, Size(side, side))
        number = np.array([c.grids.index(grid) + 1], np.int32)
        return Prepared({"pixels": images.normalized(tiles, c.mean, c.std), "grid": number})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c, grid, n = self.config, inputs["grid"], self.config.tile_rows
        x = ops.conv2d(inputs["pixels"], self.patches, stride=c.patch_size)
        n_tiles = x.shape[0]
        x = x.reshape(n_tiles, c.dim, -1).permute(0, 2, 1)
        if n_tiles < c.max_tiles:  # missing tiles are black ones
            x = ops.concat(x, ops.zeros((c.max_tiles - n_tiles, *x.shape[1:])))
        x = x + self.before_patches(grid)
        x = ops.concat(self.first.reshape(1, 1, c.dim).expand(c.max_tiles, 1, c.dim), x, axis=1)
        x = self.first_norm(x + self.positions * self.positions_gate + self.tile_positions(grid))  # (max_tiles, n, dim)
        filled = -n % _MULTIPLE
        # attention knows no order, so all rows that fill up are the last ones, and no mask is needed
        x = ops.concat(x.reshape(-1, c.dim), ops.zeros((c.max_tiles * filled, c.dim)))
        view, states = TilesView(n_tiles * n), []
        for i, block in enumerate(self.blocks):
            if i in c.joined:
                states.append(x[: n_tiles * n])
            x = self._through(block, x, view)
        tiles = self.after_blocks(grid)  # (max_tiles, 1, dim)
        added = [tiles.expand(c.max_tiles, m, c.dim).reshape(-1, c.dim) for m in (n, filled)]
        x = self.norm(x) + ops.concat(*added)
        for block in self.global_blocks:
            x = self._through(block, x, view)
        # the elements of the states alternate
        return self.project(ops.concat(x[: n_tiles * n], ops.stack(*states, axis=2).reshape(n_tiles * n, -1), axis=1))

    def _through(self, block: Block, x: Tensor, view: TilesView) -> Tensor:
        return block(x, Batch(tokens=x, positions=None), view)  # type: ignore[arg-type]


def choose_grid(image: Image, grids: list[Size], side: int) -> Size:
    """Return the grid of tiles that enlarges a picture least, or else reduces it least; of several, the smallest."""
    scales = [min(grid.height * side / image.height, grid.width * side / image.width) for grid in grids]
    best = min((scale for scale in scales if scale >= 1), default=max(scales))
    fitting = [grid for grid, scale in zip(grids, scales, strict=True) if scale == best]
    return min(fitting, key=lambda grid: grid.height * grid.width)


def size_within(image: Image, grid: Size, side: int) -> Size:
    """Return the size of a picture of the same shape that fits into a grid; a small one fills one side of a tile."""
    h, w = (min(max(now, side), n * side) for now, n in zip((image.height, image.width), grid, strict=True))
    if w / image.width < h / image.height:
        return Size(min(math.floor(image.height * (w / image.width)) or 1, h), w)
    return Size(h, min(math.floor(image.width * (h / image.height)) or 1, w))
