"""Collect importance matrices: how large the inputs of each matrix are while a model reads a text.

The method is that of llama.cpp's tool. The text is divided into chunks of equal length, and the model reads each chunk
from an empty context. For each matrix of a layer, the squares of each input column are summed. The device of the model
computes the sums, in the model's own graph, and computes nothing else of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.quantize._imatrix import Importance, ImportanceMatrix
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import BackendError, InputTooLongError, InputTypeError
from hotshoe_core.errors.arguments import described, integer
from hotshoe_core.inspect.trace import compute_nodes, observe
from hotshoe_core.tensors.tensor import Tensor, constant

if TYPE_CHECKING:
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.reranker import RerankModel
    from hotshoe_core import Backend
    from hotshoe_core.graphs.context import Context

__all__ = ["collect_importance"]

Array = np.ndarray[Any, Any]
_LAYER_PREFIX = "blk."


def collect_importance(
    model: TextModel | EmbeddingModel | RerankModel,
    text: str,
    *,
    chunk_size: int = 512,
    n_chunks: int | None = None,
    dataset: str = "",
    progress: Callable[[float], None] | None = None,
) -> ImportanceMatrix:
    """Measure how much each column of the model's matrices matters for a text.

    Use a text like those that the model will be used with, and a model in full precision. Do not use the model for
    anything else until this returns.

    text: read in chunks of ``chunk_size`` tokens. Tokens that do not fill a chunk are ignored.
    n_chunks: the maximum number of chunks; None for all.
    dataset: the name of the text, to be stored in the file.
    progress: called with a fraction from 0 to 1.

    Raises InputTooLongError if the text is shorter than one chunk, or a chunk is longer than the model's context;
    BackendError if the model computes values that are not numbers.
    """
    if not isinstance(text, str):
        raise InputTypeError(f"text is {described(text)}; expected a str")
    size = integer("chunk_size", chunk_size, 2, InputTooLongError)
    limit = None if n_chunks is None else integer("n_chunks", n_chunks, 1, InputTooLongError)
    if isinstance(model, TextModel) and size > model.params.max_graph_rows:
        raise InputTooLongError(
            f"chunks have {size} tokens, but a graph takes at most {model.params.max_graph_rows}, and a chunk must fit "
            "into one: graphs without logits do not compute all inputs of the last layer",
            hint=f"use n_batch={size}, or use smaller chunks",
        )
    chunks = list(_chunks(model, text, size))[:limit]
    collector = _Collector(model.backend)
    with observe(collector):
        for i, chunk in enumerate(chunks):
            if progress is not None:
                progress(i / len(chunks))
            _read(model, chunk)
    if progress is not None:
        progress(1.0)
    weights = {name: collector.sums[name].importance(name) for name in collector.sums}
    return ImportanceMatrix(weights, (dataset,) if dataset else (), len(chunks), size)


def _chunks(model: TextModel | EmbeddingModel | RerankModel, text: str, size: int) -> Iterator[list[int]]:
    if size > model.n_ctx:
        raise InputTooLongError(
            f"chunks have {size} tokens, but the context holds {model.n_ctx}",
            hint=f"use smaller chunks: chunk_size={model.n_ctx}",
        )
    ids = model.tokenizer.encode(text)
    if len(ids) < size:
        raise InputTooLongError(
            f"the text has {len(ids)} tokens; expected at least {size}, one chunk, and better a hundred times as many",
            hint="use a longer text, or smaller chunks: chunk_size=128",
        )
    special = model.tokenizer.encode("")[:1]  # a token before every text, or only after it
    prefix = special if special == ids[:1] else []
    for start in range(0, len(ids) - size + 1, size):
        chunk = ids[start : start + size]
        chunk[: len(prefix)] = prefix
        yield chunk


def _read(model: TextModel | EmbeddingModel | RerankModel, chunk: list[int]) -> None:
    if not isinstance(model, TextModel):
        with suppress(_RunCancelled):
            model.states_of(chunk)
        return
    model.engine.forget()  # otherwise chunks with the same beginning would share computed rows
    # without pace: a chunk is one graph
    with model.sequence() as sequence, model.engine.without_pace(), suppress(_RunCancelled):
        sequence.append(*chunk)


class _RunCancelled(Exception):  # noqa: N818  (not an error)
    """Cancels the run of a chunk after its sums are collected: the results of the run are not needed."""


class _Statistics(NamedTuple):
    """The tensors to compute for the inputs of one matrix."""

    squares: Tensor
    """Sums of squares: (matrices, columns) or (columns,)."""
    counts: Tensor | int
    """Rows that were summed: one number, or one for each expert."""


class _Sums(NamedTuple):
    """The totals of one weight over all chunks, float64, in the shapes of _Statistics."""

    squares: Array
    counts: Array

    def importance(self, name: str) -> Importance:
        """The totals as float32. Raises BackendError if they are not numbers."""
        if not np.isfinite(self.squares).all():
            raise BackendError(
                f"the inputs of {name} are not numbers (NaN or infinite)", hint="try a file in f32, or another device"
            )
        counts = self.counts.reshape(-1).astype(np.float32)
        return Importance(self.squares.reshape(len(counts), -1).astype(np.float32), counts)


_NONE = _Sums(np.zeros(()), np.zeros(()))


class _Collector:
    """Replaces each run of the model by a run that sums the squares of the inputs of its matrices."""

    def __init__(self, backend: Backend) -> None:
        self.sums: dict[str, _Sums] = {}
        self._backend = backend

    def before_run(self, context: Context, fed: Mapping[Tensor, Array]) -> None:
        """Compute and add the sums, then cancel the run."""
        if context.backend is not self._backend:
            return
        inputs = {tensor.name: array for tensor, array in fed.items()}
        n_rows = inputs["tokens"].size
        # sequence 0 comes first; the rows after it pad the graph
        n = int((inputs["sequences"] == 0).sum()) if "sequences" in inputs else n_rows
        statistics = _statistics(context.graph().nodes, n_rows, n)
        outputs = [t for pair in statistics.values() for t in pair if isinstance(t, Tensor)]
        values = compute_nodes(self._backend, list(dict.fromkeys(outputs)), fed)
        for name, (squares, counts) in statistics.items():
            new = (values[squares], counts if isinstance(counts, int) else values[counts])
            self.sums[name] = _Sums(*(a + np.asarray(b, np.float64) for a, b in zip(self.sums.get(name, _NONE), new)))
        raise _RunCancelled


def _statistics(nodes: Iterable[Tensor], n_rows: int, n: int) -> dict[str, _Statistics]:
    """The statistics of each matrix of a layer, by its name. Only the first ``n`` of ``n_rows`` rows are summed."""
    by_name: dict[str, _Statistics] = {}
    by_input: dict[tuple[Tensor | None, ...], _Statistics] = {}  # queries, keys and values share one input
    for node in nodes:
        rule = _RULES.get(node.op)
        weight = node.sources[1] if rule is not None else None
        if rule is None or weight is None or weight.op != "weight" or not weight.name.startswith(_LAYER_PREFIX):
            continue
        key = (node.sources[0], *node.sources[2:])
        if key not in by_input:
            by_input[key] = rule(node, n_rows, n)
        by_name[weight.name] = by_input[key]
    return by_name


def _linear(node: Tensor, n_rows: int, n: int) -> _Statistics:
    x = _source(node, 0)
    rows = x.reshape(-1, x.shape[-1])
    m = len(rows) * n // n_rows  # a token may have several rows
    rows = rows[:m]
    return _Statistics((rows * rows).sum(axis=0), m)


def _matmul(node: Tensor, n_rows: int, n: int) -> _Statistics:
    """For one matrix per head, as in latent attention: x is (heads, n, columns)."""
    x = _source(node, 0)[..., :n, :]
    return _Statistics((x * x).sum(axis=-2), n)


def _experts(node: Tensor, n_rows: int, n: int) -> _Statistics:
    """For experts: x is (n, 1 or k, columns), and chosen, (n, k), holds the experts of each row."""
    x, weight, chosen = (_source(node, i) for i in range(3))
    x, chosen = x[:n], chosen[:n]
    one_hot = constant(np.eye(len(weight), dtype=np.float32)).take(chosen)  # (n, k, experts)
    if x.shape[1] != chosen.shape[1]:  # all experts of a token read the same row
        one_hot = one_hot.sum(axis=1, keepdims=True)
    one_hot = one_hot.reshape(-1, len(weight))
    rows = x.reshape(-1, x.shape[-1])
    return _Statistics(one_hot.permute(1, 0) @ (rows * rows), one_hot.sum(axis=0))


def _source(node: Tensor, i: int) -> Tensor:
    source = node.sources[i]
    assert source is not None
    return source


_RULES = {"linear": _linear, "matmul": _matmul, "linear_experts": _experts}
