"""Batch: what a model reads at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hotshoe_core import Tensor

__all__ = ["Batch"]


class Batch(NamedTuple):
    """Inputs of a graph. What a model does not read costs nothing.

    With a cache, the tokens of a step's sequences stand one after the other: (n,). Without one, texts are padded to
    one length: (b, n). Where every sequence has as many tokens in a step, as recurrent layers need it, the rows are
    (n_sequences, n / n_sequences).
    """

    tokens: Tensor  # (n,) I32, or (b, n)
    positions: Tensor  # (n,) I32 of each token within its sequence; RoPE with sections: (s, n)
    outputs: Tensor | None = None  # (k,) I32: rows whose logits are asked for; None: all
    sequences: Tensor | None = None  # (n,) I32: which sequence of this batch each row belongs to
    n_sequences: int = 1
    token_types: Tensor | None = None  # (b, n) I32: which text of a pair
    embeddings: Tensor | None = None  # (m, dim) F32: rows that are no tokens (an image, a sound)
    embedding_rows: Tensor | None = None  # (m,) I32: where they go

    def embed(self, table: Callable[[Tensor], Tensor]) -> Tensor:
        """``table(tokens)``, with the embeddings put over their rows: (..., dim)."""
        x = table(self.tokens)
        if self.embeddings is None or self.embedding_rows is None:
            return x
        return x.set_rows(self.embedding_rows, self.embeddings)
