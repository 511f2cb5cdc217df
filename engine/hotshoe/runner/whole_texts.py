"""WholeTexts: what the models share that read texts as a whole, padded to one length, and keep nothing between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.kvcache import AttentionSpec, UncachedView
from hotshoe.kvcache.cells import Reach
from hotshoe.nn.batch import Batch
from hotshoe.runner.base import LoadedModel
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.pooling import Pooling, pooling_weights
from hotshoe_core import DType, Tensor
from hotshoe_core.errors import BackendError, InputTooLongError, InputTypeError, ModelDefinitionError
from hotshoe_core.errors.arguments import described, integer

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe.runner.params import RunnerParams
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend, Context
    from hotshoe_core.gguf import GGUFFile

__all__ = ["Shape", "WholeTexts"]

Array = np.ndarray[Any, Any]

_TOKENS = 2048  # of one graph. More gain no speed on a CPU, and the graph's memory grows with it
_TOKENS_KEPT = 8 * _TOKENS  # of all graphs that are kept: their memory is that of 8 of the largest
_LEAST = 256  # tokens that a graph counts for at least: it holds some memory whatever its size


class Shape(NamedTuple):
    """All that a graph depends on. pooled: one vector a text; else the state of each token."""

    n_texts: int
    n_tokens: int
    pooled: bool = True
    typed: bool = False


def _size(shape: Shape) -> int:
    return max(_LEAST, shape.n_texts * shape.n_tokens)


class WholeTexts(LoadedModel):
    """Base of EmbeddingModel and RerankModel. ``pooling`` says which of a text's states counts for it."""

    pooling: Pooling

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
        self.params = params
        self.causal: bool = model.causal
        self._reaches = _reaches(model) if self.causal else [None] * model.config.n_layers
        self._contexts: ContextCache[Shape] = ContextCache(self._build, _TOKENS_KEPT, _size)

    def _finish(self, pooled: Tensor) -> Tensor:
        """What comes of the pooled states, (b, dim)."""
        raise NotImplementedError

    def states_of(self, ids: Sequence[int]) -> Array:
        """The last layer's state of each of these tokens, one text as it is: float32 (n, dim)."""
        self._require_open()
        states: Array = self._compute([list(ids)], pooled=False)[0]
        return states

    def _compute(
        self, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None, *, pooled: bool = True
    ) -> Array:
        """One batch. Padded rows and columns take part in nothing: the mask and the pooling weights are 0 there.

        Raises BackendError where the model gives NaN or infinity.
        """
        lengths = np.array([len(i) for i in ids])
        n = int(lengths.max())
        inside = np.arange(n) < lengths[:, None]
        feeds: dict[str, Array] = {"tokens": _padded(ids, n), "positions": np.arange(n, dtype=np.int32)}
        for reach in dict.fromkeys(self._reaches):
            feeds[_mask_name(reach)] = np.where(_visible(reach, inside), np.float32(0), np.float32(-np.inf))
        if types is not None:
            feeds["token_types"] = _padded(types, n)
        if pooled:
            feeds["pooling"] = pooling_weights(self.pooling, inside)
        with self._lock:
            self._require_open()
            built = self._contexts.get(Shape(len(ids), n, pooled, types is not None))
            built.context.compute({tensor: feeds[name] for name, tensor in built.inputs.items()})
            out = built.outputs[0].read()
        counted = out if pooled else out[inside]
        if not np.isfinite(counted).all():
            raise BackendError(
                f"{self._file.path}: the model gave NaN or infinity on {self.device.name}",
                hint="the file is damaged, or its weights are too large for its element type: try an f32 file",
            )
        return out

    def _build(self, shape: Shape) -> Built:
        b, n, pooled, typed = shape
        ctx = self.backend.new_context()
        batch = Batch(
            tokens=ctx.input("tokens", (b, n), DType.I32),
            positions=ctx.input("positions", (n,), DType.I32),
            token_types=ctx.input("token_types", (b, n), DType.I32) if typed else None,
        )
        masks = {
            r: ctx.input(_mask_name(r), (b, 1, 1, n) if r is None else (b, 1, n, n))
            for r in dict.fromkeys(self._reaches)
        }
        views = [UncachedView(masks[r], batch.positions) for r in self._reaches]
        model: Any = self._model
        output: Tensor = model(batch, views)  # (b, n, dim)
        if output.ndim != 3 or output.shape[:2] != (b, n):
            raise ModelDefinitionError(
                f"{type(self._model).__name__} gave {output.shape} for {b} texts of {n} tokens; "
                f"expected ({b}, {n}, dim)"
            )
        if pooled:
            vectors = ctx.input("pooling", (b, 1, n)) @ output  # (b, 1, dim)
            output = self._finish(vectors.reshape(b, -1))
        ctx.forward(output)
        return Built(ctx, ctx.inputs, (output,))

    def _batches(self, lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
        """Rows in batches of like length, longest first: the least padding, and the largest graph comes first."""
        n_batch = self.params.n_batch or _TOKENS
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        start = 0
        while start < len(order):
            size = max(1, min(batch_size, n_batch // lengths[order[start]]))
            yield order[start : start + size]
            start += size

    def _in_batches(
        self,
        out: Array,
        lengths: Sequence[int],
        batch_size: int,
        compute: Callable[[list[int]], Array],
        progress: Callable[[float], None] | None,
    ) -> Array:
        """Fill ``out``, one row a text, batch by batch."""
        if progress is not None and not callable(progress):
            raise InputTypeError(f"progress is {described(progress)}; expected a function of a fraction")
        done = 0
        for rows in self._batches(lengths, batch_size):
            out[rows] = compute(rows)
            done += len(rows)
            if progress is not None:
                progress(done / len(lengths))
        return out

    def _graph_of(self, n_tokens: int) -> Context:
        n_tokens = integer("n_tokens", n_tokens, 1, InputTooLongError)
        if n_tokens > self.n_ctx:
            raise InputTooLongError(f"n_tokens is {n_tokens}; the context holds {self.n_ctx}")
        return self._contexts.get(Shape(1, n_tokens)).context

    def _largest_graph(self) -> Context:
        n_batch = self.params.n_batch or _TOKENS
        n = min(n_batch, self.n_ctx)  # one longer text alone takes more, and few are so long
        return self._contexts.get(Shape(n_batch // n, n)).context

    def _free(self) -> None:
        self._contexts.close()
        super()._free()


def _reaches(model: Any) -> list[Reach | None]:
    """How far each layer of a causal model looks back."""
    spec = model.cache_spec() if hasattr(model, "cache_spec") else [None] * model.config.n_layers
    return [Reach(s.window, s.chunk) if isinstance(s, AttentionSpec) else Reach() for s in spec]


def _mask_name(reach: Reach | None) -> str:
    return "mask" if reach is None else f"mask.{reach}"


def _visible(reach: Reach | None, inside: Array) -> Array:
    """(b, 1, 1, n) where every token sees all that are inside; (b, 1, n, n) where it looks back only."""
    seen: Array = inside[:, None, None, :]
    if reach is None:
        return seen
    n = inside.shape[1]
    at = np.arange(n)
    first = np.array([reach.first_seen(i) for i in range(n)])
    return seen & (at <= at[:, None]) & (at >= first[:, None])


def _padded(rows: Sequence[Sequence[int]], n: int) -> Array:
    out = np.zeros((len(rows), n), np.int32)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
