"""TextForward: the graphs of a text model. One graph computes the next rows of several sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.kvcache import AttentionSpec, Cache, CrossCache, LayerSpec, Sizes, StateView, most_attended, part_of
from hotshoe.kvcache.buckets import round_up, rows_per_octave
from hotshoe.kvcache.spec import parts_of
from hotshoe.nn import Decoder
from hotshoe.nn.batch import Batch
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.items import MAX_POSITION, Items, SpanRow
from hotshoe.runner.pipeline import Results
from hotshoe.runner.scheduler import Chunk
from hotshoe_core import DType, Tensor
from hotshoe_core.errors import InputEmptyError, InputTooLongError, ModelDefinitionError, ShapeError, TokenizerError
from hotshoe_core.errors.text import shown

if TYPE_CHECKING:
    from hotshoe.runner.base import TextModule
    from hotshoe.sampling import DeviceSampling
    from hotshoe_core import Backend

__all__ = ["TextForward", "TextSignature", "TextWork", "max_padding"]

Array = np.ndarray[Any, Any]

_MAX_GRAPHS = 128  # of the smallest size
_LARGE_GRAPHS = 8  # of the largest size: each has memory for its rows
_MANY_ROWS, _OUTPUTS = 64, 4  # graphs of many rows give a multiple of 4 outputs: three more cost little there
_STORING_GRAPHS = 2  # each has memory for the rows of its pictures
_GRAPHS_OF_FEW_LENGTHS = 96  # of any size, if the backend wants few lengths: it builds slowly, and they share memory


class TextSignature(NamedTuple):
    """The values that a graph of a text model depends on. ``n_rows`` and ``n_outputs`` include padding."""

    n_rows: int
    n_sequences: int
    sizes: Sizes
    n_outputs: int
    sampling: DeviceSampling | None = None
    n_embeddings: int = 0


class TextWork(NamedTuple):
    """A graph to compute: its signature, the values of its inputs, and its outputs without padding."""

    signature: TextSignature
    feeds: dict[str, Array]
    n_outputs: int
    encoded: Array | None = None
    """(m, dim): the rows of encoders' outputs whose keys and values are to be stored before the graph is computed."""


def max_padding(n_rows: int, per_octave: int) -> int:
    """Return the largest number of rows that padding adds to a graph of up to ``n_rows`` rows."""
    n = 1 + (1 << max(1, n_rows - 1).bit_length() - 1)  # the largest power of two plus 1 among them
    return round_up(n, per_octave) - n


