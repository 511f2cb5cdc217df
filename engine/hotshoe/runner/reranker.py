"""RerankModel: how well documents answer a query, by a model that reads both together (a cross-encoder)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.runner.pooling import Pooling, pooling_of
from hotshoe.runner.whole_texts import Shape, WholeTexts
from hotshoe.tokenizers import EncodedPair
from hotshoe_core import Tensor
from hotshoe_core.errors import InputTooLongError, InputTypeError, ModelDefinitionError, ModelFileError, ShapeError
from hotshoe_core.errors.arguments import flag, integer, listed

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe.runner.params import RunnerParams
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.gguf import GGUFFile

__all__ = ["RerankModel"]

_ACTIVATION = "hotshoe.rerank.activation"
_TEMPLATE = "tokenizer.chat_template.rerank"
_BLANK = re.compile(r"\{(query|document)\}")


class RerankModel(WholeTexts):
    """Pairs of texts to scores. Made by ``hotshoe.load_model``; thread-safe.

    A score is what sentence-transformers' CrossEncoder gives: the sigmoid of the classifier's logit, unless the file
    says that the logit itself is meant (``hotshoe.rerank.activation`` "identity"). A causal model has two labels, "yes"
    and "no" (Qwen3-Reranker): its score is the probability of the first. Where the file has a text to be filled in
    (``tokenizer.chat_template.rerank``, with {query} and {document}), the model reads that.
    """

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
        pooling_of(file.metadata, Pooling.RANK, Pooling.RANK)
        self.pooling = Pooling.LAST if self.causal else Pooling.CLS
        self.activation: str = file.metadata.get(_ACTIVATION, "sigmoid")
        if self.activation not in ("sigmoid", "identity"):
            raise ModelFileError(f"is {self.activation!r}; expected 'sigmoid' or 'identity'", field=_ACTIVATION)
        template = file.metadata.get(_TEMPLATE, None, str)
        self._template = None if template is None else _BLANK.split(template)  # text, blank, text, blank, text
        if self._template is not None and sorted(self._template[1::2]) != ["document", "query"]:
            raise ModelFileError("expected a text with {query} and {document}, once each", field=_TEMPLATE)
        self.n_labels = 0  # known when the first graph is built
        self._check_shapes(lambda: self._build(Shape(1, 2, typed=True)).context.close())
        if self.n_labels != (2 if self.causal else 1):
            raise ModelFileError(
                f"{file.path}: the classifier has {self.n_labels} labels, which make no ranking; "
                + ("expected 2, yes and no" if self.causal else "expected 1")
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
        """The documents' indices with their scores, best first; of equal ones the first comes first.

        top_n: how many; None for all. The rest is as for ``scores``.
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
        """One score a pair, float32 (n,), in the order given.

        truncate: cut pairs that have more than ``n_ctx`` tokens instead of raising InputTooLongError. batch_size: how
        many pairs at most go through the model at once. progress: called with 0 to 1.
        """
        self._require_open()
        batch_size = integer("batch_size", batch_size, 1, ShapeError)
        given = listed("pairs", pairs, "an iterable of pairs of texts", InputTypeError)
        encoded = self._encode(given, flag("truncate", truncate))
        out = np.empty(len(encoded), np.float32)
        lengths = [len(ids) for ids, _ in encoded]

        def compute(rows: list[int]) -> np.ndarray[Any, Any]:
            return self._scores(self._compute([encoded[r][0] for r in rows], [encoded[r][1] for r in rows]))

        return self._in_batches(out, lengths, batch_size, compute, progress)

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
        """``truncate`` takes from the document's end until the whole fits, if there is enough of it."""

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
        """(b, labels) to (b,)."""
        if logits.shape[1] == 2:  # the first of two probabilities is the sigmoid of the difference
            return _sigmoid(logits[:, 0] - logits[:, 1])
        scores = logits[:, 0]
        return _sigmoid(scores) if self.activation == "sigmoid" else scores

    def _finish(self, pooled: Tensor) -> Tensor:
        score = getattr(self._model, "score", None)
        if score is None:
            raise ModelDefinitionError(
                f"{type(self._model).__name__} has the task RERANK and no score(pooled)",
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
