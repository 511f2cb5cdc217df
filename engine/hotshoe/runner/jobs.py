"""What an engine computes for somebody: a generation, or the logits of tokens that were given."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hotshoe.sampling import Sampled, Sampler

if TYPE_CHECKING:
    from hotshoe.runner.prefix import Held
    from hotshoe.sampling import DeviceOp

__all__ = ["AllLogitsJob", "Event", "FinishReason", "Generation", "Job", "LogitsJob", "Token"]

Array = np.ndarray[Any, Any]

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""Why a generation ended: a stop token, stop text or finished grammar; max_tokens; a full context; or it was left."""

_AHEAD = 8  # tokens a generation may be ahead of its reader, because others pulled
_PIECES_AHEAD = 2  # pieces of logits that wait for their reader: each may be hundreds of MB
_SPARE = 64  # room that must be left when a text joins others, or it would soon be thrown out again


class Token(NamedTuple):
    """One that was chosen, and the seconds of the steps that led to it."""

    sampled: Sampled
    seconds: float


class Event(NamedTuple):
    """What a step did for a job: a token, its end, or an error."""

    job: Job
    token: Token | None = None
    finish: FinishReason | None = None
    error: BaseException | None = None


class Job:
    """One sequence that takes part in steps. The engine calls ``take`` outside its lock, ``deliver`` under it."""

    device_op: DeviceOp | None = None
    all_outputs = False  # results after every token, not only after the last
    reuse = True  # whether the sequence may begin with what others computed
    spare = 0  # room that must be left besides its tokens when it joins others

    def __init__(self, sequence: Held) -> None:
        self.sequence = sequence
        self.arrival = -1  # set by the engine
        self.served = -1  # the last step that computed something of it
        self.seconds = 0.0  # of steps since it last got something
        self.error: BaseException | None = None

    @property
    def active(self) -> bool:
        """Whether the next step is for this one too."""
        raise NotImplementedError

    def begin(self) -> None:
        """Called before the sequence gets its place in a step."""

    def placed(self, start: int) -> None:
        """Called when a graph is to compute its rows from ``start`` on."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to be computed."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether whoever waits for it need not wait: it has something, or has ended."""
        raise NotImplementedError

    def take(self, results: list[Array], op: DeviceOp | None) -> None:
        """What a graph gave for it: logits (rows, vocab), or what ``op`` names of them. Errors are kept, not raised."""
        raise NotImplementedError

    def deliver(self) -> Event:
        """Make what was taken known: the sequence goes on with it."""
        raise NotImplementedError


class LogitsJob(Job):
    """The logits after the last token of a sequence."""

    def __init__(self, sequence: Held) -> None:
        super().__init__(sequence)
        self.logits: Array | None = None  # (1, vocab), a part of what the graph gave for all
        self._taken: Array | None = None

    @property
    def done(self) -> bool:
        return self.logits is not None

    @property
    def active(self) -> bool:
        return self.error is None and not self.done

    @property
    def settled(self) -> bool:
        return not self.active

    def take(self, results: list[Array], op: DeviceOp | None) -> None:
        (self._taken,) = results

    def deliver(self) -> Event:
        self.logits = self._taken
        return Event(self, error=self.error)


class AllLogitsJob(Job):
    """The logits after every token of a sequence, all computed anew, in pieces that a reader fetches from ``ready``."""

    all_outputs = True
    reuse = False

    def __init__(self, sequence: Held) -> None:
        super().__init__(sequence)
        self.ready: deque[Array] = deque()  # (rows, vocab) each, in order
        self._n_delivered = 0
        self._first = 0  # the row that the next results begin with
        self._taken: Array | None = None

    @property
    def done(self) -> bool:
        return self._n_delivered == len(self.sequence)

    @property
    def active(self) -> bool:
        return self.error is None and not self.done and len(self.ready) < _PIECES_AHEAD

    @property
    def settled(self) -> bool:
        return bool(self.ready) or self.done or self.error is not None

    def begin(self) -> None:
        # rows that were computed but never delivered, for an interrupt, are computed again
        self.sequence.n_computed = min(self.sequence.n_computed, self._n_delivered)

    def take(self, results: list[Array], op: DeviceOp | None) -> None:
        (self._taken,) = results

    def deliver(self) -> Event:
        if self._taken is not None:
            rows = self._taken[self._n_delivered - self._first :]
            if len(rows):
                self.ready.append(rows)
            self._n_delivered += len(rows)
            self._taken = None
        return Event(self, error=self.error)

    def placed(self, start: int) -> None:
        self._first = start


class Generation(Job):
    """One text on its way: how to choose, and the tokens nobody has fetched yet."""

    spare = _SPARE

    def __init__(self, sequence: Held, sampler: Sampler, stops: frozenset[int]) -> None:
        super().__init__(sequence)
        self.sampler = sampler
        self.stops = stops
        self.n_prompt = len(sequence)
        self.n_cached: int | None = None  # rows of the prompt that were there already; None before the first step
        self.n_tokens = 0
        self.ready: deque[Token] = deque()
        self.finish: FinishReason | None = None
        self._taken: Sampled | None = None

    @property
    def device_op(self) -> DeviceOp | None:  # type: ignore[override]
        return self.sampler.device_op

    @property
    def done(self) -> bool:
        return self.finish is not None

    @property
    def active(self) -> bool:
        return self.finish is None and self.error is None and len(self.ready) < _AHEAD

    @property
    def settled(self) -> bool:
        return bool(self.ready) or self.finish is not None or self.error is not None

    def take(self, results: list[Array], op: DeviceOp | None) -> None:
        rows = [r[0] for r in results]
        try:
            if op is None:
                self._taken = self.sampler.sample(rows[0])
            else:
                self._taken = self.sampler.sample_from(*rows)
        except Exception as error:  # its reader's business, not that of whoever ran the step
            self.error = error

    def deliver(self) -> Event:
        sampled, self._taken = self._taken, None
        if sampled is None or self.finish is not None:  # an error, or it was left meanwhile
            return Event(self, None, self.finish, self.error)
        if sampled.id in self.stops:
            self.finish = "stop"
            return Event(self, None, self.finish)
        try:
            self.sampler.accept(sampled.id)
        except Exception as error:
            self.error = error
            return Event(self, error=error)
        token = Token(sampled, self.seconds)
        self.ready.append(token)
        self.seconds = 0.0
        self.n_tokens += 1
        self.sequence.items.extend((sampled.id,))
        params = self.sampler.params
        if self.sampler.complete:
            self.finish = "stop"
        elif params.max_tokens is not None and self.n_tokens >= params.max_tokens:
            self.finish = "length"
        return Event(self, token, self.finish)
