"""Stream and Completion: the text of one generation, piece by piece and as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotshoe.runner.cached_sequence import Nearest
from hotshoe.runner.engine import Engine
from hotshoe.runner.items import Row
from hotshoe.runner.jobs import FinishReason, Generation
from hotshoe.sampling import Sampled, StopMatcher

if TYPE_CHECKING:
    from hotshoe.tokenizers import Tokenizer

__all__ = ["Completion", "Stream"]


@dataclass(slots=True)
class Completion:
    """A generated text. ``str(completion)`` is the text."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    """The generated token ids."""

    finish_reason: FinishReason | None = None
    """Why the text ended: "stop", "length", "context" or "cancelled"; None while it is being generated."""

    n_prompt: int = 0
    """Tokens of the prompt."""

    n_cached: int = 0
    """Tokens of the prompt that the cache had already, from an earlier text that begins alike."""

    nearest: Nearest = field(default_factory=Nearest)
    """How much of the prompt the nearest cached text had in common, and with which token that went on instead.

    More than ``n_cached`` where a part could not be reused: the last token, whose logits are needed, and the rows of a
    model that cannot go on at every place.
    """

    prompt_seconds: float = 0.0
    """Seconds from the first step to the first token. Steps that other generations share count in full."""

    decode_seconds: float = 0.0
    """Seconds for the tokens after the first. Steps that other generations share count in full.

    A GPU computes while the reader works. If the reader takes longer than the step, this is the reader's time.
    """

    seed: int = 0
    """The seed of the sampler; the same seed and parameters give the same text."""

    stop_text: str | None = None
    """The text of ``SamplingParams.stop`` that ended it; None if something else did."""

    n_drafted: int = 0
    """Tokens that were guessed and computed with the next one: see ``max_draft``."""

    n_accepted: int = 0
    """Guessed tokens that the sampler then chose."""

    logprobs: list[Sampled] = field(default_factory=list)
    """One entry for each token, if ``SamplingParams.logprobs`` is set."""

    @property
    def tokens_per_second(self) -> float:
        """The decoding speed, measured without the first token; 0 for fewer than two tokens."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds and len(self.tokens) > 1 else 0.0

    def __str__(self) -> str:
        return self.text


class Stream:
    """A text that is being generated. Iterate over it for pieces of text; they contain complete characters only.

    ``completion`` grows with every piece. A second loop continues where the first was left. ``close()``, the deletion
    of the stream, or an exception in ``next`` (Ctrl-C) ends the text; the model stays usable. Several streams run as
    one batch, whether one thread alternates between them or each has its own thread. Only ``cancel`` may be called by
    another thread than the one that reads the stream.
    """

    def __init__(self, engine: Engine, generation: Generation, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        """skip_special: leave control, unknown and unused tokens out of the text."""
        self._engine = engine
        self._generation = generation
        self._params = generation.sampler.params
        self._decoder = tokenizer.stream(skip_special)
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

    def __repr__(self) -> str:
        return f"<Stream of {len(self.completion.tokens)} tokens so far; iterate over it, or see .completion>"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # the engine must not compute for a dropped stream. No lock: the garbage collector may call this
        if getattr(self, "completion", None) is not None and self.completion.finish_reason is None:
            self._generation.finish = "cancelled"

    @property
    def prompt(self) -> list[Row]:
        """The rows of the prompt."""
        return self._generation.sequence.items.rows[: self._generation.n_prompt]

    def close(self) -> None:
        """End the text here. Idempotent."""
        self._end("cancelled")

    def cancel(self) -> None:
        """End the text from another thread, before its next token: ``advance`` then returns. Idempotent."""
        self._generation.finish = self._generation.finish or "cancelled"

    @property
    def ready(self) -> bool:
        """Whether ``advance`` returns without a step: a token is waiting, or the text has ended."""
        return self._generation.ready

    def start(self) -> None:
        """Take part in the steps that other streams run, before the first ``advance``."""
        self._engine.add(self._generation)

    def advance(self) -> str:
        """Generate one token; return the text that it completes, which may be empty.

        ``completion.finish_reason`` is set at the end of the text.
        """
        if self.completion.finish_reason is not None:
            return ""
        done, g = self.completion, self._generation
        try:
            token = self._engine.next(g)
        except BaseException:
            self._end("cancelled")
            raise
        done.n_cached, done.nearest = g.n_cached or 0, g.nearest
        done.n_drafted, done.n_accepted = g.n_drafted, g.n_accepted
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
        elif g.finish is not None and not g.ready_results:
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
            self.completion.stop_text = self._matcher.matched
        self._generation.finish = self._generation.finish or reason
        self._engine.remove(self._generation)
