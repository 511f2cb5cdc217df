"""TextModel: a causal language model with its tokenizer and cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from hotshoe.kvcache import CrossCache, make_cache, part_of
from hotshoe.kvcache.buckets import rows_per_octave
from hotshoe.media import AUDIO, IMAGE
from hotshoe.runner.base import LoadedModel, ModelParts, T
from hotshoe.runner.drafting import MAX_DRAFT
from hotshoe.runner.engine import Engine
from hotshoe.runner.forward import TextForward, max_padding
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.jobs import Generation
from hotshoe.runner.nextn import make_drafter
from hotshoe.runner.pace import Pace
from hotshoe.runner.prefixes import open_store
from hotshoe.runner.prompts import ChatPrompt, prepare_chat, prompt_items
from hotshoe.runner.scheduler import Limits
from hotshoe.runner.score import Score
from hotshoe.runner.sequence import TokenSequence, extend
from hotshoe.runner.slots import Slots
from hotshoe.runner.stream import Completion, Stream
from hotshoe.sampling import Constraint, Grammar, GrammarVocabulary, Sampler, SamplingParams
from hotshoe.sampling._grammar import choose_grammar
from hotshoe_core import AllocationStatus, DeviceType, Memory
from hotshoe_core.errors import (
    InputTooLongError,
    InsufficientMemoryError,
    SamplingError,
    TokenizerError,
    WeightsError,
    did_you_mean,
)
from hotshoe_core.errors.arguments import integer, listed
from hotshoe_core.errors.text import format_bytes

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.runner.base import TextModule
    from hotshoe.runner.items import Item
    from hotshoe_core import Backend, Context

__all__ = ["Score", "TextModel"]

_PICTURES = 2  # the largest ones, of each sequence: a second one can come while rows attend to the first
_MAX_CHARACTERS = 64  # a prompt with more characters for each token of the context cannot fit


class TextModel(LoadedModel):
    """A model that continues texts. Made by ``hotshoe.load_model``; thread-safe.

    The cache keeps the beginnings of texts, so that texts that begin alike compute them once. Texts that are generated
    at the same time run as one batch: a list of prompts, or several streams, whether one thread alternates between them
    or each has its own thread.
    """

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts := parts.with_batch())
        model, params, n_ctx = cast("TextModule", parts.model), parts.params, parts.n_ctx
        spec, per_octave, free = model.cache_spec(), rows_per_octave(self.backend), self.backend.memory_free()
        self._cache = make_cache(
            self.backend,
            spec,
            n_tokens=n_ctx,
            n_sequences=params.n_sequences,
            n_ubatch=params.max_graph_rows,
            n_scratch=max_padding(params.max_graph_rows, per_octave),
            dtype=params.dtype,
            checkpoint_bytes=params.checkpoint_bytes,
            n_encoded=_PICTURES * parts.n_attended * params.n_sequences,
        )
        _require_room(self.backend, free)
        self._forward = TextForward(
            *(model, self.backend, self._cache, spec),
            n_ctx=n_ctx,
            n_trained=self.metadata.arch.get("context_length", n_ctx),  # the model's config has the chosen n_ctx
            n_ubatch=params.max_graph_rows,
        )
        self.engine = Engine(
            self.backend,
            self._forward,
            Slots(self._cache, params.max_sequences, open_store(parts, n_ctx)),
            Limits(params.max_step_rows, params.max_graph_rows, self._cache.uniform, per_octave),
            Pace(params.max_step_seconds),
            n_ctx=n_ctx,
            not_finite=self._not_finite,
            message_ends=self.tokenizer.stop_ids,
            sample_on_device=self.backend.device_of(model.config.n_layers).type is not DeviceType.CPU,  # of logits
        )
        exact = self.backend.batch_invariant and part_of(self._cache, CrossCache) is None  # that attention has a mask
        self._max_draft = (MAX_DRAFT if exact else 0) if params.max_draft is None else params.max_draft
        if parts.towers:
            from hotshoe.runner.media_encoder import make_encoders  # few models have one

            self.images, self.audio = make_encoders(parts.towers, self.tokenizer, self._exclusive, self._require_open)
        self._check_shapes(lambda: self._forward.contexts.get(self._forward.signature(1)))  # also learns n_vocab
        self.engine.nextn = make_drafter(model, self.backend, self._cache, self._forward, self.engine.lock)
        if self._forward.n_vocab > self.tokenizer.vocab_size:  # an id that is not a token could be sampled
            raise WeightsError(
                f"{parts.file.path}: the model gives {self._forward.n_vocab} logits; the vocabulary has "
                f"{self.tokenizer.vocab_size} tokens",
                hint="the vocabulary and the weights in the file belong to different models: convert it again",
            )

    def logits(self, items: Sequence[Item]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the logits after each of these tokens: float32 (n, vocab), not normalised.

        items: token ids and EmbeddingSpans. Raises InputEmptyError for no items; InputTooLongError for more than
        ``n_ctx``; TokenizerError for an invalid token; BackendError if the model gives NaN or infinity.
        """
        return np.concatenate(list(self._all_logits(items)))

    def score(self, text: str) -> Score:
        """Return the log-likelihood of a text. Raises InputEmptyError, InputTooLongError, and BackendError for NaN."""
        self._require_open()
        ids = self.tokenizer.encode(text)
        total, start = 0.0, 0
        for rows in self._all_logits(ids):
            targets = ids[start + 1 : start + 1 + len(rows)]
            rows = rows[: len(targets)].astype(np.float64)
            top = rows.max(axis=1)
            with np.errstate(under="ignore"):  # the user may have set it to raise
                log_sum = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
            total += float((rows[np.arange(len(targets)), targets] - log_sum).sum())
            start += len(rows)
        return Score(len(ids), total)

    def sequence(self, items: Iterable[Item] = ()) -> TokenSequence:
        """Return a sequence to continue by hand: ``sequence.append(*ids)`` returns the logits after the new tokens.

        items: token ids and EmbeddingSpans (an image, a sound). They are computed at the first ``append``. Raises
        InputTooLongError for more than ``n_ctx`` rows, TokenizerError for an invalid token, ShapeError for a span that
        does not fit the model.
        """
        self._require_open()
        sequence = TokenSequence(self.engine, items)
        if len(sequence):
            self._forward.check(sequence.items)
        return sequence

    def _filled_sequence(self, items: Iterable[Item]) -> TokenSequence:
        """As ``sequence``, but an empty one raises InputEmptyError."""
        self._require_open()
        sequence = TokenSequence(self.engine, items)
        self._forward.check(sequence.items)
        return sequence

    def forget(self) -> None:
        """Remove from the cache the rows of closed sequences. Later texts are computed from their beginning."""
        self.engine.forget()

    def extend(self, pairs: Iterable[tuple[TokenSequence, Iterable[Item]]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Add tokens to several sequences, computed together: the logits after each, float32 (n, vocab).

        pairs: (sequence, new items), each sequence at most once. Raises GraphError for a sequence that is given twice
        or belongs to another model; otherwise as ``TokenSequence.append``. After an error no sequence is changed.
        """
        self._require_open()
        return extend(self.engine, pairs)

    @overload
    def generate(
        self,
        prompt: str | Sequence[Item],
        params: SamplingParams | None = None,
        *,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: Grammar | Constraint | str | None = None,
        **options: Any,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: Grammar | str | Sequence[Grammar | Constraint | str | None] | None = None,
        batch_size: int = 16,
        **options: Any,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Any,
        params: Any = None,
        *,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: Any = None,
        batch_size: int = 16,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Continue a prompt (a text or token ids), or each prompt of a list, computed together. Return the whole texts.

        params, options: how to sample. Options are fields of SamplingParams and replace those of ``params``:
        ``generate("Once", max_tokens=50, temperature=0)``. Another option is ``prediction``: see ``stream``.
        images: pictures for a prompt that is a text, see ``hotshoe.images.read_image``. Each takes the place of one
        ``model.images.marker``; without markers they come first. Raises ImageError if the model reads no pictures.
        audio: sounds in the same way: see ``hotshoe.audio.read_audio``. Raises AudioError if the model reads none.
        json_schema, regex, grammar: one of them restricts the text: a JSON schema (a mapping or JSON text), a regular
        expression that the whole text matches, or GBNF: see ``hotshoe.sampling.Grammar``. Raises GrammarError.

        For a list of prompts, ``params`` and ``grammar`` may be lists too, ``batch_size`` is the most texts that are
        generated at once, and a given ``seed`` is that of the first text; the others get seed + 1, seed + 2, …
        Raises InputEmptyError, InputTooLongError, and SamplingError for an unknown or invalid option.
        """
        batch_size = integer("batch_size", batch_size, 1, SamplingError)
        self._require_open()
        if isinstance(prompt, Iterable) and not isinstance(prompt, (str, bytes, bytearray, np.ndarray)):
            with contextlib.suppress(TypeError):  # encode() reports objects that only claim to be iterable
                prompt = list(iter(prompt))  # looking at its first element would consume an iterator
        if _is_one(prompt):
            return _whole(
                self.stream(
                    prompt,
                    params,
                    images=images,
                    audio=audio,
                    json_schema=json_schema,
                    regex=regex,
                    grammar=grammar,
                    **options,
                )
            )
        if images is not None or audio is not None:
            medium = AUDIO if images is None else IMAGE
            raise medium.error(
                f"{medium.many} were given for {len(prompt)} prompts; expected one prompt",
                hint=f"start a stream for each: model.stream(prompt, {medium.option}=…)",
            )
        if "prediction" in options:
            hint = "start a stream for each: model.stream(prompt, prediction=…)"
            raise SamplingError(f"a prediction was given for {len(prompt)} prompts; expected one prompt", hint=hint)
        streams = self._streams(list(prompt), params, choose_grammar(json_schema, regex, grammar), options)
        waiting, running = deque(streams), list[Stream]()
        try:
            while waiting or running:
                while waiting and len(running) < batch_size:
                    running.append(waiting.popleft())
                    running[-1].start()
                for stream in running:  # the oldest runs a step; a stream without room in it waits
                    if stream is running[0] or stream.ready:
                        stream.advance()
                running = [s for s in running if s.completion.finish_reason is None]
        finally:
            for stream in running:
                stream.close()
        return [stream.completion for stream in streams]

    def _streams(self, prompts: list[Any], params: Any, grammar: Any, options: dict[str, Any]) -> list[Stream]:
        n = len(prompts)
        all_params: list[Any] = list(params) if isinstance(params, Sequence) else [params] * n
        grammars: list[Any] = list(grammar) if isinstance(grammar, Sequence) else [grammar] * n
        for name, given in (("params", all_params), ("grammars", grammars)):
            if len(given) != n:
                raise SamplingError(f"{len(given)} {name} were given for {n} prompts; expected one for each")
        if n > 1 and isinstance(grammar, Constraint):
            raise SamplingError(
                f"one {type(grammar).__name__} was given for {n} prompts; it keeps the state of one text",
                hint="give a Grammar, or a list",
            )
        streams = []
        for i, (prompt, base, constraint) in enumerate(zip(prompts, all_params, grammars, strict=True)):
            full = _with_options(base, options)
            if full.seed is not None and not isinstance(params, Sequence):
                full = dataclasses.replace(full, seed=(full.seed + i) % 2**64)
            streams.append(self._stream(f"prompts[{i}]", prompt, full, choose_grammar(None, None, constraint)))
        return streams

    def stream(
        self,
        prompt: str | Sequence[Item],
        params: SamplingParams | None = None,
        *,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        json_schema: Mapping[str, Any] | str | None = None,
        regex: str | None = None,
        grammar: Grammar | Constraint | str | None = None,
        prediction: str | None = None,
        skip_special: bool = True,
        **options: Any,
    ) -> Stream:
        """Continue a prompt piece by piece: ``for piece in model.stream("Once"): print(piece, end="")``.

        prediction: a text that the result may repeat, at least in parts, such as an older version of a file, which
        makes it faster. What ``max_draft`` says in docs/python.md applies; with 0, a prediction has no effect.
        skip_special: leave special tokens, such as those around a call of a tool, out of the text. The other arguments
        and errors are those of ``generate``. Nothing is computed before the first piece is read.
        """
        chosen = choose_grammar(json_schema, regex, grammar)
        if images is not None or audio is not None:
            self._require_open()
            prompt = prompt_items(self, prompt, {IMAGE: images, AUDIO: audio})
        full = _with_options(params, options)
        return self._stream("the prompt", prompt, full, chosen, prediction=prediction, skip_special=skip_special)

    def _stream(
        self,
        what: str,
        prompt: Any,
        full: SamplingParams,
        chosen: Grammar | Constraint | None,
        *,
        prediction: str | None = None,
        skip_special: bool = True,
    ) -> Stream:
        """A stream. ``what`` names the prompt in an error."""
        self._require_open()
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt)
        elif not isinstance(prompt, EmbeddingSpan):
            prompt = listed(what, prompt, "a text or token ids", TokenizerError)
        sequence = self._filled_sequence(prompt)
        self._check_shift(full.context_shift, sequence)
        constraint = chosen.start(self.grammar_vocabulary) if isinstance(chosen, Grammar) else chosen
        sampler = Sampler(full, self._forward.n_vocab, constraint)
        sampler.observe(sequence.ids)
        stops = self.tokenizer.stop_ids | frozenset(full.stop_tokens)
        predicted = [] if prediction is None else self.tokenizer.encode(prediction, add_special=False)
        max_draft = MAX_DRAFT if predicted and self.params.max_draft is None else self._max_draft
        nextn = self.engine.nextn is not None and max_draft > 0
        generation = Generation(sequence, sampler, stops, max_draft=max_draft, predicted=predicted, nextn=nextn)
        return Stream(self.engine, generation, self.tokenizer, skip_special)

    def _check_shift(self, keep: int | None, sequence: TokenSequence) -> None:
        if keep is None:
            return
        if keep > self.n_ctx - 2:
            raise SamplingError(
                f"context_shift is {keep}, but the context holds {self.n_ctx} tokens; expected at most {self.n_ctx - 2}"
            )
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
        **options: Any,
    ) -> Completion:
        """Answer a conversation in the model's chat format. Return the whole answer; ``stream_chat`` gives its pieces.

        messages: ``[{"role": "user", "content": "..."}, …]``. tools: JSON schemas of functions that the model may
        call. params, options: as for ``generate``, with ``json_schema``, ``regex`` and ``grammar``. Raises as
        ``generate`` does, and ChatTemplateError if the model has no chat format, or its format does not accept the
        messages or tools.
        """
        return _whole(self.stream_chat(messages, params, tools=tools, **options))

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Stream:
        """Answer a conversation piece by piece. The arguments and errors are those of ``chat``."""
        return self.stream(self.prepare_chat(messages, tools).items, params, **options)

    def prepare_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> ChatPrompt:
        """Return a conversation in the model's chat format: as text, and as ids with a span for each picture and sound.

        Arguments and errors are those of ``chat_prompt``; ImageError or AudioError for one that cannot be read.
        """
        self._require_open()
        return prepare_chat(self, messages, tools, options)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> str:
        """Return a conversation as a prompt in the model's chat format.

        options: more variables of the chat template.

        Raises ChatTemplateError, as ``chat`` does; InputTooLongError for a prompt far longer than the context.
        """
        text = self.chat_template.render(messages, tools, **options)
        if len(text) > _MAX_CHARACTERS * self.n_ctx:  # encoding it would take long, and fail too
            raise InputTooLongError(
                f"the chat template made a prompt of {len(text):,} characters; the context holds {self.n_ctx} tokens",
                hint=self._forward.too_long_hint("conversation"),
            )
        return text

    @functools.cached_property
    def grammar_vocabulary(self) -> GrammarVocabulary:
        """The tokens as grammars need them. The first use takes up to a second."""
        return GrammarVocabulary.from_tokenizer(self.tokenizer)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template of the file, or the one its vocabulary implies. Raises ChatTemplateError if missing."""
        from hotshoe.chat import from_metadata  # imports Jinja2

        return from_metadata(self.metadata, self.tokenizer)

    def _all_logits(self, items: Iterable[Item]) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the logits after every row, in arrays (rows, vocab). Raises BackendError for NaN or infinity."""
        with self._filled_sequence(items) as sequence:
            yield from self.engine.all_logits(sequence)

    def _exclusive(self, work: Callable[[], T]) -> T:
        self._require_open()
        return cast("T", self.engine.in_turn(work))

    def _graph_of(self, n_tokens: int) -> Context:
        n_tokens = integer("n_tokens", n_tokens, 1, InputTooLongError)
        if n_tokens > self.params.max_graph_rows:
            raise InputTooLongError(
                f"n_tokens is {n_tokens}; a graph of this model computes at most n_ubatch={self.params.max_graph_rows}"
            )
        return self._forward.contexts.get(self._forward.signature(n_tokens)).context

    def _largest_graph(self) -> Context:
        return self._forward.contexts.get(self._forward.largest()).context

    def _free(self) -> None:
        with self.engine.lock:
            self.engine.save()
        parts: list[Any] = [self._forward, self.engine.nextn, *self.encoders]
        for part in filter(None, parts):
            part.close()
        super()._free()

    def close(self) -> None:
        """Free weights, states and graphs, after the current graph. Idempotent."""
        self.engine.close(self._free)


