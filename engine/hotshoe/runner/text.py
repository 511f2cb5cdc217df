"""TextModel: a causal language model with its tokenizer and cache, on an opened backend."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache import CacheInputs, CausalCache
from hotshoe.models.text import Batch
from hotshoe.runner.base import LoadedModel
from hotshoe.runner.contexts import Built
from hotshoe.runner.generation import Completion, Stream
from hotshoe.sampling import SamplingParams
from hotshoe_core import DType
from hotshoe_core.errors import (
    InputTooLongError,
    SamplingError,
    did_you_mean,
)

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.nn import Module
    from hotshoe.sampling import Constraint
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.gguf import GGUFFile

__all__ = ["Score", "TextModel"]

_CHUNK = 512  # tokens of a prompt computed at once


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a model finds a text. log_likelihood is of all tokens but the first, natural logarithm."""

    n_tokens: int
    log_likelihood: float

    @property
    def perplexity(self) -> float:
        """``exp`` of the mean negative log-likelihood of a predicted token."""
        return float(np.exp(-self.log_likelihood / max(1, self.n_tokens - 1)))


class TextModel(LoadedModel):
    """Tokens to logits, one sequence at a time. Made by ``hotshoe.load_model``; thread-safe.

    What two calls' tokens have in common at the beginning is computed once: the cache keeps it.
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
        kv_dtype: DType = DType.F16,
    ) -> None:
        super().__init__(model, tokenizer, backend, file, n_ctx, why)
        config = model.config
        self._cache = CausalCache(
            backend,
            n_cells=n_ctx,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            windows=config.windows,
            dtype=kv_dtype,
        )
        self._n_vocab: int = model.output.weight.shape[0]  # type: ignore[attr-defined]
        self._past: list[int] = []  # the tokens whose keys and values the cache holds
        self._check_shapes((1, self._cache.padding, 1))

    def logits(self, token_ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What the model expects after each of these tokens: float32 (n, vocab), not normalised.

        Raises InputTooLongError for more tokens than ``n_ctx``, or none.
        """
        ids = [int(i) for i in token_ids]
        self._check_length(ids)
        with self._lock:
            self._rewind([])
            return np.concatenate(list(self._prefill(ids, every=True)))

    def score(self, text: str) -> Score:
        """The log-likelihood of a text. Raises InputTooLongError."""
        ids = self.tokenizer.encode(text)
        self._check_length(ids)
        total, at = 0.0, 0
        with self._lock:
            self._rewind([])
            for rows in self._prefill(ids, every=True):
                targets = ids[at + 1 : at + 1 + len(rows)]
                rows = rows[: len(targets)].astype(np.float64)
                top = rows.max(axis=1)
                log_sum = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
                total += float((rows[np.arange(len(targets)), targets] - log_sum).sum())
                at += len(rows)
        return Score(len(ids), total)

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        grammar: Constraint | None = None,
        **options: Any,
    ) -> Completion:
        """The continuation of a prompt, a text or token ids.

        options are fields of SamplingParams: ``generate("Once", max_tokens=50, temperature=0)``. Raises
        InputTooLongError, and SamplingError for an option that is not known or makes no sense.
        """
        stream = self.stream(prompt, params, grammar=grammar, **options)
        for _ in stream:
            pass
        return stream.completion

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        grammar: Constraint | None = None,
        **options: Any,
    ) -> Stream:
        """As ``generate``, piece by piece: ``for piece in model.stream("Once"): print(piece, end="")``."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(i) for i in prompt]
        self._check_length(ids)
        try:
            wanted = dataclasses.replace(params or SamplingParams(), **options)
        except TypeError:
            known = [f.name for f in dataclasses.fields(SamplingParams)]
            unknown = next(name for name in options if name not in known)
            raise SamplingError(f"no option is called {unknown!r}", hint=did_you_mean(unknown, known)) from None
        return Stream(self._next, self._n_cached, self.tokenizer, ids, self.n_ctx, self._n_vocab, wanted, grammar)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        grammar: Constraint | None = None,
        **options: Any,
    ) -> Stream:
        """The answer to a conversation, piece by piece, in the model's own chat format.

        messages: ``{"role": "user", "content": "..."}`` and so on. Raises ChatTemplateError for a model without a
        format, and for messages or tools that its format does not take.
        """
        text = self.chat_template.render(messages, tools)
        return self.stream(self.tokenizer.encode(text, add_special=False), params, grammar=grammar, **options)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's template, or the one its vocabulary tells of. Raises ChatTemplateError where there is none."""
        from hotshoe.chat import from_metadata  # Jinja2 is for those who chat

        return from_metadata(self.metadata, self.tokenizer)

    # Prompt, cache, graph

    def _next(self, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logits after the last of ``ids``: (vocab,). Only what the cache does not hold is computed."""
        with self._lock:
            self._rewind(ids[:-1])
            *_, logits = self._prefill(ids[len(self._past) :], every=False)
            return logits[-1]

    def _n_cached(self, ids: list[int]) -> int:
        """How many tokens at the beginning of ``ids`` need not be computed."""
        same = [a == b for a, b in zip(self._past, ids, strict=False)]
        return same.index(False) if False in same else len(same)

    def _rewind(self, ids: list[int]) -> None:
        """Keep of the cache what it has in common with ``ids`` at the beginning."""
        common = len(ids) if self._past == ids else self._n_cached(ids)
        if common < len(self._past):
            self._cache.remove(0, common)
            del self._past[common:]

    def _prefill(self, ids: Sequence[int], *, every: bool) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        """Compute tokens that follow the past, in chunks; yields the logits of every token, or of each chunk's last."""
        for start in range(0, len(ids), _CHUNK):
            chunk = list(ids[start : start + _CHUNK])
            outputs = range(len(chunk)) if every else [len(chunk) - 1]
            yield self._forward(chunk, np.array(outputs, np.int32))

    def _forward(self, tokens: list[int], outputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self._require_open()
        cache, n = self._cache, len(tokens)
        positions = np.arange(len(self._past), len(self._past) + n, dtype=np.int32)
        sequences = np.zeros(n, np.int64)
        cells = cache.place(positions, sequences)
        try:
            m = cache.n_used
            built = self._contexts.get((n, m, len(outputs)))
            feeds = {built.inputs["tokens"]: np.array(tokens, np.int32), built.inputs["positions"]: positions}
            feeds[built.inputs["outputs"]] = outputs
            for window, mask in cache.masks(positions, sequences, m).items():
                feeds[built.inputs[f"cache.mask.{window}"]] = mask
            feeds[built.inputs["cache.cells"]] = cells
            built.context.compute(feeds)
        except BaseException:  # interrupted: the cells hold nothing that counts
            cache.remove(0, len(self._past))
            raise
        self._past.extend(tokens)
        return built.output.read()

    def _build(self, signature: tuple[int, ...]) -> Built:
        n, m, n_outputs = signature
        ctx = self.backend.new_context()
        batch = Batch(
            ctx.input("tokens", (n,), DType.I32),
            ctx.input("positions", (n,), DType.I32),
            ctx.input("outputs", (n_outputs,), DType.I32),
        )
        inputs: CacheInputs = self._cache.inputs(ctx, n, m)
        logits = self._model(batch, self._cache.layers(ctx, inputs))
        ctx.forward(logits)
        return Built(ctx, ctx.inputs, logits)

    def _check_length(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InputTooLongError("no tokens were given; expected 1 or more", hint="begin with tokenizer.bos")
        if len(ids) > self.n_ctx:
            raise InputTooLongError(
                f"{len(ids)} tokens were given; the context holds {self.n_ctx}",
                hint="load the model with a larger n_ctx, or shorten the text",
            )
