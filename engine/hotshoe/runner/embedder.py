"""EmbeddingModel: an encoder with its tokenizer and pooling, on an opened backend."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache import UncachedView
from hotshoe.models.batch import Batch
from hotshoe.runner.base import LoadedModel
from hotshoe.runner.contexts import Built
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.errors import InputTooLongError, ModelFileError, ShapeError

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe.runner.params import RunnerParams
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.gguf import GGUFFile, Metadata

__all__ = ["EmbeddingModel", "Pooling"]

# Tokens of one graph. More gains no speed on a CPU, and the graph's memory grows with it.
_TOKENS_PER_BATCH = 2048


class Pooling(enum.IntEnum):
    """How token states become one vector: ``<arch>.pooling_type`` of a GGUF file, numbered as there."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3


class EmbeddingModel(LoadedModel):
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
        super().__init__(model, tokenizer, backend, file, n_ctx, why)
        self.dim: int = model.config.dim
        self.pooling = _pooling(file.metadata)
        self.normalize: bool = file.metadata.get("hotshoe.embedding.normalize", True)
        self._check_shapes((1, 2, True))

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
        if isinstance(texts, str):
            return self.embed([texts], truncate=truncate)[0]
        if batch_size < 1:
            raise ShapeError(f"batch_size is {batch_size}; expected 1 or more")
        ids = self._tokenize(list(texts), truncate)
        out = np.empty((len(ids), self.dim), np.float32)
        done = 0
        for rows in _batches([len(i) for i in ids], batch_size):
            out[rows] = self._run([ids[r] for r in rows])
            done += len(rows)
            if progress is not None:
                progress(done / len(ids))
        return out

    def _tokenize(self, texts: list[str], truncate: bool) -> list[list[int]]:
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

    def hidden_states(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The last layer's state of each token, before pooling: float32 (n, dim)."""
        (ids,) = self._tokenize([text], truncate=False)
        return self._run([ids], pool=False)[0]

    def _run(self, ids: list[list[int]], pool: bool = True) -> np.ndarray[Any, Any]:
        """One batch. Padded rows and columns take part in nothing: the mask and the pooling weights are 0 there."""
        lengths = np.array([len(i) for i in ids])
        n = int(lengths.max())
        tokens = np.zeros((len(ids), n), np.int32)
        for row, i in zip(tokens, ids, strict=True):
            row[: len(i)] = i
        inside = np.arange(n) < lengths[:, None]
        feeds = {
            "tokens": tokens,
            "positions": np.arange(n, dtype=np.int32),
            "mask": np.where(inside, np.float32(0), np.float32(-np.inf))[:, None, None, :],
        }
        if pool:
            feeds["pooling"] = _pooling_weights(self.pooling, inside)
        with self._lock:
            self._require_open()
            built = self._contexts.get((len(ids), n, pool))
            built.context.compute({built.inputs[name]: value for name, value in feeds.items()})
            return built.outputs[0].read()

    def _build(self, signature: tuple[int, int, bool]) -> Built:
        n_texts, n, pool = signature
        ctx = self.backend.new_context()
        batch = Batch(
            ctx.input("tokens", (n_texts, n), DType.I32),
            ctx.input("positions", (n,), DType.I32),
        )
        view = UncachedView(ctx.input("mask", (n_texts, 1, 1, n)), batch.positions)
        output: Tensor = self._model(batch, [view] * self._model.config.n_layers)  # (n_texts, n, dim)
        if pool:
            output = ctx.input("pooling", (n_texts, 1, n)) @ output
            output = ops.l2_norm(output) if self.normalize else output
            output = output.reshape(n_texts, self.dim)
        ctx.forward(output)
        return Built(ctx, ctx.inputs, (output,))


def _pooling(metadata: Metadata) -> Pooling:
    number = metadata.arch.get("pooling_type", int(Pooling.MEAN))
    if number not in (Pooling.MEAN, Pooling.CLS, Pooling.LAST):
        raise ModelFileError(
            f"pooling type {number} gives no vector a text; expected 1 (mean), 2 (CLS) or 3 (last)",
            field=f"{metadata.architecture}.pooling_type",
        )
    return Pooling(number)


def _pooling_weights(pooling: Pooling, inside: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(batch, 1, n): what each token counts for. Every pooling is a weighted sum, so one graph serves all."""
    lengths = inside.sum(axis=1, keepdims=True)
    at = np.arange(inside.shape[1])
    if pooling is Pooling.MEAN:
        weights = inside / lengths
    else:
        weights = at == (0 if pooling is Pooling.CLS else lengths - 1)
    return np.broadcast_to(weights, inside.shape).astype(np.float32)[:, None, :]


def _batches(lengths: list[int], batch_size: int) -> Iterator[list[int]]:
    """Rows in batches of like length, longest first: the least padding, and the largest graph is reserved first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        longest = lengths[order[start]]
        size = max(1, min(batch_size, _TOKENS_PER_BATCH // longest))
        yield order[start : start + size]
        start += size
