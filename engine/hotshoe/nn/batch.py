"""Batch: the inputs that a model reads in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hotshoe_core import Tensor

__all__ = ["Batch"]


class Batch(NamedTuple):
    """The inputs of one graph. An input that the model does not read costs nothing.

    With a cache, the tokens of all sequences follow each other: (n,). If all sequences have the same number of tokens
    in a graph, which recurrent layers require, the rows are (n_sequences, n / n_sequences). Without a cache, texts are
    padded to one length: (b, n).
    """

    tokens: Tensor
    """(n,) I32, or (b, n): token ids."""

    positions: Tensor
    """(n,) I32: the position of each token in its sequence. (s, n) for a RoPE with s sections."""

    outputs: Tensor | None = None
    """(k,) I32: the rows whose logits are requested. None: all rows."""

    sequences: Tensor | None = None
    """(n,) I32: the sequence of this batch that each row belongs to, counted from 0."""

    n_sequences: int = 1
    """Sequences of the batch; 1 unless all have the same number of tokens."""

    token_types: Tensor | None = None
    """(b, n) I32: the text of a pair that each token belongs to, 0 or 1."""

    embeddings: Tensor | None = None
    """(m, dim) F32: rows that are not tokens (an image, a sound)."""

    embedding_rows: Tensor | None = None
    """(m,) I32: the rows of the batch that ``embeddings`` replace."""

    def embed(self, table: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``table(tokens)`` with ``embeddings`` written over their rows: (..., dim)."""
        x = table(self.tokens)
        if self.embeddings is None or self.embedding_rows is None:
            return x
        return x.set_rows(self.embedding_rows, self.embeddings)
