"""The text model of Qwen3-VL (Bai et al. 2025, arXiv:2511.21631): Qwen3, whose tokens may have several positions.

A token of a text has the same position in each section of RoPE. Pictures need an encoder, which is in another file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import qwen3
from hotshoe.nn import TextConfig, key, rope_key
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


def deepstack_key() -> Any:
    """Declare a field with the number of layers that add a slice of a picture's rows to their hidden states."""
    return key("n_deepstack_layers", default=0, maximum=lambda c: c.n_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(sections="interleaved")
    n_deepstack: int = deepstack_key()


class Deepstack(nn.Decoder):
    """A text model that reads rows of 1 + n_deepstack slices: the first one is the row's embedding.

    Each further one is added to the hidden states after a layer: the second after the first layer, and so on. Source:
    Meng et al. 2024, arXiv:2406.04334.
    """

    @property
    def span_width(self) -> int:
        width: int = self.config.dim * (1 + self.config.n_deepstack)
        return width

    def embed(self, batch: Batch) -> Tensor:
        if batch.embeddings is not None:
            batch = batch._replace(embeddings=batch.embeddings[:, : self.config.dim])
        return super().embed(batch)

    def run(self, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        dim, rows = self.config.dim, batch.embedding_rows
        for i, (block, view) in enumerate(zip(self.blocks, views, strict=True), 1):
            x = block(x, batch, view)
            if i <= self.config.n_deepstack and batch.embeddings is not None and rows is not None:
                x = x.set_rows(rows, x.take(rows) + batch.embeddings[:, i * dim : (i + 1) * dim])
        return x


class Model(Deepstack, qwen3.Model):
    config: Config


family = Family(Model)
