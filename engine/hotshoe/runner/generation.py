"""Generation: a prompt continued token by token, with everything SamplingParams asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hotshoe.sampling import Sampled, Sampler, SamplingParams, StopMatcher

if TYPE_CHECKING:
    from hotshoe.sampling import Constraint
    from hotshoe.tokenizers import Tokenizer

__all__ = ["Completion", "FinishReason", "Stream"]

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""Why a generation ended: a stop token, stop text or finished grammar; max_tokens; a full context; or it was left."""


@dataclass(slots=True)
class Completion:
    """What was generated. Times are in seconds; logprobs holds one Sampled a token, if they were asked for."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    n_prompt: int = 0
    n_cached: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    seed: int = 0
    logprobs: list[Sampled] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding: of the tokens after the first."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds and len(self.tokens) > 1 else 0.0

    def __str__(self) -> str:
        return self.text


class Stream:
    """Iterate over it for pieces of text, complete characters only. ``completion`` grows meanwhile.

    Leaving the loop, ``close()`` or an exception (Ctrl-C) between two tokens ends it; the model stays usable.
    """

    def __init__(
        self,
        logits_after: Callable[[list[int]], np.ndarray[Any, Any]],
        cached: Callable[[list[int]], int],
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        n_ctx: int,
        n_vocab: int,
        params: SamplingParams,
        grammar: Constraint | None = None,
    ) -> None:
        self._logits_after = logits_after
        self._cached = cached
        self._tokenizer = tokenizer
        self._prompt = list(prompt)
        self._n_ctx = n_ctx
        self._params = params
        self._sampler = Sampler(params, n_vocab, grammar)
        self._stops = tokenizer.stop_ids | frozenset(params.stop_tokens)
        self.completion = Completion(n_prompt=len(self._prompt), seed=self._sampler.seed)
        self._pieces = self._generate()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the generation here."""
        self._pieces.close()

    def _generate(self) -> Iterator[str]:
        done, ids = self.completion, list(self._prompt)
        decoder, matcher = self._tokenizer.stream(), StopMatcher(self._params.stop)
        self._sampler.observe(ids)
        done.n_cached = min(self._cached(ids), len(ids) - 1)
        try:
            while done.finish_reason is None:
                token = self._step(ids)
                if token is None:
                    break
                piece = matcher.add(decoder.add(token))
                done.text += piece
                if matcher.matched is not None or self._sampler.complete:
                    done.finish_reason = "stop"
                elif self._params.max_tokens is not None and len(done.tokens) >= self._params.max_tokens:
                    done.finish_reason = "length"
                if piece:
                    yield piece
            rest = ""
            if matcher.matched is None:
                rest = matcher.add(decoder.flush()) + matcher.flush()
                done.text += rest
            if rest:
                yield rest
        except GeneratorExit:
            done.finish_reason = "cancelled"
            raise

    def _step(self, ids: list[int]) -> int | None:
        """The next token, added to ``ids``; None at the end."""
        done = self.completion
        if len(ids) > self._n_ctx:
            done.finish_reason = "context"
            return None
        start = time.perf_counter()
        sampled = self._sampler.sample(self._logits_after(ids))
        elapsed = time.perf_counter() - start
        if done.tokens:
            done.decode_seconds += elapsed
        else:
            done.prompt_seconds = elapsed
        if sampled.id in self._stops:
            done.finish_reason = "stop"
            return None
        self._sampler.accept(sampled.id)
        if self._params.logprobs is not None:
            done.logprobs.append(sampled)
        done.tokens.append(sampled.id)
        ids.append(sampled.id)
        return sampled.id
