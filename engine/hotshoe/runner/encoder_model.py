"""EncoderModel: the base of models that read whole texts, padded to one length, without a cache."""

from __future__ import annotations

import bisect
import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.kvcache import AttentionSpec, LayerSpec, UncachedView
from hotshoe.kvcache.buckets import round_up
from hotshoe.kvcache.cells import Reach
from hotshoe.kvcache.spec import Part, parts_of, per_layer, storing_part
from hotshoe.kvcache.views import SharedView
from hotshoe.nn.batch import Batch
from hotshoe.runner.base import LoadedModel, ModelParts
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.pooling import Pooling, pooling_weights
from hotshoe_core import DType, Tensor
from hotshoe_core.errors import InputTooLongError, InputTypeError, ModelDefinitionError
from hotshoe_core.errors.arguments import described, integer

if TYPE_CHECKING:
    from hotshoe_core import Context

__all__ = ["EncoderModel", "EncoderSignature"]

Array = np.ndarray[Any, Any]

_TOKENS = 2048  # of one graph. More is not faster on a CPU, and takes more memory
_TOKENS_KEPT = 8 * _TOKENS  # of all cached graphs: they take as much memory as 8 of the largest
_MIN_TOKENS = 256  # tokens that a graph counts for at least: even a small one takes some memory


class EncoderSignature(NamedTuple):
    """The values that a graph of an encoder model depends on."""

    n_texts: int
    n_tokens: int
    pooled: bool = True
    """Whether it computes one vector for each text, or the state of each token."""

    typed: bool = False
    """Whether it has token types as an input."""


@dataclass(slots=True, eq=False)
class _Text:
    """A text, and what was computed of it."""

    ids: Sequence[int]
    types: Sequence[int]
    row: Array | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True, eq=False)
class _Caller:
    """The texts that a caller waits for."""

    waiting: list[_Text]
    """Those that no batch has yet, the longest last."""
    batch_size: int
    has_types: bool
    error: Exception | None = None


def _n_counted(signature: EncoderSignature) -> int:
    """Return the number of tokens that a graph counts for in the cache of graphs."""
    return max(_MIN_TOKENS, signature.n_texts * signature.n_tokens)


