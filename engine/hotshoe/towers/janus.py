"""The encoder of Janus Pro (Chen et al. 2025, arXiv:2501.17811): SigLIP over a picture with margins, and an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, submodule
from hotshoe.nn.config import derived
from hotshoe.nn.mlp import Activation
from hotshoe.nn.vision import Prepared, Rows, TowerConfig, exact_activation
from hotshoe.towers.siglip import SigLIP
from hotshoe_core import Tensor

Array = np.ndarray[Any, Any]

_SHORTEST = 14  # pixels of the shorter side, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    activation: Activation = derived(exact_activation)  # noqa: RUF009


class JanusPro(SigLIP):
    config: Config
    marker = "<image_placeholder>"
    placeholder = "<image_placeholder>"
    architectures = frozenset({"llama"})
    up: Linear = submodule("mm.0", shape=lambda c, i: (c.projection_dim, c.dim))
    down: Linear = submodule("mm.1", shape=lambda c, i: (c.projection_dim, c.projection_dim))

    def prepare(self, image: Image) -> Prepared:
        c, side = self.config, self.config.image_size
        scale = side / max(image.height, image.width)
        size = Size(*(max(round(n * scale), _SHORTEST) for n in (image.height, image.width)))
        canvas = np.empty((side, side, 3), np.uint8)
        canvas[:] = [int(value * 255) for value in c.mean]
        top, left = (side - size.height) // 2, (side - size.width) // 2
        resized = images.resized(image.pixels, size, "bicubic")
        canvas[top : top + size.height, left : left + size.width] = resized
        return Prepared({"pixels": images.normalized(canvas, c.mean, c.std)[None]})

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        x = self.encode(inputs["pixels"], self.positions)[0]
        return self.down(self.up(x).gelu())

    def expand(self, rows: Array, notes: Any) -> list[str | Rows]:
        # llama.cpp writes neither
        return ["<begin_of_image>", Rows(rows), "<end_of_image>"]
