"""Idefics3 (Laurençon et al. 2024, arXiv:2408.12637) and SmolVLM: SigLIP over tiles and over the whole picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, submodule
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, Rows, TowerConfig
from hotshoe.towers.siglip import SigLIP
from hotshoe_core import Tensor

Array = np.ndarray[Any, Any]

_AROUND = "<fake_token_around_image>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.projector.scale_factor", minimum=1, maximum=lambda c: c.image_size // c.patch_size)
    """Patches on each side that become one row."""
    longest: int = key("vision.preproc_image_size", default=lambda c: c.image_size, minimum=1, maximum=4096)
    """The longer side of a picture before it is cut into tiles, in pixels."""


class Idefics3(SigLIP):
    config: Config
    marker = "<image>"
    placeholder = "<image>"
    architectures = frozenset({"llama"})
    project: Linear = submodule("mm.model.fc", shape=lambda c, i: (c.projection_dim, c.dim * c.merge**2))

    def prepare(self, image: Image) -> Prepared:
        c, tile = self.config, self.config.image_size
        pixels = images.resized(image.pixels, _long_side(image.height, image.width, c.longest), "lanczos")
        pixels = images.resized(pixels, _whole_tiles(pixels.shape[0], pixels.shape[1], tile), "lanczos")
        grid = Size(pixels.shape[0] // tile, pixels.shape[1] // tile)
        cut = images.in_tiles(pixels, Size(tile, tile))
        if grid == (1, 1):
            return Prepared({"pixels": images.normalized(cut, c.mean, c.std)}, Size(0, 0))
        cut = np.concatenate([cut, images.resized(pixels, Size(tile, tile), "lanczos")[None]])
        return Prepared({"pixels": images.normalized(cut, c.mean, c.std)}, grid)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.project(merged(self.encode(inputs["pixels"], self.positions), self.config.side, self.config.merge))

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        tiles = iter(np.split(rows, notes.height * notes.width + 1))
        parts: list[str | Rows] = []
        for y in range(notes.height):
            for x in range(notes.width):
                parts += [f"{_AROUND}<row_{y + 1}_col_{x + 1}>", Rows(next(tiles))]
            parts.append("\n")
        return [*parts, f"{chr(10) if parts else ''}{_AROUND}<global-img>", Rows(next(tiles)), _AROUND]


def merged(x: Tensor, width: int, merge: int) -> Tensor:
    """Join ``merge`` x ``merge`` patches into one row: (..., height * width, dim) to (n, merge * merge * dim)."""
    dim = x.shape[-1]
    x = x.reshape(-1, merge, width // merge, merge * dim).permute(0, 2, 1, 3)
    return x.reshape(-1, merge**2 * dim)


def _long_side(height: int, width: int, longest: int) -> Size:
    """The size of a picture of the same shape whose longer side is ``longest``. The shorter one becomes even."""
    ratio = width / height
    if width >= height:
        short = int(longest / ratio)
        return Size(max(1, short + short % 2), longest)
    short = int(longest * ratio)
    return Size(longest, max(1, short + short % 2))


def _whole_tiles(height: int, width: int, tile: int) -> Size:
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return Size(height, width)
