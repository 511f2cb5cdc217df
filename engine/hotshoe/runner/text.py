"""TextModel: a causal language model with its tokenizer and cache, on an opened backend."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np

from hotshoe.kvcache import make_cache
from hotshoe.runner.base import LoadedModel, T
from hotshoe.runner.engine import Engine
from hotshoe.runner.forward import Signature, TextForward, most_padding
from hotshoe.runner.generation import Completion, Stream
from hotshoe.runner.jobs import Generation
from hotshoe.runner.prefix import Slots
from hotshoe.runner.scheduler import Limits
from hotshoe.runner.sequence import TokenSequence
from hotshoe.sampling import Sampler, SamplingParams
from hotshoe_core import DeviceType
from hotshoe_core.errors import BackendError, InputTooLongError, SamplingError, WeightsError, did_you_mean
from hotshoe_core.errors.arguments import integer

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.nn import Module
    from hotshoe.runner.base import TextModule
    from hotshoe.runner.items import Item
    from hotshoe.runner.params import RunnerParams
    from hotshoe.sampling import Constraint
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend, Context
    from hotshoe_core.gguf import GGUFFile

__all__ = ["Score", "TextModel"]

_MOST_CHARACTERS = 64  # of a prompt, for each token of the context: no text has so few tokens


class Score(NamedTuple):
    """How likely a model finds a text. log_likelihood is of all tokens but the first, natural logarithm."""

    n_tokens: int
    log_likelihood: float

    @property
    def perplexity(self) -> float:
        """``exp`` of the mean negative log-likelihood of a predicted token."""
        return float(np.exp(-self.log_likelihood / max(1, self.n_tokens - 1)))


class TextModel(LoadedModel):
    """Tokens to logits and texts to their continuation. Made by ``hotshoe.load_model``; thread-safe.

    What texts have in common at the beginning is computed once: the cache keeps it. Texts generated at the same
    time are computed together, be they a list, or streams read by turns or by several threads.
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
        super().__init__(model, tokenizer, backend, file, n_ctx, why)
        self.params = params
        text = cast("TextModule", model)
        spec = text.cache_spec()
        self._cache = make_cache(
            backend,
            spec,
            n_tokens=n_ctx,
            n_sequences=params.n_sequences,
            n_batch=params.rows,
            n_scratch=most_padding(params.rows),
            dtype=params.dtype,
        )
        self._forward = TextForward(text, backend, self._cache, spec, n_ctx=n_ctx, n_ubatch=params.rows)
        limits = Limits(params.step, params.rows, params.max_sequences, self._cache.uniform)
        slots = Slots(self._cache, params.max_sequences)
        self.engine = Engine(backend, self._forward, slots, limits, n_ctx=n_ctx)
        self.engine.on_device = backend.device_of(len(spec)).type is not DeviceType.CPU  # where the logits are
        self._check_shapes(lambda: self._forward.contexts.get(Signature(1, 1, self._cache.sizes, 1)))
        if self._forward.n_vocab > tokenizer.vocab_size:  # one that is no token could be chosen
            raise WeightsError(
                f"{file.path}: the model gives {self._forward.n_vocab} logits; the vocabulary has "
                f"{tokenizer.vocab_size} tokens",
                hint="the vocabulary and the weights in the file are of different models: convert it again",
            )

    def logits(self, items: Sequence[Item]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What the model expects after each of these tokens: float32 (n, vocab), not normalised.

        Raises InputTooLongError for more tokens than ``n_ctx``, or none; TokenizerError for what is no token;
        BackendError where the model gives NaN or infinity.
        """
        return np.concatenate(list(self._all_logits(items)))

    def score(self, text: str) -> Score:
        """The log-likelihood of a text. Raises InputTooLongError, and BackendError as ``logits`` does."""
        self._require_open()
        ids = self.tokenizer.encode(text)
        total, at = 0.0, 0
        for rows in self._all_logits(ids):
            targets = ids[at + 1 : at + 1 + len(rows)]
            rows = rows[: len(targets)].astype(np.float64)
            top = rows.max(axis=1)
            with np.errstate(under="ignore"):  # the user may have it raise
                log_sum = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
            total += float((rows[np.arange(len(targets)), targets] - log_sum).sum())
            at += len(rows)
        return Score(len(ids), total)

    def sequence(self, items: Iterable[Item] = ()) -> TokenSequence:
        """Tokens to be continued by hand, for decoding of your own: ``s.append(*ids)`` gives the logits after them.

        items: token ids, and EmbeddingSpans: an image's or a sound's rows.
        """
        self._require_open()
        sequence = TokenSequence(self.engine, items)
        if len(sequence):
            self._forward.check(sequence.items)
        return sequence

    def forget(self) -> None:
        """Drop from the cache what no living sequence needs: the next texts are computed from their beginning."""
        self.engine.forget()

    def extend(self, pairs: Iterable[tuple[TokenSequence, Iterable[Item]]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Add tokens to several sequences, computed together: the logits after the last of each, (n, vocab)."""
        self._require_open()
        return self.engine.extend(pairs)

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        grammar: Constraint | None = None,
        **options: Any,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        grammar: Sequence[Constraint | None] | None = None,
        batch_size: int = 16,
        **options: Any,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Any,
        params: Any = None,
        *,
        grammar: Any = None,
        batch_size: int = 16,
        **options: Any,
    ) -> Completion | list[Completion]:
        """The continuation of a prompt, a text or token ids; or of each of a list of them, computed together.

        options are fields of SamplingParams: ``generate("Once", max_tokens=50, temperature=0)``. For a list of
        prompts ``params`` and ``grammar`` may be lists too, ``batch_size`` is how many are on the way at once, and
        a seed that is given is the first one's: the others count up from it. Raises
        InputTooLongError, and SamplingError for an option that is not known or makes no sense.
        """
        batch_size = integer("batch_size", batch_size, 1, SamplingError)
        self._require_open()
        if isinstance(prompt, Iterable) and not isinstance(prompt, (str, bytes, bytearray, np.ndarray)):
            with contextlib.suppress(TypeError):  # what only says that it is iterable is said where it is read
                prompt = list(iter(prompt))  # looking at its kind would use up an iterator
        if _is_one(prompt):
            stream = self.stream(prompt, params, grammar=grammar, **options)
            for _ in stream:
                pass
            return stream.completion
        streams = self._streams(list(prompt), params, grammar, options)
        waiting, running = deque(streams), list[Stream]()
        try:
            while waiting or running:
                while waiting and len(running) < batch_size:
                    running.append(waiting.popleft())
                    running[-1].start()
                for stream in running:  # the oldest has a step run; those that found no room in it wait
                    if stream is running[0] or stream.ready:
                        stream.advance()
                running = [s for s in running if s.completion.finish_reason is None]
        finally:
            for stream in running:
                stream.close()
        return [stream.completion for stream in streams]

    def _streams(self, prompts: list[Any], params: Any, grammar: Any, options: dict[str, Any]) -> list[Stream]:
        n = len(prompts)
        each: list[Any] = list(params) if isinstance(params, Sequence) else [params] * n
        grammars: list[Any] = list(grammar) if isinstance(grammar, Sequence) else [grammar] * n
        for name, given in (("params", each), ("grammar", grammars)):
            if len(given) != n:
                raise SamplingError(f"{len(given)} {name} were given for {n} prompts; expected one for each")
        if grammar is not None and not isinstance(grammar, Sequence) and n > 1:
            raise SamplingError("one grammar was given for several prompts; expected a list: it keeps a state for each")
        streams = []
        for i, (prompt, own, constraint) in enumerate(zip(prompts, each, grammars, strict=True)):
            full = _with_options(own, options)
            if full.seed is not None and not isinstance(params, Sequence):
                full = dataclasses.replace(full, seed=(full.seed + i) % 2**64)
            streams.append(self.stream(prompt, full, grammar=constraint))
        return streams

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        grammar: Constraint | None = None,
        **options: Any,
    ) -> Stream:
        """As ``generate``, piece by piece: ``for piece in model.stream("Once"): print(piece, end="")``."""
        self._require_open()
        sequence = self.sequence(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        self._forward.check(sequence.items)
        full = _with_options(params, options)
        self._check_shift(full.context_shift, sequence)
        sampler = Sampler(full, self._forward.n_vocab, grammar)
        sampler.observe(sequence.ids)
        stops = self.tokenizer.stop_ids | frozenset(full.stop_tokens)
        return Stream(self.engine, Generation(sequence, sampler, stops), self.tokenizer)

    def _check_shift(self, keep: int | None, sequence: TokenSequence) -> None:
        if keep is None:
            return
        if keep > self.n_ctx - 2:
            raise SamplingError(f"context_shift keeps {keep} tokens of a context of {self.n_ctx}")
        refusal = self.engine.shift_refusal(sequence.items)
        if refusal is not None:
            raise SamplingError(
                f"context_shift={keep} is not possible: {refusal}",
                hint="leave it out: a full context then ends the text",
            )

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
        format, and for messages or tools that its format does not take; InputTooLongError.
        """
        text = self.chat_template.render(messages, tools)
        if len(text) > _MOST_CHARACTERS * self.n_ctx:  # tokens would say the same, after a long time
            raise InputTooLongError(
                f"the chat template made a prompt of {len(text):,} characters; the context holds {self.n_ctx} tokens",
                hint="load the model with a larger n_ctx, or shorten the conversation",
            )
        return self.stream(self.tokenizer.encode(text, add_special=False), params, grammar=grammar, **options)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """The file's template, or the one its vocabulary tells of. Raises ChatTemplateError where there is none."""
        from hotshoe.chat import from_metadata  # Jinja2 is for those who chat

        return from_metadata(self.metadata, self.tokenizer)

    def _all_logits(self, items: Iterable[Item]) -> Iterator[np.ndarray[Any, Any]]:
        """Of every token, piece by piece; all are computed anew. Raises BackendError for NaN or infinity."""
        with self.sequence(items) as sequence:
            self._forward.check(sequence.items)
            for rows in self.engine.all_logits(sequence):
                if not np.isfinite(rows.max(axis=1)).all():  # a model may rule tokens out by -inf, but not all of them
                    raise BackendError(
                        f"{self._file.path}: the model gave NaN or infinity on {self.device.name}",
                        hint="the file is damaged, or its weights are too large for its element type: try an f32 file",
                    )
                yield rows

    def _alone(self, work: Callable[[], T]) -> T:
        self._require_open()
        return cast("T", self.engine.in_turn(work))

    def _graph_of(self, n_tokens: int) -> Context:
        n_tokens = integer("n_tokens", n_tokens, 1, InputTooLongError)
        if n_tokens > self.params.rows:
            raise InputTooLongError(
                f"n_tokens is {n_tokens}; a graph of this model computes at most n_ubatch={self.params.rows}"
            )
        return self._forward.contexts.get(self._forward.signature(n_tokens)).context

    def _largest_graph(self) -> Context:
        return self._forward.contexts.get(self._forward.largest()).context

    def _free(self) -> None:
        self._forward.contexts.close()
        super()._free()

    def close(self) -> None:
        """Free weights, states and graphs, as soon as the graph on its way is done. Idempotent."""
        self.engine.close(self._free)


def _is_one(prompt: Any) -> bool:
    """Whether this is one prompt, a text or items, and not several."""
    if isinstance(prompt, (str, bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)):
        return True  # what is no prompt is said where it is read
    if isinstance(prompt, np.ndarray) and not prompt.ndim:
        return True
    return not any(isinstance(p, (str, bytes, bytearray, Sequence, np.ndarray)) for p in prompt)


def _with_options(params: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise SamplingError(
            f"params is a {type(params).__name__}; expected SamplingParams",
            hint="give its fields by name: model.generate(prompt, temperature=0)",
        )
    try:
        return dataclasses.replace(params or SamplingParams(), **options)
    except TypeError:
        known = [f.name for f in dataclasses.fields(SamplingParams)]
        unknown = next(name for name in options if name not in known)
        raise SamplingError(f"no option is called {unknown!r}", hint=did_you_mean(unknown, known)) from None