def _require_room(backend: Backend, free: Mapping[str, int]) -> None:
    """Raise InsufficientMemoryError if a cache is larger than the memory that was free before it was made.

    Systems allocate memory that they do not have, and end the process when it is used.
    """
    memory = backend.memory()
    for device in memory.devices if backend.params.allocate else ():
        size, left = device.sizes[1], free.get(device.device, 0)
        if left and size > left:
            device.cache = {i: Memory(m.size, AllocationStatus.FAILED) for i, m in device.cache.items()}
            raise InsufficientMemoryError(
                f"{device.device}: the cache takes {format_bytes(size)}; {format_bytes(left)} are free",
                memory=memory,
                hint="use a smaller n_ctx or n_sequences, or kv_dtype='q8_0'",
            )


def _whole(stream: Stream) -> Completion:
    for _ in stream:
        pass
    return stream.completion


def _is_one(prompt: Any) -> bool:
    """Whether ``prompt`` is a single prompt, a text or items, and not several."""
    if isinstance(prompt, (str, bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)):
        return True  # encode() reports invalid prompts
    if isinstance(prompt, np.ndarray) and not prompt.ndim:
        return True
    return not any(isinstance(p, (str, bytes, bytearray, Sequence, np.ndarray)) for p in prompt)


def _with_options(params: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    if params is not None and not isinstance(params, SamplingParams):
        raise SamplingError(
            f"params is of type {type(params).__name__}; expected SamplingParams",
            hint="give its fields by name: model.generate(prompt, temperature=0)",
        )
    try:
        return dataclasses.replace(params or SamplingParams(), **options)
    except TypeError:
        known = [f.name for f in dataclasses.fields(SamplingParams)]
        unknown = next(name for name in options if name not in known)
        raise SamplingError(f"unknown option {unknown!r}", hint=did_you_mean(unknown, known)) from None
