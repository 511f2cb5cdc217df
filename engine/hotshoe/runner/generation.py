"""Streams and completions: the text of one generation, with everything SamplingParams asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotshoe.runner.engine import Engine
from hotshoe.runner.jobs import FinishReason, Generation
from hotshoe.sampling import Sampled, StopMatcher

if TYPE_CHECKING:
    from hotshoe.tokenizers import Tokenizer

__all__ = ["Completion", "Stream"]


@dataclass(slots=True)
class Completion:
    """What was generated. Times are in seconds; logprobs holds one Sampled a token, if they were asked for.

    Steps that served other generations too count in full for each.
    """

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

    ``close()``, dropping it, or an exception (Ctrl-C) ends it, and the model stays usable. A loop that was left may be
    taken up again.
    Streams that are read by turns, or by several threads, are computed together. Not itself for several threads.
    """

    def __init__(self, engine: Engine, generation: Generation, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._generation = generation
        self._params = generation.sampler.params
        self._decoder = tokenizer.stream()
        self._matcher = StopMatcher(self._params.stop)
        self.completion = Completion(n_prompt=generation.n_prompt, seed=generation.sampler.seed)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while self.completion.finish_reason is None:
            piece = self.advance()
            if piece:
                return piece
        raise StopIteration

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # left in the middle: the engine must not compute for nobody. No lock here: it may be the collector that calls
        if getattr(self, "completion", None) is not None and self.completion.finish_reason is None:
            self._generation.finish = "cancelled"

    def close(self) -> None:
        """End the generation here."""
        self._end("cancelled")

    @property
    def ready(self) -> bool:
        """Whether ``advance`` has something without a step: a token that was computed meanwhile, or the end."""
        g = self._generation
        return bool(g.ready) or g.finish is not None or g.error is not None

    def start(self) -> None:
        """Take part in the steps that others run."""
        self._engine.add(self._generation)

    def advance(self) -> str:
        """One more token: the text that is certain now, perhaps none. ``completion.finish_reason`` tells of the end."""
        if self.completion.finish_reason is not None:
            return ""
        done, g = self.completion, self._generation
        try:
            token = self._engine.next(g)
        except BaseException:
            self._end("cancelled")
            raise
        done.n_cached = g.n_cached or 0
        if token is None:
            return self._flush(g.finish or "cancelled")
        if done.tokens:
            done.decode_seconds += token.seconds
        else:
            done.prompt_seconds = token.seconds
        if self._params.logprobs is not None:
            done.logprobs.append(token.sampled)
        done.tokens.append(token.sampled.id)
        piece = self._matcher.add(self._decoder.add(token.sampled.id))
        done.text += piece
        if self._matcher.matched is not None:
            self._end("stop")
        elif g.finish is not None and not g.ready:
            piece += self._flush(g.finish)
        return piece

    def _flush(self, reason: FinishReason) -> str:
        rest = self._matcher.add(self._decoder.flush()) + self._matcher.flush()
        self.completion.text += rest
        self._end("stop" if self._matcher.matched is not None else reason)
        return rest

    def _end(self, reason: FinishReason) -> None:
        if self.completion.finish_reason is None:
            self.completion.finish_reason = reason
        self._generation.finish = self._generation.finish or reason
        self._engine.remove(self._generation)
