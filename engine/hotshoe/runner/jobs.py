"""Jobs: what the engine computes for a caller, either a generation or the logits of given tokens.

A job is *active* while the next step is to compute rows for it. It is *ready* when its caller need not wait: a result
can be fetched, or the job has *ended*. It has ended when it is *finished* (all results exist, or its caller left) or
has failed with an ``error``. A job that is neither active nor ended has as many results as it may have before its
caller fetches some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from hotshoe.kvcache.checkpoints import checkpoints
from hotshoe.runner.drafting import NOT_A_TOKEN, Drafter, Hidden, NextNLength
from hotshoe.sampling import Sampled, Sampler

if TYPE_CHECKING:
    from hotshoe.runner.cached_sequence import CachedSequence
    from hotshoe.sampling import DeviceSampling

__all__ = ["AllLogitsJob", "Event", "FinishReason", "Generation", "Job", "LogitsJob", "Token", "stacked"]

Array = np.ndarray[Any, Any]
R = TypeVar("R")

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""Why a generation ended.

"stop": a stop token, a stop text, or a grammar that is complete. "length": ``max_tokens``. "context": the context is
full. "cancelled": the stream was closed.
"""

_TOKENS_AHEAD = 8  # tokens that a generation may be ahead of its reader
_ARRAYS_AHEAD = 2  # arrays of logits that wait for their reader: each may take hundreds of MB
_MIN_FREE_ROWS = 64  # rows that must stay free when a text joins others, or it would soon lose its room again
_FEW_GUESSES = 2  # from what the text repeats: a drafting layer gives better ones
_MOST_AFTER_A_GUESS = 16  # rows that are computed again, and the next one
_MAX_FREE_ROWS = 1024  # a long prompt leaves so much room for short ones


class Token(NamedTuple):
    """A sampled token, and the duration in seconds of the steps that led to it."""

    sampled: Sampled
    seconds: float


class Event(NamedTuple):
    """What a step did for a job: a token, its end, or an error."""

    job: Job[Any]
    token: Token | None = None
    finish: FinishReason | None = None
    error: BaseException | None = None


class Job(Generic[R]):
    """A sequence that takes part in steps. The engine calls ``process`` outside its lock, and ``deliver`` under it."""

    device_sampling: DeviceSampling | None = None
    """What the device may choose, so that not all logits are read."""

    all_outputs = False
    """Whether results are needed after every row, not only after the last one."""

    min_free_rows = 0
    """Rows that must stay free in the cache when the job joins others."""

    max_results = 1
    """The job is not active while this number of results waits for the caller."""

    def __init__(self, sequence: CachedSequence) -> None:
        self.sequence = sequence
        self.ready_results: deque[R] = deque()  # computed, and not fetched yet
        self.error: BaseException | None = None
        self.arrival = -1  # set by the engine
        self.served = -1  # the last step that computed rows of it
        self.message_ends: frozenset[int] = frozenset()  # set by the engine
        self.n_overtaken = 0  # jobs that came later and began earlier, as this one did not fit into the cache
        self.seconds = 0.0  # duration of the steps since its last result

    # States

    @property
    def finished(self) -> bool:
        """Whether nothing is left to compute."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        """Whether the job is finished or has failed."""
        return self.error is not None or self.finished

    @property
    def failing(self) -> bool:
        """Whether it has failed, or will have when what ``process`` kept is delivered."""
        return self.error is not None

    @property
    def active(self) -> bool:
        """Whether the next step is to compute rows for it."""
        return not self.ended and len(self.ready_results) < self.max_results

    @property
    def ready(self) -> bool:
        """Whether its caller need not wait: a result can be fetched, or the job has ended."""
        return bool(self.ready_results) or self.ended

    @property
    def removable(self) -> bool:
        """Whether the engine may remove the job now."""
        return self.finished

    # Rows

    @property
    def n_pending(self) -> int:
        """The number of rows that are not computed yet."""
        return self.sequence.n_pending

    @property
    def n_computed(self) -> int:
        """The number of rows that are computed: the position of the first pending one."""
        return self.sequence.n_computed

    @property
    def n_draft(self) -> int:
        """How many tokens are guessed to follow the pending rows: the next one, or a few after a wrong guess."""
        n = self.n_pending
        few = n == 1 or (n <= _MOST_AFTER_A_GUESS and self.sequence.has_written(self.n_computed))
        return len(self.sequence.draft) if few else 0

    @property
    def inseparable(self) -> list[tuple[int, int]]:
        """[start, stop) of the pending rows that must be computed in one graph, counted from the first of them."""
        first = self.sequence.n_computed
        return [(max(0, a - first), b - first) for a, b in self.sequence.items.bidirectional if b > first]

    @property
    def cuts(self) -> list[int]:
        """The pending rows that a graph must begin with, counted from the first of them.

        So a graph stores one picture that layers attend to, and the cache needs no room for all of a prompt's at once.
        """
        first = self.sequence.n_computed
        return [entry.start - first for entry in self.sequence.items.attended(first + 1, self.n_pending - 1)]

    @property
    def checkpoints(self) -> list[int]:
        """After how many of the pending rows a recurrent cache should keep a state, in order."""
        return checkpoints(self.sequence.items.rows, self.sequence.n_computed, self.message_ends)

    @property
    def n_reusable(self) -> int:
        """How many rows may be reused from the cache: all but the last one, whose logits are needed."""
        return max(0, len(self.sequence) - 1)

    # Called by the engine

    def on_scheduled(self, start: int) -> None:
        """Note that a graph is about to compute its rows from ``start`` on."""

    def process(self, outputs: list[Array], sampling: DeviceSampling | None) -> None:
        """Process a graph's outputs: logits (rows, vocab), or what ``sampling`` returns. Keep errors, do not raise."""
        raise NotImplementedError

    def deliver(self) -> list[Event]:
        """Publish what ``process`` kept, and let the sequence grow by it."""
        raise NotImplementedError


