"""Importance matrices from a model at work: what goes into each of its matrices, while it reads a text.

As llama.cpp's tool collects them: the text's tokens in chunks of one length, each read by itself from the start; of
each matrix of a layer the sum of squares of each input column. The sums are taken where the model runs, in the model's
own graph, of which nothing but them is computed.
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
_OF_LAYERS = "blk."


def collect_importance(
    model: TextModel | EmbeddingModel | RerankModel,
    text: str,
    *,
    chunk_size: int = 512,
    n_chunks: int | None = None,
    dataset: str = "",
    progress: Callable[[float], None] | None = None,
) -> ImportanceMatrix:
    """How much each column of each of the model's matrices matters, for a text like those it will be used on.

    The text is read in chunks of ``chunk_size`` tokens, of which what remains is left out; n_chunks: at most so many,
    None for all. dataset: what the file is to call the text. Quantize with a matrix that was made from the model in
    full precision. Nothing else may use the model meanwhile.

    Raises InputTooLongError for a text shorter than one chunk, or chunks longer than the model's context; BackendError
    where the model gives what is no number.
    """
    if not isinstance(text, str):
        raise InputTypeError(f"text is {described(text)}; expected a str")
    size = integer("chunk_size", chunk_size, 2, InputTooLongError)
    most = None if n_chunks is None else integer("n_chunks", n_chunks, 1, InputTooLongError)
    if isinstance(model, TextModel) and size > model.params.rows:
        raise InputTooLongError(
            f"a chunk of {size} tokens is more than one graph takes, {model.params.rows}: in graphs that give no "
            "logits the last layer computes keys and values only",
            hint=f"load the model with RunnerParams(n_batch={size}), or take smaller chunks",
        )
    chunks = list(_chunks(model, text, size))[:most]
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
            f"a chunk of {size} tokens is longer than the context, which holds {model.n_ctx}",
            hint=f"take smaller chunks: chunk_size={model.n_ctx} (--chunk-size {model.n_ctx})",
        )
    ids = model.tokenizer.encode(text)
    if len(ids) < size:
        raise InputTooLongError(
            f"the text has {len(ids)} tokens; expected {size} or more, for one chunk, and better a hundred times that",
            hint="take a longer text, or smaller chunks: chunk_size= (--chunk-size)",
        )
    around = model.tokenizer.encode("")[:1]  # what begins every text, or may only end it
    begins = around if around == ids[:1] else []
    for start in range(0, len(ids) - size + 1, size):
        chunk = ids[start : start + size]
        chunk[: len(begins)] = begins
        yield chunk


def _read(model: TextModel | EmbeddingModel | RerankModel, chunk: list[int]) -> None:
    if not isinstance(model, TextModel):
        with suppress(_Enough):
            model.states_of(chunk)
        return
    model.engine.forget()  # chunks that begin alike would else share what was computed
    with model.sequence() as sequence, suppress(_Enough):
        sequence.append(*chunk)


class _Enough(Exception):  # noqa: N818  (no error)
    """All that a chunk gives was collected: the run itself would give nothing more."""


class _Asked(NamedTuple):
    """What a graph is asked of one matrix's inputs: squares (matrices, columns) or (columns,); rows of each expert."""

    squares: Tensor
    counts: Tensor | int


class _Sums:
    """Of one weight, over all that was read. counts: of rows, one for all matrices, or one for each expert."""

    def __init__(self) -> None:
        self.squares: Array = np.zeros(())
        self.counts: Array = np.zeros(())

    def add(self, squares: Array, counts: Array | int) -> None:
        self.squares = self.squares + squares.astype(np.float64)
        self.counts = self.counts + np.asarray(counts, np.float64)

    def importance(self, name: str) -> Importance:
        """Raises BackendError for sums that are no numbers."""
        if not np.isfinite(self.squares).all():
            raise BackendError(
                f"the inputs of {name} are not numbers (NaN or infinite)", hint="try a file in f32, or another device"
            )
        counts = self.counts.reshape(-1).astype(np.float32)
        return Importance(self.squares.reshape(len(counts), -1).astype(np.float32), counts)


class _Collector:
    """In place of each run of the model, adds up what would go into its matrices."""

    def __init__(self, backend: Backend) -> None:
        self.sums: dict[str, _Sums] = {}
        self._backend = backend

    def before_run(self, context: Context, fed: Mapping[Tensor, Array]) -> None:
        """Collects, and cancels the run: nobody needs its results."""
        if context.backend is not self._backend:
            return
        inputs = {tensor.name: array for tensor, array in fed.items()}
        n_rows = inputs["tokens"].size
        # the one sequence there is comes first; rows behind it pad the graph
        n = int((inputs["sequences"] == 0).sum()) if "sequences" in inputs else n_rows
        asked = _asked(context.graph().nodes, n_rows, n)
        outputs = [t for each in asked.values() for t in each if isinstance(t, Tensor)]
        values = compute_nodes(self._backend, list(dict.fromkeys(outputs)), fed)
        for name, (squares, counts) in asked.items():
            self.sums.setdefault(name, _Sums()).add(
                values[squares], counts if isinstance(counts, int) else values[counts]
            )
        raise _Enough


def _asked(nodes: Iterable[Tensor], n_rows: int, n: int) -> dict[str, _Asked]:
    """For each matrix of a layer, by its name. Of the ``n_rows`` rows of the graph, the first ``n`` count."""
    asked: dict[str, _Asked] = {}
    made: dict[tuple[Tensor | None, ...], _Asked] = {}  # q, k and v read the same
    for node in nodes:
        rule = _RULES.get(node.op)
        weight = node.sources[1] if rule is not None else None
        if rule is None or weight is None or weight.op != "weight" or not weight.name.startswith(_OF_LAYERS):
            continue
        key = (node.sources[0], *node.sources[2:])
        if key not in made:
            made[key] = rule(node, n_rows, n)
        asked[weight.name] = made[key]
    return asked


def _of_linear(node: Tensor, n_rows: int, n: int) -> _Asked:
    x = _source(node, 0)
    rows = x.reshape(-1, x.shape[-1])
    m = len(rows) * n // n_rows  # of each token one, or several
    rows = rows[:m]
    return _Asked((rows * rows).sum(axis=0), m)


def _of_matmul(node: Tensor, n_rows: int, n: int) -> _Asked:
    """One matrix for each head, as latent attention has it: x is (heads, n, columns)."""
    x = _source(node, 0)[..., :n, :]
    return _Asked((x * x).sum(axis=-2), n)


def _of_experts(node: Tensor, n_rows: int, n: int) -> _Asked:
    """x is (n, 1 or k, columns), and chosen, (n, k), says which expert each row goes to."""
    x, weight, chosen = (_source(node, i) for i in range(3))
    x, chosen = x[:n], chosen[:n]
    picks = constant(np.eye(len(weight), dtype=np.float32)).take(chosen)  # (n, k, experts), one of them 1
    if x.shape[1] != chosen.shape[1]:  # all experts read the same
        picks = picks.sum(axis=1, keepdims=True)
    picks = picks.reshape(-1, len(weight))
    rows = x.reshape(-1, x.shape[-1])
    return _Asked(picks.permute(1, 0) @ (rows * rows), picks.sum(axis=0))


def _source(node: Tensor, i: int) -> Tensor:
    source = node.sources[i]
    assert source is not None
    return source


_RULES = {"linear": _of_linear, "matmul": _of_matmul, "linear_experts": _of_experts}
