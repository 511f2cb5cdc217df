"""Gemma (Gemma Team 2024, arXiv:2403.08295): Llama with scaled embeddings and GELU."""

from __future__ import annotations

import math
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, TextConfig, key, layers, submodule
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor


def scale_key(layers_27b: int) -> Any:
    """Declare the field ``scale`` of Gemma 2 and 3, the factor of scores. Files do not say that the 27B has another.

    layers_27b: the number of layers of the 27B.
    """
    return key(
        "attention.scale",
        default=lambda c: (c.dim / max(1, c.n_heads[0]) if c.n_layers == layers_27b else c.head_dim) ** -0.5,
    )


class MLP(GatedMLP):
    activation = "gelu_tanh"


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: MLP = submodule()


class ScaledDecoder(nn.Decoder):
    """What all Gemmas share: embeddings are multiplied by the root of their number of elements."""

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.config.dim)


class CappedDecoder(ScaledDecoder):
    """Gemma 2 and later: logits have a cap, ``config.softcap``."""

    @property
    def final_softcap(self) -> float:
        cap: float = self.config.softcap
        return cap


class ReadingDecoder(CappedDecoder):
    """Gemma 3n and 4: the last layers read the keys and values of ``config.source_of(layer)``."""

    def unused_tensors(self) -> dict[str, str]:
        readers = [i for i in range(self.config.n_layers) if self.config.source_of(i) is not None]
        why = "the layer reads the keys and values of an earlier one"
        unused = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
        return super().unused_tensors() | {f"blk.{i}.{name}": why for i in readers for name in unused}

    def run_with(self, vectors: Tensor, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        """Compute the blocks. Each gets its own of ``vectors``, (n, n_layers, dim)."""
        blocks: Any = self.blocks
        for i, (block, view) in enumerate(zip(blocks, views, strict=True)):
            x = block(x, batch, view, vectors[..., i, :])
        return x


class Model(ScaledDecoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