class TextForward:
    """The graphs of one model over one cache. Sizes are rounded up to buckets, so that steps can reuse graphs."""

    def __init__(
        self,
        model: TextModule,
        backend: Backend,
        cache: Cache,
        spec: Sequence[LayerSpec],
        *,
        n_ctx: int,
        n_trained: int,
        n_ubatch: int,
    ) -> None:
        """n_trained: the longest context that the model was trained for."""
        self.n_vocab = 0  # known after the first graph is built
        self._n_embedded = 0  # tokens that a text may have: a few have no logit, as those that stand for pictures
        self._model = model
        self._backend = backend
        self._cache = cache
        self._n_ctx = n_ctx
        self._n_trained = n_trained
        self._n_ubatch = n_ubatch
        self.n_streams = _n_streams(spec)
        self._cross = part_of(cache, CrossCache)
        self._drafting = model if isinstance(model, Decoder) and model.nextn else None
        self._started: Built | None = None  # the graph
        self._storing: ContextCache[int] = ContextCache(self._build_storing, _STORING_GRAPHS)
        self._per_octave = rows_per_octave(backend)
        self.contexts: ContextCache[TextSignature]
        if backend.cache_config().lengths_per_octave is not None:
            self.contexts = ContextCache(self.build, _GRAPHS_OF_FEW_LENGTHS)
        else:
            min_weight = max(1, _LARGE_GRAPHS * n_ubatch // _MAX_GRAPHS)
            self.contexts = ContextCache(
                self.build, _LARGE_GRAPHS * n_ubatch, weight=lambda s: max(min_weight, min(n_ubatch, s.n_rows))
            )

    @property
    def n_graphs_built(self) -> int:
        """How many graphs were built so far."""
        return self.contexts.n_built

    def check(self, items: Items, before: int = 0) -> None:
        """Raise an error unless the model can compute the rows from ``before`` on.

        Without this check, all jobs of a step would fail with the invalid one. Raises InputEmptyError for an empty
        sequence; InputTooLongError for more rows than the context holds; TokenizerError for a token id outside the
        vocabulary; ShapeError for a span that does not fit the model.
        """
        n = len(items)
        if not n:
            raise InputEmptyError("no tokens were given; expected 1 or more", hint="begin with tokenizer.bos")
        if n > self._n_ctx:
            raise InputTooLongError(
                f"{n} tokens were given; the context holds {self._n_ctx}", hint=self.too_long_hint("text")
            )
        for row in items.rows[before:]:
            token = row.token if isinstance(row, SpanRow) else row
            if token is not None and not 0 <= token < self._n_embedded:
                raise TokenizerError(f"token id {shown(token)} is outside the vocabulary of {self._n_embedded} tokens")
        added = [entry.span for entry in items.spans if entry.start >= before]
        for span in added:
            self._check_span(span)
        if not added:
            return
        self._check_room(items)
        last = self._n_ctx + sum(entry.span.extent - len(entry.span) for entry in items.spans)
        if last > MAX_POSITION:
            raise ShapeError(
                f"with the positions of its spans, the sequence would reach position {last}; expected at most "
                f"{MAX_POSITION}"
            )

    def too_long_hint(self, what: str) -> str:
        """Return what to do if ``what`` has more tokens than the context."""
        if self._n_ctx >= self._n_trained:
            return f"shorten the {what}; the model was trained for at most {self._n_trained} tokens"
        return f"use a larger n_ctx, or shorten the {what}"

    def _check_span(self, span: Any) -> None:
        dim = self._model.span_width
        if span.array.shape[1] != dim:
            raise ShapeError(f"a span of embeddings is {span.array.shape}; the model takes rows of {dim}")
        if span.bidirectional and self._cache.uniform:
            raise ShapeError("a span is bidirectional; this model's recurrent layers read in one direction only")
        if span.bidirectional and len(span) > self._n_ubatch:
            raise InputTooLongError(
                f"a bidirectional span has {len(span)} rows; one graph computes at most n_ubatch={self._n_ubatch}",
                hint="use a larger n_ubatch",
            )
        if span.token is not None and self._cross is None:
            raise ShapeError(
                "a token stands for a span of embeddings, but no layer of the model attends to an encoder's rows",
                hint="leave out `token`, or load the model with its encoder",
            )
        positions = span.positions
        if positions is not None and positions.ndim == 2 and len(positions) != self.n_streams:
            raise ShapeError(
                f"a span has {len(positions)} streams of positions; the model takes "
                + (str(self.n_streams) if self.n_streams else "one position a row")
            )

    def _check_room(self, items: Items) -> None:
        """Raise InputTooLongError if spans that a row attends to have more rows than the cache has room for."""
        n = most_attended((entry.start, len(entry.span.array)) for entry in items.attended(0, len(items)))
        room = 0 if self._cross is None else self._cross.n_rows
        if n > room:
            raise InputTooLongError(
                f"pictures that follow each other directly have {n} rows; the cache has room for {room}",
                hint="use a larger n_sequences, or put a text between the pictures",
            )

    def padded_rows(self, n: int) -> int:
        """Return the number of rows of the graph that computes ``n`` rows, with padding."""
        return n if self._cache.uniform else round_up(n, self._per_octave)

    def prepare(
        self,
        chunks: Sequence[Chunk[Any]],
        sampling: DeviceSampling | None,
        n_rows: int,
        feeds: dict[str, Array],
        sizes: Sizes,
    ) -> TextWork:
        """Gather the inputs of a graph of ``n_rows`` rows. Adds the others to ``feeds``, which has the cache's."""
        tokens: list[int] = []
        sequences: list[int] = []
        positions = np.zeros((self.n_streams, n_rows) if self.n_streams else n_rows, np.int32)
        outputs: list[int] = []
        spans: list[Array] = []
        span_rows: list[int] = []
        encoded: list[Array] = []
        row = 0
        for i, (job, n, n_needed, _) in enumerate(chunks):
            items, start, end = job.sequence.items, job.sequence.n_computed, row + n
            rows: list[Any] = job.sequence.rows(start, n)
            if items.spans:
                arrays, indices = items.embeddings(start, n)
                spans += arrays
                span_rows += [row + index for index in indices]
                encoded += [entry.span.array for entry in items.attended(start, n)]
                rows = [r.token or 0 if isinstance(r, SpanRow) else r for r in rows]
                positions[..., row:end] = items.positions(start, n, self.n_streams)
            else:
                positions[..., row:end] = np.arange(start, start + n)
            tokens += rows or [0] * n  # the next row of a text whose token is not known yet
            sequences += [i] * n
            outputs += range(end - n_needed, end)
            row = end
        padding = n_rows - row
        n_outputs = round_up(len(outputs), self._per_octave)
        if n_outputs > 1 and n_rows >= _MANY_ROWS:
            n_outputs = -(-n_outputs // _OUTPUTS) * _OUTPUTS
        feeds["tokens"] = np.array(tokens + [0] * padding, np.int32)
        feeds["positions"] = positions
        feeds["sequences"] = np.array(sequences + [len(chunks)] * padding, np.int32)  # padding: one more sequence
        feeds["outputs"] = np.array(outputs + [0] * (max(1, n_outputs) - len(outputs)), np.int32)
        if spans:
            feeds["embeddings"] = np.concatenate(spans)
            feeds["embedding_rows"] = np.array(span_rows, np.int32)
        n_sequences = len(chunks) if self._cache.uniform else 1
        signature = TextSignature(
            n_rows, n_sequences, sizes, n_outputs, sampling if n_outputs else None, len(span_rows)
        )
        return TextWork(signature, feeds, len(outputs), np.concatenate(encoded) if encoded else None)

    def set_tokens(self, work: TextWork, tokens: Sequence[int]) -> None:
        """Set the tokens of the first rows."""
        work.feeds["tokens"][: len(tokens)] = tokens

    def compile(self, work: TextWork) -> None:
        """Compile the graph, unless that was done before. Another one may be computed meanwhile."""
        self.contexts.get(work.signature).context.reserve()

    def start(self, work: TextWork) -> bool:
        """Begin to compute the graph. Return whether the device still computes it."""
        signature, feeds, _, encoded = work
        if encoded is not None:
            storing = self._storing.get(len(encoded))
            values = {"encoded": encoded, "cross.cells": feeds["cross.cells"]}
            storing.context.compute({tensor: values[name] for name, tensor in storing.inputs.items()})
        self._started = built = self.contexts.get(signature)
        return built.context.start({tensor: feeds[name] for name, tensor in built.inputs.items()})

    def finish(self, work: TextWork) -> Results:
        """Wait for the graph that was started last: return its results; none if no row was requested."""
        built = self._started
        assert built is not None
        results = [built.context.read_once(output) for output in built.outputs]
        if not results:
            built.context.wait()
        if work.n_outputs != work.signature.n_outputs:
            results = [r[: work.n_outputs] for r in results]
        return Results(results) if self._drafting is None or not results else Results(results[:-1], results[-1])

    def close(self) -> None:
        """Close all graphs. Idempotent."""
        self.contexts.close()
        self._storing.close()

    def signature(self, n: int) -> TextSignature:
        """Return the signature of a graph for the next ``n`` rows of one text and the logits after the last row."""
        return TextSignature(self.padded_rows(n), 1, self._cache.sizes, 1)

    def largest(self) -> TextSignature:
        """Return the signature of the graph that takes the most memory: the most rows over a full cache."""
        sizes = self._cache.max_sizes
        cells = sizes if self._cross is None else sizes[:-1]  # its cells, the last ones, hold no rows of texts
        return TextSignature(self.padded_rows(min([self._n_ubatch, *cells])), 1, sizes, 1)

    def _build_storing(self, n: int) -> Built:
        """Build the graph that stores keys and values of ``n`` rows of encoders' outputs."""
        assert self._cross is not None  # prepare found spans that layers attend to
        ctx = self._backend.new_context()
        rows = ctx.input("encoded", (n, self._model.span_width))
        self._model.store(rows, self._cross.storing_views(ctx, n))
        return Built(ctx, ctx.inputs, ())

    def build(self, signature: TextSignature) -> Built:
        """Build the graph of a signature. Raises ModelDefinitionError for logits of a wrong shape."""
        n, n_sequences, sizes, n_outputs, sampling, n_embeddings = signature
        ctx = self._backend.new_context()
        positions = (self.n_streams, n) if self.n_streams else (n,)
        batch = Batch(
            tokens=ctx.input("tokens", (n,), DType.I32),
            positions=ctx.input("positions", positions, DType.I32),
            outputs=ctx.input("outputs", (max(1, n_outputs),), DType.I32),
            sequences=ctx.input("sequences", (n,), DType.I32),
            n_sequences=n_sequences,
        )
        if n_embeddings:
            batch = batch._replace(
                embeddings=ctx.input("embeddings", (n_embeddings, self._model.span_width)),
                embedding_rows=ctx.input("embedding_rows", (n_embeddings,), DType.I32),
            )
        views = self._cache.views(ctx, n, n_sequences, sizes)
        hidden: tuple[Tensor, ...] = ()
        if self._drafting is None:
            logits = self._model(batch, views)
        else:
            logits, after = self._drafting.with_hidden(batch, views)
            hidden = (after,)
        for entry in views:
            for view in entry if isinstance(entry, tuple) else (entry,):
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
        self._n_embedded = max(self.n_vocab, self._model.config.n_vocab)
        if n_outputs == 0:  # the graph only updates the cache
            return Built(ctx, ctx.inputs, ())
        if sampling is None:
            results: tuple[Tensor, ...] = (logits,)
        else:
            best = (
                logits.argmax()[:, None] if sampling.kind == "argmax" else logits.top_k(min(sampling.k, self.n_vocab))
            )
            results = (best, logits.take_along(best))
        results += hidden
        ctx.forward(*results)
        return Built(ctx, ctx.inputs, results)


def _n_streams(spec: Sequence[LayerSpec]) -> int:
    """Return the streams of positions that the model's RoPE takes: 0 for one position for each row."""
    ropes = [s.rope for s in parts_of(spec).values() if isinstance(s, AttentionSpec) and s.rope is not None]
    return max((len(rope.sections) for rope in ropes), default=0)
