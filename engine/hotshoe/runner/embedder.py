"""EmbeddingModel: texts to vectors, with an encoder or a causal model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hotshoe.runner.base import ModelParts
from hotshoe.runner.encoder_model import EncoderModel, EncoderSignature
from hotshoe.runner.pooling import Pooling, pooling_of
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import InputEmptyError, InputTooLongError, InputTypeError, ShapeError
from hotshoe_core.errors.arguments import flag, integer, listed

__all__ = ["EmbeddingModel", "Pooling"]


class EmbeddingModel(EncoderModel):
    """A model that turns texts into vectors. Made by ``hotshoe.load_model``; thread-safe."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        default = Pooling.LAST if self.causal else Pooling.MEAN
        self.pooling = pooling_of(self.metadata, default, Pooling.MEAN, Pooling.CLS, Pooling.LAST)
        self.normalize: bool = self.metadata.get("hotshoe.embedding.normalize", True)
        """Whether vectors have length 1."""
        self.dim: int = parts.model.config.dim
        """The number of elements of a vector."""
        self._check_shapes(lambda: self._build(EncoderSignature(1, 2))).context.close()

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        truncate: bool = False,
        batch_size: int = 32,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return one vector for each text: float32 (n, dim), in order; (dim,) for a single string.

        truncate: cut texts with more than ``n_ctx`` tokens; otherwise they raise InputTooLongError. batch_size: the
        most texts that the model reads at once. progress: called with the fraction done, 0 to 1. Raises InputTypeError
        unless ``texts`` is a text or an iterable of texts, and InputEmptyError for a text without tokens.
        """
        self._require_open()
        if isinstance(texts, str):
            vectors = self.embed([texts], truncate=truncate, batch_size=batch_size, progress=progress)
            vector: np.ndarray[Any, np.dtype[np.float32]] = vectors[0]
            return vector
        batch_size = integer("batch_size", batch_size, 1, ShapeError)
        ids = self._tokenize(texts, flag("truncate", truncate))
        return self._in_batches(ids, None, batch_size, progress).reshape(len(ids), self.dim)

    def hidden_states(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the last layer's state of each token of a text, before pooling: float32 (n, dim)."""
        self._require_open()
        (ids,) = self._tokenize([text], truncate=False)
        states: np.ndarray[Any, np.dtype[np.float32]] = self._compute([ids], pooled=False)[0, : len(ids)]
        return states

    def _tokenize(self, texts: Iterable[str], truncate: bool) -> list[list[int]]:
        texts = listed("texts", texts, "a text or an iterable of texts", InputTypeError)
        ids = self.tokenizer.encode_batch(texts, max_length=self.n_ctx if truncate else None)
        for i, tokens in enumerate(ids):
            if len(tokens) > self.n_ctx:
                raise InputTooLongError(
                    f"text {i} ({texts[i][:40]!r}…) has {len(tokens)} tokens; the context holds {self.n_ctx}",
                    hint="split it, or pass truncate=True to use its beginning",
                )
            if not tokens:
                raise InputEmptyError(f"text {i} has no tokens, and the vocabulary adds none around it")
        return ids

    def _finish(self, pooled: Tensor) -> Tensor:
        project = getattr(self._model, "project", None)  # optional: the model's layer after pooling
        vectors: Tensor = pooled if project is None else project(pooled)
        self.dim = vectors.shape[-1]
        return ops.l2_norm(vectors) if self.normalize else vectors
