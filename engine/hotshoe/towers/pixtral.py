"""The encoder of Pixtral (Agrawal et al. 2024, arXiv:2410.07073), Mistral Small 3, LightOnOCR: any size, 2-D RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, RMSNorm, layers, submodule, tensor
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, RMSTowerBlock, Rows, Tower, TowerAttention, TowerConfig, patch_shape
from hotshoe.towers.qwen2vl import patches_of_cells
from hotshoe_core import Tensor, constant, ops
from hotshoe_core.ops import RoPE

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.spatial_merge_size", default=1, minimum=1, maximum=16)
    """Patches on each side that become one row."""
    rope_base: float = key("rope.freq_base", default=10000.0, minimum=1)

    def rope_for(self, layer: int) -> RoPE:
        quarter = self.head_dim // 4
        sections = (quarter, quarter)
        return RoPE(self.head_dim, self.rope_base, interleaved=True, sections=sections, section_layout="restarting")


class Attention(TowerAttention):
    @property
    def rope_factors(self) -> Tensor:
        """Rows and columns have every second frequency of one RoPE: rows the first, third, …, columns the others."""
        c = self.config
        factors = np.ones((2, c.head_dim // 4), np.float32)
        factors[1] = c.rope_base ** (2 / c.head_dim)
        return constant(factors.reshape(-1))


class Block(RMSTowerBlock):
    attention: Attention = submodule()


def _is_merged(config: Config, _: int) -> bool:
    return config.merge > 1


class Pixtral(Tower):
    config: Config
    marker = "[IMG]"
    placeholder = "[IMG]"
    architectures = frozenset({"llama", "mistral3", "mistral4"})
    patches: Tensor = tensor("v.patch_embd.weight", use="conv2d", shape=patch_shape)
    first_norm: RMSNorm = submodule("v.pre_ln", shape=lambda c, i: (c.dim,))
    blocks: list[Block] = layers("v.blk")
    merger_norm: RMSNorm | None = submodule("mm.input_norm", when=_is_merged, shape=lambda c, i: (c.dim,))
    merger: Linear | None = submodule(
        "mm.patch_merger", when=_is_merged, shape=lambda c, i: (c.dim, c.dim * c.merge**2)
    )
    up: Linear = submodule("mm.1", shape=lambda c, i: (None, c.dim))
    down: Linear = submodule("mm.2", shape=lambda c, i: (c.projection_dim, None))

    def unused_tensors(self) -> dict[str, str]:
        why = "the row of [IMG_BREAK] is in the text model too"
        return super().unused_tensors() | {"v.token_embd.img_break": why}

    def prepare(self, image: Image) -> Prepared:
        c = self.config
        unit = c.patch_size * c.merge
        h, w = images.fit_within(image.height, image.width, c.image_size)
        grid = Size(-(-h // unit), -(-w // unit))
        pixels = images.resized(image.pixels, Size(grid.height * unit, grid.width * unit), "bicubic")
        patches = patches_of_cells(np.arange(grid.height * grid.width), grid, c.merge)
        positions = np.stack(np.divmod(patches, grid.width * c.merge)).astype(np.int32)
        inputs = {"pixels": images.normalized(pixels, c.mean, c.std)[None], "patches": patches, "positions": positions}
        return Prepared(inputs, grid)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = ops.conv2d(inputs["pixels"], self.patches, stride=c.patch_size)
        x = x.reshape(c.dim, -1).T.take(inputs["patches"])  # (n, dim), in the order of merged rows
        x = self.run(self.first_norm(x), inputs["positions"])
        if self.merger_norm is not None and self.merger is not None:
            cells = self.merger_norm(x).reshape(-1, c.merge**2, c.dim).permute(0, 2, 1)
            x = self.merger(cells.reshape(-1, c.dim * c.merge**2))
        return self.down(self.up(x).gelu())

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        parts: list[str | Rows] = []
        for row in np.split(rows, notes.height):
            parts += [Rows(row), "[IMG_BREAK]"]
        return [*parts[:-1], "[IMG_END]"]


class MergerNorm(RMSNorm):
    eps = 1e-6  # the text model's; a file has one number, for the other norms


class LightOnOCR(Pixtral):
    """LightOnOCR (arXiv:2601.14251): no tokens between rows of patches."""

    marker = "<|image_pad|>"
    placeholder = "<|image_pad|>"
    architectures = frozenset({"qwen3"})
    merger_norm: MergerNorm | None = submodule("mm.input_norm", when=_is_merged, shape=lambda c, i: (c.dim,))

    def expand(self, rows: Array, notes: Size) -> list[str | Rows]:
        return [Rows(rows)]
