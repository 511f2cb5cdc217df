"""EmbeddingModel: texts to vectors, by an encoder or a causal model, with its tokenizer and pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.runner.pooling import Pooling, pooling_of
from hotshoe.runner.whole_texts import Shape, WholeTexts
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import InputTooLongError, InputTypeError, ShapeError
from hotshoe_core.errors.arguments import flag, integer, listed

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe.runner.params import RunnerParams
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.gguf import GGUFFile

__all__ = ["EmbeddingModel", "Pooling"]


class EmbeddingModel(WholeTexts):
    """Texts to vectors. Made by ``hotshoe.load_model``; thread-safe."""

    def __init__(
        self,
        model: Module,
        tokenizer: Tokenizer,
        backend: Backend,
        file: GGUFFile,
        *,
        n_ctx: int,
        why: str,
        params: RunnerParams,
    ) -> None:
        super().__init__(model, tokenizer, backend, file, n_ctx=n_ctx, why=why, params=params)
        default = Pooling.LAST if self.causal else Pooling.MEAN
        self.pooling = pooling_of(file.metadata, default, Pooling.MEAN, Pooling.CLS, Pooling.LAST)
        self.normalize: bool = file.metadata.get("hotshoe.embedding.normalize", True)
        self.dim: int = model.config.dim
        self._check_shapes(lambda: self._build(Shape(1, 2)).context.close())

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        truncate: bool = False,
        batch_size: int = 32,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One vector a text: float32 (n, dim), in the order given; (dim,) for a single string.

        truncate: cut texts that have more than ``n_ctx`` tokens instead of raising InputTooLongError.
        batch_size: how many texts at most go through the model at once. progress: called with 0 to 1.
        """
        self._require_open()
        if isinstance(texts, str):
            vectors = self.embed([texts], truncate=truncate, batch_size=batch_size, progress=progress)
            vector: np.ndarray[Any, np.dtype[np.float32]] = vectors[0]
            return vector
        batch_size = integer("batch_size", batch_size, 1, ShapeError)
        ids = self._tokenize(texts, flag("truncate", truncate))
        out = np.empty((len(ids), self.dim), np.float32)
        lengths = [len(i) for i in ids]
        return self._in_batches(out, lengths, batch_size, lambda rows: self._compute([ids[r] for r in rows]), progress)

    def hidden_states(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The last layer's state of each token, before pooling: float32 (n, dim)."""
        self._require_open()
        (ids,) = self._tokenize([text], truncate=False)
        states: np.ndarray[Any, np.dtype[np.float32]] = self._compute([ids], pooled=False)[0]
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
                raise InputTooLongError(f"text {i} has no tokens, and the vocabulary adds none around it")
        return ids

    def _finish(self, pooled: Tensor) -> Tensor:
        project = getattr(self._model, "project", None)  # optional: a layer of the model's after pooling
        vectors: Tensor = pooled if project is None else project(pooled)
        self.dim = vectors.shape[-1]
        return ops.l2_norm(vectors) if self.normalize else vectors
