"""The encoders of Qwen2-VL and 2.5-VL (arXiv:2409.12191, 2502.13923): any size, 2-D RoPE, windows in 2.5.

Four neighbouring patches become one row of the text model. A row has three positions: time, height and width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, RMSNorm, layers, submodule, tensor
from hotshoe.nn.basic import LayerNorm, Norm
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, RMSTowerBlock, Rows, Tower, TowerBlock, TowerConfig, patch_shape
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE

Array = np.ndarray[Any, Any]

_WINDOW = 112  # pixels on each side, in 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.spatial_merge_size", default=2, minimum=1, maximum=16)
    """Patches on each side that become one row."""
    min_pixels: int = key("vision.image_min_pixels", minimum=1, default=lambda c: 8 * (c.patch_size * c.merge) ** 2)
    max_pixels: int = key("vision.image_max_pixels", minimum=1, default=lambda c: 4096 * (c.patch_size * c.merge) ** 2)

    @property
    def mlp_dim(self) -> tuple[int, ...]:
        return (0,) * self.n_layers  # llama.cpp's converter writes the text model's size for Qwen2-VL

    @property
    def window(self) -> int:
        """Rows of the text model on each side of a window; 0 for no windows."""
        return 0

    def rope_for(self, layer: int) -> RoPE:
        quarter = self.head_dim // 4
        return RoPE(self.head_dim, sections=(quarter, quarter), section_layout="restarting")


class Qwen2VL(Tower):
    config: Config
    marker = "<|image_pad|>"
    placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    architectures = frozenset({"qwen2vl"})
    first_frame: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    second_frame: Tensor = tensor("v.patch_embd.weight.1", use="conv2d", shape=patch_shape)
    blocks: list[TowerBlock] = layers("v.blk")
    norm: Norm = submodule("v.post_ln", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))
    merge: Linear = submodule("mm.0", shape=lambda c, i: (None, c.dim * c.merge**2))
    project: Linear = submodule("mm.2", shape=lambda c, i: (c.projection_dim, None))

    def unused_keys(self) -> dict[str, str]:
        return super().unused_keys() | {"vision.feed_forward_length": "files of Qwen2-VL hold another number"}

    def sized(self, height: int, width: int) -> Size:
        """The size that a picture gets, in pixels."""
        c = self.config
        return images.smart_size(height, width, c.patch_size * c.merge, c.min_pixels, c.max_pixels)

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        unit = c.patch_size * c.merge
        size = self.sized(image.height, image.width)
        pixels = images.normalized(images.resized(image.pixels, size, "bicubic"), c.mean, c.std)
        grid = Size(size.height // unit, size.width // unit)
        cells, real = window_order(grid, c.window)
        patches = patches_of_cells(cells, grid, c.merge)
        width = grid.width * c.merge
        inputs = {
            "pixels": pixels[None],
            "patches": patches,
            "positions": np.stack([patches // width, patches % width]).astype(np.int32),
        }
        if not real.all():
            seen = np.repeat(real, c.merge**2)
            inputs["mask"] = np.where(seen, np.float32(0), np.float32(-np.inf))
        if c.window:
            n = grid.height * grid.width
            inputs["rows"] = np.argsort(np.where(real, cells, n), kind="stable")[:n].astype(np.int32)
        return Prepared(inputs, grid)

    def embed(self, pixels: Tensor) -> Tensor:
        """The patches of a picture: (1, 3, height, width) to (1, dim, rows, columns)."""
        # a picture is a film of two equal frames
        x = ops.conv2d(pixels, self.first_frame, stride=self.config.patch_size)
        return x + ops.conv2d(pixels, self.second_frame, stride=self.config.patch_size)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = self.embed(inputs["pixels"]).reshape(c.dim, -1).T.take(inputs["patches"])  # (n, dim)
        x = self.run(x, inputs["positions"], inputs.get("mask"))
        x = self.norm(x).reshape(-1, c.dim * c.merge**2)
        x = self.project(self.merge(x).gelu())
        return x.take(inputs["rows"]) if "rows" in inputs else x

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        return [placed(rows, notes.width)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedConfig(Config):
    period: int = key("vision.n_wa_pattern", minimum=1)
    """One layer in ``period``, the last, sees all patches; the others see their window."""

    @property
    def window(self) -> int:
        return max(1, _WINDOW // (self.patch_size * self.merge))


class Qwen25VL(Qwen2VL):
    config: WindowedConfig
    blocks: list[RMSTowerBlock] = layers("v.blk")  # type: ignore[assignment]
    norm: Norm = submodule("v.post_ln", choose=lambda c, i: RMSNorm, shape=lambda c, i: (c.dim,))

    def run(self, x: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        c, n = self.config, x.shape[0]
        size = (c.window * c.merge) ** 2
        in_windows = None if mask is None else mask.reshape(-1, 1, 1, size)
        everywhere = None if mask is None else mask.reshape(1, 1, n)
        for i, block in enumerate(self.blocks):
            if (i + 1) % c.period:
                windows = x.reshape(-1, size, c.dim)
                at = None if positions is None else positions.reshape(2, -1, size)
                x = self.run_block(block, windows, at, in_windows).reshape(n, c.dim)
            else:
                x = self.run_block(block, x, positions, everywhere)
        return x


def placed(rows: Array, width: int) -> Rows:
    """Rows of a picture, row by row of its grid, with their positions in time, height and width."""
    y, x = np.divmod(np.arange(len(rows)), width)
    return Rows(rows, np.stack([np.zeros_like(y), y, x]))


def window_order(grid: Size, window: int) -> tuple[Array, Array]:
    """Return the cells of a grid, window by window, and which of them are real: windows at an edge are filled up.

    window: cells on each side; 0: one window as large as the grid.
    """
    h, w = (window, window) if window else grid
    rows, columns = -(-grid.height // h), -(-grid.width // w)
    y = np.arange(rows)[:, None, None, None] * h + np.arange(h)[None, None, :, None]
    x = np.arange(columns)[None, :, None, None] * w + np.arange(w)[None, None, None, :]
    y, x = np.broadcast_arrays(y, x)  # (rows, columns, h, w)
    real = (y < grid.height) & (x < grid.width)
    return np.where(real, y * grid.width + x, 0).reshape(-1), real.reshape(-1)


def patches_of_cells(cells: Array, grid: Size, merge: int) -> Array:
    """Return the numbers of the patches of each cell, ``merge`` on each side: (n,) to (n * merge ** 2,) int32."""
    y, x = np.divmod(cells, grid.width)
    inside = np.arange(merge)
    rows = (y[:, None] * merge + inside)[:, :, None] * (grid.width * merge)
    patches = rows + (x[:, None] * merge + inside)[:, None, :]
    return patches.reshape(-1).astype(np.int32)