class LogitsJob(Job[Array]):
    """The logits after the last row of a sequence."""

    def __init__(self, sequence: CachedSequence) -> None:
        super().__init__(sequence)
        self.logits: Array | None = None  # (1, vocab), a view of the graph's output for all jobs
        self._processed: Array | None = None

    @property
    def finished(self) -> bool:
        return self.logits is not None

    def process(self, outputs: list[Array], sampling: DeviceSampling | None) -> None:
        (self._processed,) = outputs

    def deliver(self) -> list[Event]:
        self.logits = self._processed
        return [Event(self, error=self.error)]


class AllLogitsJob(Job[Array]):
    """The logits after every row of a sequence, in arrays (rows, vocab). Rows that the cache has are computed too."""

    all_outputs = True
    max_results = _ARRAYS_AHEAD

    def __init__(self, sequence: CachedSequence) -> None:
        super().__init__(sequence)
        self._n_delivered = 0
        self._first = 0  # the row that the next results begin with
        self._processed: Array | None = None

    @property
    def finished(self) -> bool:
        return self._n_delivered == len(self.sequence)

    @property
    def n_reusable(self) -> int:
        return self._n_delivered  # after an interrupt, rows that were computed but not delivered are computed again

    def on_scheduled(self, start: int) -> None:
        self._first = start

    def process(self, outputs: list[Array], sampling: DeviceSampling | None) -> None:
        (self._processed,) = outputs

    def deliver(self) -> list[Event]:
        if self._processed is not None and self.error is None:
            rows = self._processed[self._n_delivered - self._first :]
            if len(rows):
                self.ready_results.append(rows)
            self._n_delivered += len(rows)
            self._processed = None
        return [Event(self, error=self.error)]


