"""RerankModel: scores how well documents answer a query, with a model that reads both together (a cross-encoder)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hotshoe.runner.base import ModelParts
from hotshoe.runner.encoder_model import EncoderModel, EncoderSignature
from hotshoe.runner.pooling import Pooling, pooling_of
from hotshoe.tokenizers import EncodedPair
from hotshoe_core import Tensor
from hotshoe_core.errors import InputTooLongError, InputTypeError, ModelDefinitionError, ModelFileError, ShapeError
from hotshoe_core.errors.arguments import flag, integer, listed

__all__ = ["RerankModel"]

_ACTIVATION = "hotshoe.rerank.activation"
_TEMPLATE = "tokenizer.chat_template.rerank"
_BLANK = re.compile(r"\{(query|document)\}")


class RerankModel(EncoderModel):
    """A model that scores pairs of texts. Made by ``hotshoe.load_model``; thread-safe.

    A score is the sigmoid of the classifier's logit, as in sentence-transformers' CrossEncoder; it is the logit itself
    if the file sets ``hotshoe.rerank.activation`` to "identity". A causal model (Qwen3-Reranker) has two labels, "yes"
    and "no": the score is the probability of "yes". If the file has a template (``tokenizer.chat_template.rerank``, a
    text with {query} and {document}), the model reads the filled template.
    """

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        file = parts.file
        pooling_of(file.metadata, Pooling.RANK, Pooling.RANK)
        self.pooling = Pooling.LAST
        if not self.causal:
            self.pooling = Pooling(file.metadata.arch.get("classifier.pooling_type", int(Pooling.CLS)))
        self.activation: str = file.metadata.get(_ACTIVATION, "sigmoid")
        if self.activation not in ("sigmoid", "identity"):
            raise ModelFileError(f"is {self.activation!r}; expected 'sigmoid' or 'identity'", field=_ACTIVATION)
        template = file.metadata.get(_TEMPLATE, None, str)
        self._template = None if template is None else _BLANK.split(template)  # text, blank, text, blank, text
        if self._template is not None and sorted(self._template[1::2]) != ["document", "query"]:
            raise ModelFileError("expected a text with {query} and {document}, once each", field=_TEMPLATE)
        self.n_labels = 0  # known after the first graph is built
        self._check_shapes(lambda: self._build(EncoderSignature(1, 2, typed=True))).context.close()
        if self.n_labels != (2 if self.causal else 1):
            raise ModelFileError(
                f"{file.path}: the classifier has {self.n_labels} labels; a reranker needs "
                + ("2, yes and no" if self.causal else "1")
            )

    def rank(
        self,
        query: str,
        documents: Iterable[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
        batch_size: int = 32,
        progress: Callable[[float], None] | None = None,
    ) -> list[tuple[int, float]]:
        """Return (index, score) of the documents, best first; equal scores keep the order of the documents.

        top_n: how many to return; None for all. truncate, batch_size, progress: see ``scores``. Raises InputTypeError
        unless ``documents`` is an iterable of texts, and InputTooLongError.
        """
        if top_n is not None:
            top_n = integer("top_n", top_n, 1, ShapeError)
        texts = listed("documents", documents, "an iterable of texts", InputTypeError)
        pairs = [(query, document) for document in texts]
        scores = self.scores(pairs, truncate=truncate, batch_size=batch_size, progress=progress)
        best = np.argsort(-scores, kind="stable")[:top_n]
        return [(int(i), float(scores[i])) for i in best]

    def scores(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        truncate: bool = False,
        batch_size: int = 32,
        progress: Callable[[float], None] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return one score for each (query, document) pair: float32 (n,), in order.

        truncate: cut pairs with more than ``n_ctx`` tokens; otherwise they raise InputTooLongError. batch_size: the
        most pairs that the model reads at once. progress: called with the fraction done, 0 to 1. Raises InputTypeError
        unless ``pairs`` is an iterable of pairs of texts.
        """
        self._require_open()
        batch_size = integer("batch_size", batch_size, 1, ShapeError)
        given = listed("pairs", pairs, "an iterable of pairs of texts", InputTypeError)
        encoded = self._encode(given, flag("truncate", truncate))
        ids, types = [pair[0] for pair in encoded], [pair[1] for pair in encoded]
        logits = self._in_batches(ids, types, batch_size, progress)
        return self._scores(logits.reshape(len(encoded), self.n_labels)).astype(np.float32)

    def _encode(self, pairs: list[tuple[str, str]], truncate: bool) -> list[EncodedPair]:
        if self._template is None:
            encoded = self.tokenizer.encode_pairs(pairs, max_length=self.n_ctx if truncate else None)
        else:
            encoded = [self._filled(self._template, query, document, truncate) for query, document in pairs]
        for i, ((a, b), (ids, _)) in enumerate(zip(pairs, encoded, strict=True)):
            if not 0 < len(ids) <= self.n_ctx:
                raise InputTooLongError(
                    f"pair {i} ({a[:30]!r}…, {b[:30]!r}…) has {len(ids)} tokens; the context holds {self.n_ctx}",
                    hint="split the document, or pass truncate=True to use its beginning",
                )
        return encoded

    def _filled(self, template: list[str], query: str, document: str, truncate: bool) -> EncodedPair:
        """Fill the template and encode it. ``truncate`` removes tokens from the document's end until the text fits."""

        def encode(document: str) -> list[int]:
            texts = {"query": query, "document": document}
            filled = [texts[part] if i % 2 else part for i, part in enumerate(template)]
            return self.tokenizer.encode("".join(filled), add_special=False)

        ids = encode(document)
        kept = self.tokenizer.encode(document, add_special=False) if truncate else []
        while kept and len(ids) > self.n_ctx:
            kept = kept[: self.n_ctx - len(ids)]
            ids = encode(self.tokenizer.decode(kept, skip_special=False))
        return EncodedPair(ids, [0] * len(ids))

    def _scores(self, logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Turn logits (b, labels) into scores (b,)."""
        if logits.shape[1] == 2:  # softmax over two labels: the first probability is the sigmoid of the difference
            return _sigmoid(logits[:, 0] - logits[:, 1])
        scores = logits[:, 0]
        return _sigmoid(scores) if self.activation == "sigmoid" else scores

    def _finish(self, pooled: Tensor) -> Tensor:
        score = getattr(self._model, "score", None)
        if score is None:
            raise ModelDefinitionError(
                f"{type(self._model).__name__} has the task RERANK, but no score(pooled)",
                hint="write `def score(self, pooled): return self.classifier(pooled)`: (b, dim) to (b, labels)",
            )
        logits: Tensor = score(pooled)
        if logits.ndim != 2 or logits.shape[0] != pooled.shape[0]:
            raise ModelDefinitionError(
                f"{type(self._model).__name__}.score gave {logits.shape}; expected ({pooled.shape[0]}, labels)"
            )
        self.n_labels = logits.shape[1]
        return logits


def _sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(under="ignore"):  # the user may have it raise
        small: np.ndarray[Any, Any] = np.exp(-np.abs(x.astype(np.float64)))  # at most 1: no overflow
    y: np.ndarray[Any, Any] = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return y
