"""The encoder of MiniCPM-V 4.6 (Yao et al. 2024, arXiv:2408.01800): SigLIP of any size, whose patches merge twice.

Four patches become one between two of its layers, and again at the end. Large pictures are cut into slices, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from hotshoe import images
from hotshoe.images import Image, Size
from hotshoe.nn import Linear, Module, submodule, tensor
from hotshoe.nn.basic import LayerNorm
from hotshoe.nn.config import derived, key
from hotshoe.nn.vision import Prepared, Rows, TowerAttention, TowerConfig
from hotshoe.towers.idefics3 import merged
from hotshoe.towers.siglip import SigLIP
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata

Array = np.ndarray[Any, Any]

MAX_SLICES = 9  # no file says it


def _merged_after(metadata: Metadata, found: SimpleNamespace, _: object) -> int:
    name = "vision.wa_layer_indexes"
    (number,) = metadata.arch.per_layer(name, 1, int)
    if not 0 <= number < found.n_layers:
        raise metadata.arch.error(name, f"{number}; expected the number of one of {found.n_layers} layers")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TowerConfig):
    merge: int = key("vision.projector.scale_factor", default=4, minimum=4, maximum=4)
    """Patches on each side that become one row."""
    merged_after: int = derived(_merged_after)
    """The layer after which patches are merged for the first time."""

    @property
    def unit(self) -> int:
        """The side of a row, in pixels."""
        return self.patch_size * self.merge


class WindowAttention(TowerAttention):
    q: Linear = submodule("attn_q", shape=lambda c, i: (c.dim, c.dim))
    k: Linear = submodule("attn_k", shape=lambda c, i: (c.dim, c.dim))
    v: Linear = submodule("attn_v", shape=lambda c, i: (c.dim, c.dim))
    qkv = None
    out: Linear = submodule("attn_out", shape=lambda c, i: (c.dim, c.dim))

    @property
    def n_heads(self) -> int:
        return int(self.config.heads)

    n_kv_heads = n_heads

    @property
    def head_dim(self) -> int:
        return int(self.config.head_dim)

    v_dim = head_dim


class WindowMerger(Module):
    """Attention between 2 x 2 patches, which then become one: (..., height * width, dim) to (n, dim)."""

    attention_norm: LayerNorm = submodule("ln1", shape=lambda c, i: (c.dim,))
    attention: WindowAttention = submodule()
    norm: LayerNorm = submodule("ds_ln", shape=lambda c, i: (4 * c.dim,))
    up: Linear = submodule("ds_ffn_up", shape=lambda c, i: (None, 4 * c.dim))
    down: Linear = submodule("ds_ffn_down", shape=lambda c, i: (c.dim, None))

    def __call__(self, x: Tensor, width: int) -> Tensor:
        dim = self.config.dim
        x = merged(x, width, 2).reshape(-1, 4, dim)
        x = x + self.attention.between(self.attention_norm(x))
        return x.mean(axis=1) + self.down(self.up(self.norm(x.reshape(-1, 4 * dim))).gelu("tanh"))


class RowNorm(LayerNorm):
    eps = 1e-6  # no file says it


class MiniCPMV(SigLIP):
    config: Config
    marker = "<|image_pad|>"
    placeholder = "<|image_pad|>"
    architectures = frozenset({"qwen35"})
    positions: Tensor = tensor("v.position_embd.weight", use="take", shape=lambda c, i: (None, c.dim))
    merger: WindowMerger = submodule("v.vit_merger")
    row_norm: RowNorm = submodule("mm.input_norm", shape=lambda c, i: (4 * c.dim,))
    up: Linear = submodule("mm.up", shape=lambda c, i: (None, 4 * c.dim))
    down: Linear = submodule("mm.down", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, image: Image) -> Prepared:
        images.check_ratio(image.height, image.width)
        c, grid = self.config, self._grid(image)
        size = self._fitting(image.height, image.width, enlarged=grid == (1, 1))
        pixels = images.normalized(images.resized(image.pixels, size, "bicubic"), c.mean, c.std)
        inputs = {"pixels": pixels[None], "places": self._places(size)}
        if grid == (1, 1):
            return Prepared(inputs, (Size(0, 0), size))
        h, w = (_rounded(side, n) / n for side, n in zip((image.height, image.width), grid, strict=True))
        part = self._fitting(h, w, enlarged=True)
        pixels = images.resized(image.pixels, Size(part.height * grid.height, part.width * grid.width), "bicubic")
        inputs["slices"] = images.normalized(images.in_tiles(pixels, part), c.mean, c.std)
        inputs["slice_places"] = self._places(part)
        return Prepared(inputs, (grid, size))

    def _grid(self, image: Image) -> Size:
        """The rows and columns of slices; (1, 1) for a picture that is not cut."""
        ratio = image.width * image.height / self.config.image_size**2
        wanted = min(math.ceil(ratio), MAX_SLICES)
        best, least = Size(1, 1), math.inf
        for n in (wanted - 1, wanted, wanted + 1) if wanted > 1 else ():
            for rows in (rows for rows in range(1, n + 1) if not n % rows and 1 < n <= MAX_SLICES):
                error = abs(math.log(image.width / image.height) - math.log(n // rows / rows))
                if error < least or (error == least and rows > best.height):
                    best, least = Size(rows, n // rows), error
        return best

    def _fitting(self, height: float, width: float, *, enlarged: bool) -> Size:
        """The size that a picture or a slice gets: a multiple of a row on each side, with about ``image_size`` ** 2."""
        c = self.config
        if enlarged or height * width > c.image_size**2:
            ratio = width / height
            height = int(c.image_size / math.sqrt(ratio))
            width = int(height * ratio)
        return Size(_rounded(height, c.unit), _rounded(width, c.unit))

    def _places(self, size: Size) -> Array:
        """The row of the table of positions for each patch: that at the same place of a picture."""
        side = math.isqrt(self.positions.shape[0])
        edges = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
        counts = (n // self.config.patch_size for n in size)
        y, x = (np.searchsorted(edges, np.arange(n, dtype=np.float32) / np.float32(n), "right") for n in counts)
        return (y[:, None] * side + x).reshape(-1).astype(np.int32)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        rows = self._rows(inputs["pixels"], inputs["places"])
        if "slices" not in inputs:
            return rows
        return ops.concat(rows, self._rows(inputs["slices"], inputs["slice_places"]), axis=0)

    def _rows(self, pixels: Tensor, places: Tensor) -> Tensor:
        """(n, 3, height, width) to the rows of all pictures, one after the other."""
        c, width = self.config, pixels.shape[3] // self.config.patch_size
        x = ops.conv2d(pixels, self.patches, self.patch_bias, stride=c.patch_size)
        x = x.reshape(*x.shape[:2], -1).permute(0, 2, 1) + self.positions.take(places)
        for i, block in enumerate(self.blocks):
            x = self.run_block(block, x)
            if i == c.merged_after:
                x = self.merger(x, width).reshape(pixels.shape[0], -1, c.dim)
        x = merged(self.norm(x), width // 2, 2)
        return self.down(self.up(self.row_norm(x)).gelu())

    def expand(self, rows: Array, notes: tuple[Size, Size]) -> list[str | Rows]:
        # without the numbers of pictures, as llama.cpp
        grid, size = notes
        n = math.prod(size) // self.config.unit**2
        parts: list[str | Rows] = ["<image>", Rows(rows[:n]), "</image>"]
        slices = np.split(rows[n:], max(1, math.prod(grid)))
        for y in range(grid.height):
            for part in slices[y * grid.width :][: grid.width]:
                parts += ["<slice>", Rows(part), "</slice>"]
            parts += ["\n"] if y < grid.height - 1 else []
        return parts


def _rounded(length: float, unit: int) -> int:
    """The multiple of ``unit`` that is nearest, and at least one."""
    return max(round(length / unit) * unit, unit)