class Generation(Job[Token]):
    """A text that is being generated: its sampler, and the tokens that its reader has not fetched.

    max_draft: the most tokens that are guessed and computed with the next one. predicted: tokens that the text may
    repeat, at least in parts. nextn: whether the model has a layer that guesses tokens.
    """

    max_results = _TOKENS_AHEAD

    def __init__(
        self,
        sequence: CachedSequence,
        sampler: Sampler,
        stops: frozenset[int],
        *,
        max_draft: int = 0,
        predicted: Sequence[int] = (),
        nextn: bool = False,
    ) -> None:
        super().__init__(sequence)
        self.sampler = sampler
        self.stops = stops
        self.min_free_rows = max(_MIN_FREE_ROWS, min(len(sequence), _MAX_FREE_ROWS))
        self.n_prompt = sequence.n_given = len(sequence)
        self.n_cached: int | None = None  # rows of the prompt that the cache had already; None before the first graph
        self.nearest = sequence.nearest
        self.n_tokens = 0
        self.n_drafted = 0  # guessed tokens that were computed
        self.n_accepted = 0  # those of them that the sampler chose
        self.finish: FinishReason | None = None
        self._max_draft = max_draft
        self._predicted = predicted
        self._drafter: Drafter | None = None  # made with the first token
        self.hidden: Array | None = None  # the hidden states of the rows of the outputs, if the model drafts tokens
        self.last_hidden: Hidden | None = None  # the model's hidden state after the last row that it computed
        self._nextn = NextNLength() if nextn else None
        self._is_nextn = False  # whether the draft is that of the model's layer
        self._processed: list[Sampled] = []  # tokens that are not delivered yet
        self._draft: list[int] = []  # guessed to follow these
        self._ending: FinishReason | None = None  # after these tokens
        self._failure: Exception | None = None  # after these tokens

    @property
    def device_sampling(self) -> DeviceSampling | None:  # type: ignore[override]
        return self.sampler.device_sampling

    @property
    def finished(self) -> bool:
        return self.finish is not None

    @property
    def failing(self) -> bool:
        return self.error is not None or self._failure is not None

    @property
    def expects_more(self) -> bool:
        """Whether there may be a token after the next one, and a place where it waits for its reader."""
        limit = self.sampler.params.max_tokens
        return (limit is None or self.n_tokens + 1 < limit) and len(self.ready_results) + 1 < self.max_results

    @property
    def expects_draft(self) -> bool:
        """Whether there may be guesses for the tokens after the next one."""
        return self._drafter is not None and self._drafter.guesses

    @property
    def expects_nextn(self) -> bool:
        """Whether the model's drafting layer may guess tokens, if no other text is written."""
        return self._nextn is not None and self._nextn.n > 0

    @property
    def n_nextn(self) -> int:
        """How many tokens the model's drafting layer is to guess; 0 where the text itself gives good guesses."""
        if self._nextn is None or self.last_hidden is None or len(self.sequence.draft) > _FEW_GUESSES:
            return 0
        return max(0, min(self._nextn.n, self._most_guesses(self.n_tokens)))

    @property
    def removable(self) -> bool:
        return self.finish == "cancelled"  # tokens of a text that finished otherwise may still be fetched

    def on_scheduled(self, start: int) -> None:
        if self.n_cached is None:
            self.n_cached, self.nearest = start, self.sequence.nearest

    def process(self, outputs: list[Array], sampling: DeviceSampling | None) -> None:
        if self._processed or self._ending or self._failure:  # of a step that was interrupted: the sampler knows them
            return
        draft = self.sequence.draft[: len(outputs[0]) - 1]
        try:
            for i in range(len(outputs[0])):
                rows = [output[i] for output in outputs]
                sampled = self.sampler.sample(rows[0]) if sampling is None else self.sampler.sample_from(*rows)
                self._accept(sampled)
                if self._ending is not None or draft[i : i + 1] != [sampled.id]:
                    break
        except Exception as error:  # for its own reader, not for the thread that runs the step
            self._failure = error
        n = sum(guess == sampled.id for guess, sampled in zip(draft, self._processed, strict=False))
        self.n_drafted, self.n_accepted = self.n_drafted + len(draft), self.n_accepted + n
        if self._nextn is not None and self.hidden is not None and self._processed:
            self._nextn.learn(n, len(draft) if self._is_nextn else 0)
            last = len(self._processed) - 1
            self.last_hidden = Hidden(len(self.sequence) + last, self.hidden[last].copy())
        self._draft = [] if self._ending or self._failure else self._guess()

    def _accept(self, sampled: Sampled) -> None:
        if sampled.id in self.stops:
            self._ending = "stop"
            return
        self.sampler.accept(sampled.id)
        self._processed.append(sampled)
        limit = self.sampler.params.max_tokens
        if self.sampler.complete:
            self._ending = "stop"
        elif limit is not None and self.n_tokens + len(self._processed) >= limit:
            self._ending = "length"

    def deliver(self) -> list[Event]:
        if self.finish is not None:  # it was cancelled in the meantime
            return [Event(self, finish=self.finish, error=self.error)]
        events = []
        while self._processed:  # each goes when it is published: an interrupt must not lose what the sampler accepted
            events.append(self._deliver(self._processed[0]))
            del self._processed[0]
        self.sequence.draft, self._is_nextn = self._draft, False
        self.finish, self.error = self._ending, self.error or self._failure
        self._ending = self._failure = None
        if self.ended:
            token = events.pop().token if events else None
            events.append(Event(self, token, self.finish, self.error))
        return events

    def _deliver(self, sampled: Sampled) -> Event:
        token = Token(sampled, self.seconds)
        self.ready_results.append(token)
        self.seconds = 0.0
        self.n_tokens += 1
        self.sequence.items.extend((sampled.id,))
        return Event(self, token)

    def _guess(self) -> list[int]:
        """Guess the tokens that follow those just processed."""
        if not self._max_draft:
            return []
        if self._drafter is None:
            rows = self.sequence.items.rows
            self._drafter = Drafter([row if isinstance(row, int) else NOT_A_TOKEN for row in rows], self._predicted)
        for sampled in self._processed:
            self._drafter.add(sampled.id)
        return self._drafter.draft(self._most_guesses(self.n_tokens + len(self._processed)))

    def guess_with(self, draft: list[int]) -> None:
        """Take the guesses of the model's drafting layer, if it has some."""
        if draft:
            self.sequence.draft, self._is_nextn = draft, True

    def _most_guesses(self, n_tokens: int) -> int:
        """Return how many guesses may follow the next token, after ``n_tokens``."""
        limit = self.sampler.params.max_tokens
        return self._max_draft if limit is None else min(self._max_draft, limit - n_tokens - 1)


def stacked(rows: Sequence[Array]) -> Array:
    """Join arrays (1, vocab) to (n, vocab): without a copy if they are consecutive in memory, as 8 rows take 5 MB."""
    first = rows[0]
    if len(rows) == 1:
        return first
    begin, step, base = first.ctypes.data, first.nbytes, first.base
    together = all(row.base is base and row.ctypes.data == begin + i * step for i, row in enumerate(rows))
    if base is None or not together:
        return np.concatenate(rows)
    shape, strides = (len(rows), *first.shape[1:]), (step, *first.strides[1:])
    return np.lib.stride_tricks.as_strided(first, shape, strides)  # keeps the base alive