class EncoderModel(LoadedModel):
    """Base of EmbeddingModel and RerankModel."""

    pooling: Pooling
    """How the states of a text's tokens are reduced to one vector."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        model: Any = parts.model
        self.causal: bool = model.causal
        """Whether each token attends only to itself and earlier tokens."""
        self._spec = _spec_of(model)
        self._attention = _attention_of(self._spec, self.causal)
        self._callers: list[_Caller] = []
        """Those that wait, in the order they came."""
        self._callers_lock = threading.Lock()
        self._contexts: ContextCache[EncoderSignature] = ContextCache(self._build, _TOKENS_KEPT, _n_counted)

    def _finish(self, pooled: Tensor) -> Tensor:
        """Return the graph's output for the pooled states, (b, dim)."""
        raise NotImplementedError

    def states_of(self, ids: Sequence[int]) -> Array:
        """Return the last layer's state of each token id of one text, without pooling: float32 (n, dim)."""
        self._require_open()
        states: Array = self._compute([list(ids)], pooled=False)[0, : len(ids)]
        return states

    def _compute(
        self,
        ids: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]] | None = None,
        *,
        pooled: bool = True,
        check: bool = True,
    ) -> Array:
        """Compute one batch: vectors (b, …), or states (b, n, dim) unless ``pooled``.

        Padding has no effect: the mask is -inf there, and the pooling weights are 0. Raises BackendError if the model
        gives NaN or infinity, unless ``check`` is False.
        """
        lengths = np.array([len(i) for i in ids])
        n = self._padded_length(int(lengths.max()))
        inside = np.arange(n) < lengths[:, None]
        feeds: dict[str, Array] = {"tokens": _padded(ids, n), "positions": np.arange(n, dtype=np.int32)}
        for reach in self._reaches:
            feeds[_mask_name(reach)] = np.where(_visible(reach, inside), np.float32(0), np.float32(-np.inf))
        if types is not None:
            feeds["token_types"] = _padded(types, n)
        if pooled:
            feeds["pooling"] = pooling_weights(self.pooling, inside)
        with self._lock:
            self._require_open()
            built = self._contexts.get(EncoderSignature(len(ids), n, pooled, types is not None))
            built.context.compute({tensor: feeds[name] for name, tensor in built.inputs.items()})
            out = built.outputs[0].read()
        counted = out if pooled else out[inside]
        if check and not np.isfinite(counted).all():
            raise self._not_finite()
        return out

    def _padded_length(self, n: int) -> int:
        """Return the length of the graph for texts of up to ``n`` tokens: ``n``, or more if few lengths are wanted."""
        per_octave = self.backend.cache_config().lengths_per_octave
        return n if per_octave is None else min(round_up(n, per_octave), self.n_ctx)

    def _build(self, signature: EncoderSignature) -> Built:
        b, n, pooled, typed = signature
        ctx = self.backend.new_context()
        batch = Batch(
            tokens=ctx.input("tokens", (b, n), DType.I32),
            positions=ctx.input("positions", (n,), DType.I32),
            token_types=ctx.input("token_types", (b, n), DType.I32) if typed else None,
        )
        masks = {r: ctx.input(_mask_name(r), (b, 1, 1, n) if r is None else (b, 1, n, n)) for r in self._reaches}
        views = self._views(masks, batch.positions)
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

    @functools.cached_property
    def _reaches(self) -> list[Reach | None]:
        """How far layers attend, each once; None: to all tokens of a text."""
        return list(
            dict.fromkeys(_reach_of(spec, self.causal) for spec in self._attention.values() if spec.like is None)
        )

    def _views(self, masks: Mapping[Reach | None, Tensor], positions: Tensor) -> list[Any]:
        views: dict[Part, UncachedView | SharedView] = {}
        for part, spec in self._attention.items():
            stored = storing_part(self._attention, part)
            if stored == part:
                views[part] = UncachedView(masks[_reach_of(spec, self.causal)], positions, spec.v_in_k)
            else:
                views[part] = SharedView(part, views[stored])
        return per_layer(self._spec, views)

    def _in_batches(
        self,
        ids: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]] | None,
        batch_size: int,
        progress: Callable[[float], None] | None,
    ) -> Array:
        """Compute one row for each text, batch by batch: (n, …). Texts of callers in other threads join the batches."""
        if progress is not None and not callable(progress):
            raise InputTypeError(f"progress is {described(progress)}; expected a function of a fraction")
        texts = [_Text(each, () if types is None else types[i]) for i, each in enumerate(ids)]
        caller = _Caller(sorted(texts, key=len), batch_size, types is not None)
        with self._callers_lock:
            self._callers.append(caller)
        try:
            n_waiting = len(texts)
            while n_waiting:
                with self._lock:
                    if len(caller.waiting) == n_waiting:  # otherwise another caller computed some meanwhile
                        self._compute_batch()
                    n_waiting = len(caller.waiting)
                if caller.error is not None:
                    raise caller.error
                if progress is not None:
                    progress((len(texts) - n_waiting) / len(texts))
        finally:
            with self._callers_lock:
                self._callers.remove(caller)
        return np.stack([text.row for text in texts if text.row is not None]) if texts else np.empty((0, 0), np.float32)

    def _compute_batch(self) -> None:
        """Compute some of the texts that wait: the longest one of the first caller, and others that are little shorter.

        So there is little padding, and the largest graph comes first.
        """
        with self._callers_lock:
            batch, has_types = self._take_batch()
        try:
            types = [text.types for text, _ in batch] if has_types else None
            rows = self._compute([text.ids for text, _ in batch], types, check=False)
            for (text, caller), row in zip(batch, rows, strict=True):
                text.row = row
                if not np.isfinite(row).all():
                    caller.error = self._not_finite()
        except Exception as error:
            for _, caller in batch:
                caller.error = error
        except BaseException:  # Ctrl-C ends this caller, not the others
            with self._callers_lock:
                for text, caller in batch:
                    bisect.insort(caller.waiting, text, key=len)
            raise

    def _take_batch(self) -> tuple[list[tuple[_Text, _Caller]], bool]:
        """Remove the texts of the next batch from their callers; return them, and whether they have token types."""
        first = next(caller for caller in self._callers if caller.waiting)
        longest = len(first.waiting[-1])
        size = max(1, min(first.batch_size, (self.params.n_batch or _TOKENS) // longest))
        found: list[tuple[_Text, _Caller]] = []
        for caller in self._callers:
            if caller.has_types == first.has_types:
                end = bisect.bisect_right(caller.waiting, longest, key=len)
                found += [(text, caller) for text in reversed(caller.waiting[max(0, end - size) : end])]
        batch = sorted(found, key=lambda entry: -len(entry[0]))[:size]
        for caller, n in Counter(caller for _, caller in batch).items():
            end = bisect.bisect_right(caller.waiting, longest, key=len)
            del caller.waiting[end - n : end]
        return batch, first.has_types

    def _graph_of(self, n_tokens: int) -> Context:
        n_tokens = integer("n_tokens", n_tokens, 1, InputTooLongError)
        if n_tokens > self.n_ctx:
            raise InputTooLongError(f"n_tokens is {n_tokens}; the context holds {self.n_ctx}")
        return self._contexts.get(EncoderSignature(1, n_tokens)).context

    def _largest_graph(self) -> Context:
        n_batch = self.params.n_batch or _TOKENS
        n = min(n_batch, self.n_ctx)  # a single text may be longer than n_batch and take more, but few are
        return self._contexts.get(EncoderSignature(n_batch // n, n)).context

    def _free(self) -> None:
        self._contexts.close()
        super()._free()


def _spec_of(model: Any) -> list[LayerSpec]:
    """Return the model's ``cache_spec``, which is optional for encoders: without it, layers attend to all tokens."""
    cache_spec = getattr(model, "cache_spec", None)
    spec = [None] * model.config.n_layers if cache_spec is None else cache_spec()
    return [AttentionSpec(1, 1) if entry is None else entry for entry in spec]


def _attention_of(spec: Sequence[LayerSpec], causal: bool) -> dict[Part, AttentionSpec]:
    """Return the parts of the spec. Raises ModelDefinitionError unless all are attention, as the model attends."""
    attention: dict[Part, AttentionSpec] = {}
    for part, kept in parts_of(spec).items():
        if not isinstance(kept, AttentionSpec):
            raise ModelDefinitionError(
                f"cache_spec: layer {part} has a {type(kept).__name__}; a model that reads whole texts keeps no states"
            )
        attention[part] = kept
        one_sided = (kept.window > 0 and not kept.both_sides) or kept.chunk > 0
        if kept.both_sides if causal else one_sided:
            wrong = "both_sides" if causal else "a chunk" if kept.chunk else "a window without both_sides"
            raise ModelDefinitionError(
                f"cache_spec: layer {part} has {wrong}; causal is {causal}",
                hint="causal = True: a window or a chunk ends at the token. causal = False: a window has both_sides",
            )
    return attention


def _reach_of(spec: AttentionSpec, causal: bool) -> Reach | None:
    """Return how far a layer attends; None: to all tokens of a text."""
    return Reach(spec.window, spec.chunk, spec.both_sides) if causal or spec.window else None


def _mask_name(reach: Reach | None) -> str:
    return "mask" if reach is None else f"mask.{reach}"


def _visible(reach: Reach | None, inside: Array) -> Array:
    """Return which tokens each token attends to: (b, 1, 1, n) without a reach, else (b, 1, n, n)."""
    visible: Array = inside[:, None, None, :]
    if reach is None:
        return visible
    n = inside.shape[1]
    columns = np.arange(n)
    rows = columns[:, None]
    if reach.both_sides:
        near = np.abs(rows - columns) <= reach.window // 2
    else:
        first = np.array([[reach.first_seen(i)] for i in range(n)])
        near = (columns <= rows) & (columns >= first)
    # padding sees the whole text: a row of a softmax that sees nothing would be NaN
    seen: Array = visible & (near | ~inside[:, None, :, None])
    return seen


def _padded(rows: Sequence[Sequence[int]], n: int) -> Array:
    out = np.zeros((len(rows), n), np.int32)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
