"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): SigLIP, of whose patches the mean of 4 x 4 is a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import RMSNorm, submodule, tensor
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, Rows, TowerConfig
from hotshoe.towers.siglip import SigLIP
from hotshoe_core import Tensor, ops

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    pool: int = key(
        "vision.projector.scale_factor", default=4, minimum=1, maximum=lambda c: c.image_size // c.patch_size
    )
    """Patches on each side whose mean is one row."""


class Gemma3(SigLIP):
    """Gemma 3: the mean of 4 x 4 patches is a row. All pictures become squares of the same size."""

    config: Config
    marker = "<start_of_image>"
    placeholder = "<start_of_image>"
    row_marker = "<image_soft_token>"
    architectures = frozenset({"gemma3"})
    bidirectional = True
    row_norm: RMSNorm = submodule("mm.soft_emb_norm", shape=lambda c, i: (c.dim,))
    project: Tensor = tensor("mm.input_projection.weight", use="matmul", shape=lambda c, i: (c.dim, c.projection_dim))

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        pixels = images.resized(image.pixels, Size(c.image_size, c.image_size), "bilinear")
        return Prepared({"pixels": images.normalized(pixels, c.mean, c.std)[None]})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = self.encode(inputs["pixels"], self.positions).permute(0, 2, 1).reshape(1, c.dim, c.side, c.side)
        x = ops.avg_pool2d(x, kernel_size=c.pool).reshape(c.dim, -1).T
        return ops.matmul(self.row_norm(x), self.project)

    def expand(self, rows: Array, notes: Any) -> list[str | Rows]:
        # llama.cpp writes no line breaks; the model's processor does
        return ["\n\n<start_of_image>", Rows(rows), "<end_of_image>\n\n"]
