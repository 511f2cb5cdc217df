"""What Gemma 4 12B has in place of an encoder: norms and a linear layer make a row of each patch of 48 x 48 pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image
from hotshoe.nn import Linear, UnweightedRMSNorm, layers, submodule, tensor
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, ProjectorNorm, Rows, Tower, TowerBlock
from hotshoe.towers import gemma4
from hotshoe_core import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(gemma4.Config):
    n_layers: int = key("vision.block_count", minimum=0, maximum=0)
    heads: int = key("vision.attention.head_count", minimum=0, maximum=0)
    head_dim: int = key("vision.attention.head_dim", minimum=0, maximum=0, default=0)

    @property
    def unit(self) -> int:
        """The side of a patch that becomes a row, in pixels."""
        return self.patch_size * self.pool


class Gemma4UV(Tower):
    config: Config
    marker = "<|image|>"
    placeholder = "<|image|>"
    architectures = frozenset({"gemma4"})
    bidirectional = True
    pixel_norm: ProjectorNorm = submodule("v.patch_norm.1", shape=lambda c, i: (3 * c.unit**2,))
    patches: Linear = submodule("v.patch_embd", shape=lambda c, i: (c.dim, 3 * c.unit**2))
    patch_norm: ProjectorNorm = submodule("v.patch_norm.2", shape=lambda c, i: (c.dim,))
    tables: Tensor = tensor("v.position_embd.weight", use="take", shape=lambda c, i: (2, None, c.dim))
    norm: ProjectorNorm = submodule("v.patch_norm.3", shape=lambda c, i: (c.dim,))
    blocks: list[TowerBlock] = layers("v.blk")
    row_norm: UnweightedRMSNorm = submodule()
    project: Linear = submodule("mm.input_projection", shape=lambda c, i: (c.projection_dim, c.dim))

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        size = gemma4.budget_size(image, c.unit, c.max_pixels)
        pixels = images.normalized(images.resized(image.pixels, size, "bicubic"), c.mean, c.std)
        h, w = size.height // c.unit, size.width // c.unit
        patches = pixels.reshape(3, h, c.unit, w, c.unit).transpose(1, 3, 0, 2, 4).reshape(h * w, -1)
        y, x = np.mgrid[:h, :w].reshape(2, -1)
        return Prepared({"patches": np.ascontiguousarray(patches), "positions": np.stack([x, y]).astype(np.int32)})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        positions = inputs["positions"]
        x = self.patch_norm(self.patches(self.pixel_norm(inputs["patches"])))
        x = self.norm(x + self.tables[0].take(positions[0]) + self.tables[1].take(positions[1]))
        return self.project(self.row_norm(x))

    def expand(self, rows: Array, notes: Any) -> list[str | Rows]:
        return ["<|image>", Rows(rows), "<image|>"]
