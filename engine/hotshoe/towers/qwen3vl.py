"""The encoder of Qwen3-VL and Qwen 3.5 (arXiv:2511.21631): learned positions of any size, 2-D RoPE, deepstack.

Deepstack (Meng et al. 2024, arXiv:2406.04334): the hidden states of some layers become further slices of each row. The
first layers of the text model add them to their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotshoe.nn import Linear, Module, layers, submodule, tensor
from hotshoe.nn.basic import LayerNorm, Norm
from hotshoe.nn.config import derived, key
from hotshoe.towers import qwen2vl
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata


def _deepstack(metadata: Metadata, n_layers: int) -> tuple[bool, ...]:
    return tuple(metadata.arch.per_layer("vision.is_deepstack_layers", n_layers, bool, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(qwen2vl.Config):
    # the processor's; llama.cpp reads 8 to 4096 rows. The largest is llama.cpp's: the processor's is 16,384 rows
    min_pixels: int = key("vision.image_min_pixels", minimum=1, default=lambda c: 64 * (c.patch_size * c.merge) ** 2)
    deepstack: tuple[bool, ...] = derived(lambda metadata, found, _: _deepstack(metadata, found.n_layers))
    """The layers whose hidden states become a slice of the rows."""

    @property
    def mlp_dim(self) -> tuple[int, ...]:
        return (self.ff,) * self.n_layers


class Merger(Module):
    """Four neighbouring patches to a slice of a row: (n, dim) to (n / 4, projection_dim)."""

    norm: Norm = submodule("norm", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim * c.merge**2,))
    up: Linear = submodule("fc1", shape=lambda c, i: (None, c.dim * c.merge**2))
    down: Linear = submodule("fc2", shape=lambda c, i: (c.projection_dim, None))

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(x.reshape(-1, self.config.dim * self.config.merge**2))
        return self.down(self.up(x).gelu())


class Qwen3VL(qwen2vl.Qwen2VL):
    config: Config
    architectures = frozenset({"qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"})
    patch_bias: Tensor = tensor("v.patch_embd.bias", use="add", shape=lambda c, i: (c.dim,))
    positions: Tensor = tensor("v.position_embd.weight", use="interpolate", shape=lambda c, i: (c.side**2, c.dim))
    mergers: list[Module] = layers("v.deepstack", choose=lambda c, i: Merger if c.deepstack[i] else Module)

    def embed(self, pixels: Tensor) -> Tensor:
        c = self.config
        x = super().embed(pixels) + self.patch_bias.reshape(c.dim, 1, 1)
        table = self.positions.T.reshape(1, c.dim, c.side, c.side)
        return x + ops.interpolate(table, size=x.shape[2:], mode="bilinear", align_corners=True)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        c = self.config
        x = self.embed(inputs["pixels"]).reshape(c.dim, -1).T.take(inputs["patches"])  # (n, dim)
        slices = []
        for block, merger in zip(self.blocks, self.mergers, strict=True):
            x = self.run_block(block, x, inputs["positions"])
            if isinstance(merger, Merger):
                slices.append(merger(x))
        x = self.norm(x).reshape(-1, c.dim * c.merge**2)
        return ops.concat(self.project(self.merge(x).gelu()), *slices, axis=1)

    @property
    def span_width(self) -> int:
        return self.config.projection_dim * (1 + sum(self.config.deepstack))
