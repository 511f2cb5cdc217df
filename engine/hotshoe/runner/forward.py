"""TextForward: one graph of a text model for the next rows of several sequences, built once for each shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.kvcache import AttentionSpec, Cache, LayerSpec, Sizes, StateView
from hotshoe.nn.batch import Batch
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.items import Items, SpanRow
from hotshoe.runner.prefix import Part
from hotshoe.runner.scheduler import bucket
from hotshoe_core import DType, Tensor
from hotshoe_core.errors import InputTooLongError, ModelDefinitionError, ShapeError, TokenizerError

if TYPE_CHECKING:
    from hotshoe.runner.base import TextModule
    from hotshoe.sampling import DeviceOp
    from hotshoe_core import Backend

__all__ = ["Signature", "TextForward", "TextWork", "most_padding"]

Array = np.ndarray[Any, Any]

_GRAPHS = 8  # of the largest kind whose memory is kept
_SMALL = 16  # graphs of a few rows that take as much memory as a large one


class Signature(NamedTuple):
    """All that a graph depends on. ``n_rows`` and ``n_outputs`` are padded sizes."""

    n_rows: int
    n_sequences: int
    sizes: Sizes
    n_outputs: int
    op: DeviceOp | None = None
    n_embeddings: int = 0


@dataclass(slots=True)
class TextWork:
    """The inputs of one graph. ``n_outputs``: how many of its rows are asked for, without padding."""

    n_rows: int
    n_sequences: int
    n_outputs: int
    op: DeviceOp | None
    n_embeddings: int
    feeds: dict[str, Any]
    sizes: Sizes = ()

    def placed(self, feeds: dict[str, Any], sizes: Sizes) -> None:
        self.feeds |= feeds
        self.sizes = sizes


def most_padding(n_rows: int) -> int:
    """The most rows that padding adds to a graph of up to ``n_rows``."""
    return max(bucket(n) - n for n in range(1, n_rows + 1))


class TextForward:
    """The graphs of one model over one cache. Sizes are rounded up to buckets: mixed steps find their graphs again."""

    def __init__(
        self, model: TextModule, backend: Backend, cache: Cache, spec: Sequence[LayerSpec], *, n_ctx: int, n_ubatch: int
    ) -> None:
        self.n_vocab = 0  # known when the first graph is built
        self._model = model
        self._backend = backend
        self._cache = cache
        self._n_ctx = n_ctx
        self._n_ubatch = n_ubatch
        self._n_streams = _n_streams(spec)
        least = max(1, n_ubatch // _SMALL)
        self.contexts: ContextCache[Signature] = ContextCache(
            self.build, _GRAPHS * n_ubatch, weight=lambda s: max(least, min(n_ubatch, s.n_rows))
        )

    def check(self, items: Items, before: int = 0) -> None:
        """Whether a sequence can take its rows from ``before`` on: in a step, all that take part would fail with it.

        Raises InputTooLongError for none at all, or more than the context holds; TokenizerError for what is no token;
        ShapeError for a span that does not fit the model.
        """
        n = len(items)
        if not n:
            raise InputTooLongError("no tokens were given; expected 1 or more", hint="begin with tokenizer.bos")
        if n > self._n_ctx:
            raise InputTooLongError(
                f"{n} tokens were given; the context holds {self._n_ctx}",
                hint="load the model with a larger n_ctx, or shorten the text",
            )
        for row in items.rows[before:]:
            if not isinstance(row, SpanRow) and not 0 <= row < self.n_vocab:
                raise TokenizerError(f"token id {row} is outside the vocabulary of {self.n_vocab} tokens")
        for at in items.spans:
            if at.start >= before:
                self._check_span(at.span)

    def _check_span(self, span: Any) -> None:
        dim = self._model.config.dim
        if span.array.shape[1] != dim:
            raise ShapeError(f"a span of embeddings is {span.array.shape}; the model takes rows of {dim}")
        if span.bidirectional and self._cache.uniform:
            raise ShapeError("a span is bidirectional; this model's recurrent layers read in one direction only")
        if span.bidirectional and len(span) > self._n_ubatch:
            raise InputTooLongError(
                f"a bidirectional span has {len(span)} rows; one graph computes at most n_ubatch={self._n_ubatch}",
                hint="load the model with a larger n_ubatch",
            )
        own = span.positions
        if own is not None and own.ndim == 2 and len(own) != self._n_streams:
            raise ShapeError(
                f"a span has {len(own)} streams of positions; the model takes "
                + (str(self._n_streams) if self._n_streams else "one position a row")
            )

    def prepare(self, parts: Sequence[Part], op: DeviceOp | None) -> TextWork:
        """The inputs that tell what the rows are; the cache adds those that tell where they go."""
        n = sum(part.n for part in parts)
        n_rows = n if self._cache.uniform else bucket(n)
        tokens: list[int] = []
        sequences: list[int] = []
        positions = np.zeros((self._n_streams, n_rows) if self._n_streams else n_rows, np.int32)
        outputs: list[int] = []
        spans: list[Array] = []
        span_rows: list[int] = []
        row = 0
        for i, (sequence, size, n_outputs) in enumerate(parts):
            items, start, end = sequence.items, sequence.n_computed, row + size
            given: list[Any] = items.rows[start : start + size]
            if items.spans:
                arrays, places = items.embeddings(start, size)
                spans += arrays
                span_rows += [row + place for place in places]
                given = [0 if isinstance(r, SpanRow) else r for r in given]
                positions[..., row:end] = items.positions(start, size, self._n_streams)
            else:
                positions[..., row:end] = np.arange(start, start + size)
            tokens += given
            sequences += [i] * size
            outputs += range(end - n_outputs, end)
            row = end
        padding = n_rows - n  # a sequence of its own
        padded = outputs + [0] * (bucket(len(outputs)) - len(outputs))
        feeds: dict[str, Any] = {
            "tokens": np.array(tokens + [0] * padding, np.int32),
            "positions": positions,
            "sequences": np.array(sequences + [len(parts)] * padding, np.int32),
            "outputs": np.array(padded or [0], np.int32),
        }
        if spans:
            feeds["embeddings"] = np.concatenate(spans)
            feeds["embedding_rows"] = np.array(span_rows, np.int32)
        n_sequences = len(parts) if self._cache.uniform else 1
        return TextWork(n_rows, n_sequences, len(outputs), op, len(span_rows), feeds)

    def compute(self, work: TextWork) -> list[Array]:
        """The logits of the rows asked for, or what ``work.op`` names of them; nothing, where there are none."""
        n_outputs = bucket(work.n_outputs)
        signature = Signature(
            work.n_rows, work.n_sequences, work.sizes, n_outputs, work.op if n_outputs else None, work.n_embeddings
        )
        built = self.contexts.get(signature)
        feeds = work.feeds
        built.context.compute({tensor: feeds[name] for name, tensor in built.inputs.items()})
        results = [output.read() for output in built.outputs]
        return results if n_outputs == work.n_outputs else [r[: work.n_outputs] for r in results]

    def signature(self, n_rows: int) -> Signature:
        """Of the graph that computes the next ``n_rows`` of one text, and the logits after the last."""
        return Signature(n_rows if self._cache.uniform else bucket(n_rows), 1, self._cache.sizes, 1)

    def largest(self) -> Signature:
        """Of the graph that takes the most memory: all its rows, over a cache that is full."""
        sizes = self._cache.largest
        return self.signature(min([self._n_ubatch, *sizes]))._replace(sizes=sizes)

    def build(self, signature: Signature) -> Built:
        """The graph of these shapes."""
        n, n_sequences, sizes, n_outputs, op, n_embeddings = signature
        ctx = self._backend.new_context()
        positions = (self._n_streams, n) if self._n_streams else (n,)
        batch = Batch(
            tokens=ctx.input("tokens", (n,), DType.I32),
            positions=ctx.input("positions", positions, DType.I32),
            outputs=ctx.input("outputs", (max(1, n_outputs),), DType.I32),
            sequences=ctx.input("sequences", (n,), DType.I32),
            n_sequences=n_sequences,
        )
        if n_embeddings:
            batch = batch._replace(
                embeddings=ctx.input("embeddings", (n_embeddings, self._model.config.dim)),
                embedding_rows=ctx.input("embedding_rows", (n_embeddings,), DType.I32),
            )
        views = self._cache.layers(ctx, n, n_sequences, sizes)
        logits = self._model(batch, views)
        for view in views:
            if isinstance(view, StateView):
                view.require_written()
        k = max(1, n_outputs)
        if logits.ndim != 2 or logits.shape[0] != k:
            raise ModelDefinitionError(
                f"{type(self._model).__name__} gave {logits.shape}; expected (outputs, vocab), one row for each of "
                f"batch.outputs ({k})",
                hint="x.take(batch.outputs) before the last norm and the output matrix",
            )
        self.n_vocab = logits.shape[1]
        if n_outputs == 0:  # keys, values and states only
            return Built(ctx, ctx.inputs, ())
        if op is None:
            results: tuple[Tensor, ...] = (logits,)
        else:
            best = logits.argmax()[:, None] if op.op == "argmax" else logits.top_k(min(op.k, self.n_vocab))
            results = (best, logits.take_along(best))
        ctx.forward(*results)
        return Built(ctx, ctx.inputs, results)


def _n_streams(spec: Sequence[LayerSpec]) -> int:
    """Streams of positions that the model's RoPE takes: 0 for one position a row."""
    ropes = [s.rope for s in spec if isinstance(s, AttentionSpec) and s.rope is not None]
    return max((len(rope.sections) for rope in ropes), default=0)
