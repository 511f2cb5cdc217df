"""The encoder of LFM2-VL (Liquid AI 2025, arXiv:2511.23404): SigLIP 2 of any size; large pictures also in tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, submodule
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, ProjectorNorm, Rows, TowerConfig
from hotshoe.towers.idefics3 import merged
from hotshoe.towers.siglip import SigLIP
from hotshoe_core import Tensor, ops

Array = np.ndarray[Any, Any]

TILE, FEWEST, MOST = 512, 2, 10
"""The side of a tile in pixels, and limits of the number of tiles. No file says them."""
TOLERANCE = 2.0
"""A picture is cut if it has this many times as many pixels as the largest that is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.projector.scale_factor", default=2, minimum=1, maximum=16)
    """Patches on each side that become one row."""
    min_pixels: int = key("vision.image_min_pixels", minimum=1, default=lambda c: 64 * (c.patch_size * c.merge) ** 2)
    max_pixels: int = key("vision.image_max_pixels", minimum=1, default=lambda c: 256 * (c.patch_size * c.merge) ** 2)


class LFM2(SigLIP):
    config: Config
    marker = "<image>"
    placeholder = "<image>"
    architectures = frozenset({"lfm2"})
    row_norm: ProjectorNorm | None = submodule("mm.input_norm", optional=True, shape=lambda c, i: (c.dim * c.merge**2,))
    up: Linear = submodule("mm.1", shape=lambda c, i: (None, c.dim * c.merge**2))
    down: Linear = submodule("mm.2", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        unit = c.patch_size * c.merge
        size = images.smart_size(image.height, image.width, unit, c.min_pixels, c.max_pixels)
        pixels = images.resized(image.pixels, size, "bilinear")
        inputs = {"pixels": images.normalized(pixels, c.mean, c.std)[None]}
        h, w = (max(c.patch_size, round(side / unit) * unit) for side in (image.height, image.width))
        if h * w <= TOLERANCE * c.max_pixels:
            return Prepared(inputs, Size(0, 0))
        grid = images.tile_grid(image.height, image.width, TILE, FEWEST, MOST)
        pixels = images.resized(image.pixels, Size(grid.height * TILE, grid.width * TILE), "bilinear")
        inputs["tiles"] = images.normalized(images.in_tiles(pixels, Size(TILE, TILE)), c.mean, c.std)
        return Prepared(inputs, grid)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        rows = [self._rows(inputs[name]) for name in ("tiles", "pixels") if name in inputs]
        return ops.concat(*rows, axis=0) if len(rows) > 1 else rows[0]

    def _rows(self, pixels: Tensor) -> Tensor:
        """(n, 3, height, width) to the rows of all pictures, one after the other."""
        c = self.config
        h, w = (side // c.patch_size for side in pixels.shape[2:])
        table = self.positions.T.reshape(1, c.dim, c.side, c.side)
        table = ops.interpolate(table, size=(h, w), mode="bilinear", antialias=True)
        x = merged(self.encode(pixels, table.reshape(c.dim, -1).T), w, c.merge)
        x = x if self.row_norm is None else self.row_norm(x)
        return self.down(self.up(x).gelu())

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        parts: list[str | Rows] = ["<|image_start|>"]
        n_tile = (TILE // (self.config.patch_size * self.config.merge)) ** 2
        for y in range(notes.height):
            for x in range(notes.width):
                parts += [f"<|img_row_{y + 1}_col_{x + 1}|>", Rows(rows[:n_tile])]
                rows = rows[n_tile:]
        return [*parts, *(["<|img_thumbnail|>"] if notes.height else []), Rows(rows), "<|image_end|>"]
