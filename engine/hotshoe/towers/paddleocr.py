"""The encoder of PaddleOCR-VL (Baidu 2025, arXiv:2510.14528): SigLIP of any size, with 2-D RoPE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, submodule, tensor
from hotshoe.nn.vision import Prepared, ProjectorNorm, Rows
from hotshoe.towers import qwen2vl
from hotshoe.towers.idefics3 import merged
from hotshoe.towers.siglip import SigLIP
from hotshoe_core import Tensor, ops

Array = np.ndarray[Any, Any]


class PaddleOCR(SigLIP):
    config: qwen2vl.Config
    marker = "<|IMAGE_PLACEHOLDER|>"
    placeholder = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
    architectures = frozenset({"paddleocr"})
    positions: Tensor = tensor("v.position_embd.weight", use="interpolate", shape=lambda c, i: (None, c.dim))
    row_norm: ProjectorNorm = submodule("mm.input_norm", shape=lambda c, i: (c.dim,))
    up: Linear = submodule("mm.1", shape=lambda c, i: (None, c.dim * c.merge**2))
    down: Linear = submodule("mm.2", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        unit = c.patch_size * c.merge
        h, w = image.height, image.width
        # the processor first enlarges pictures that are smaller than one row
        if h < unit:
            h, w = unit, round(w * unit / h)
        if w < unit:
            h, w = round(h * unit / w), unit
        size = images.smart_size(h, w, unit, c.min_pixels, c.max_pixels)
        pixels = images.normalized(images.resized(image.pixels, size, "bicubic"), c.mean, c.std)
        y, x = np.mgrid[: size.height // c.patch_size, : size.width // c.patch_size].reshape(2, 1, -1).astype(np.int32)
        return Prepared({"pixels": pixels[None], "positions": np.stack([y, x])}, Size(*(n // unit for n in size)))

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c, pixels = self.config, inputs["pixels"]
        h, w = (side // c.patch_size for side in pixels.shape[2:])
        side = math.isqrt(self.positions.shape[0])
        # llama.cpp widens the filter for pictures that are smaller than the table
        table = ops.interpolate(self.positions.T.reshape(1, c.dim, side, side), size=(h, w), mode="bilinear")
        x = self.encode(pixels, table.reshape(c.dim, -1).T, inputs["positions"])
        return self.down(self.up(merged(self.row_norm(x), w, c.merge)).gelu())

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        return [qwen2vl.placed(rows, notes.width)]
