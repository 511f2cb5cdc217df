"""The engine: every step computes the next rows of all active jobs, in as few graphs as possible.

A thread that waits for a result runs the steps for all jobs; other threads then find their results ready. So threads
that each read a stream share the work, and so does a program that reads several streams in turn.

Two things exclude threads from each other. The *lock* protects records on the host, for microseconds. The *turn*
protects the device, for a whole step; the thread that has it may take the lock, but no thread that holds the lock may
request the turn. docs/flow.md compares them in a table.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hotshoe.runner.admission import attach_jobs_that_fit
from hotshoe.runner.cached_sequence import CachedSequence
from hotshoe.runner.items import Items
from hotshoe.runner.jobs import AllLogitsJob, Event, Generation, Job, LogitsJob, stacked
from hotshoe.runner.pace import Pace
from hotshoe.runner.pipeline import Forward, JobChunk, Pipeline
from hotshoe.runner.scheduler import Limits, schedule
from hotshoe.runner.slots import Slots
from hotshoe_core.errors import ClosedError, GraphError

if TYPE_CHECKING:
    from hotshoe.runner.nextn import NextNDrafter
    from hotshoe_core import Backend

__all__ = ["Engine"]

Array = np.ndarray[Any, Any]
T = TypeVar("T")
R = TypeVar("R")

_SHORT_ABSENCE = 1e-3  # seconds: with more, the time of a graph is that of its readers


class Engine:
    """The jobs of one model, in the order they came, and its cache.

    pace: bounds the steps by their time. not_finite: makes the error for logits that are NaN or infinity.
    message_ends: the tokens that end a message. sample_on_device: whether top-k is computed on the
    device too, which pays if logits would have to cross a bus.
    """

    def __init__(
        self,
        backend: Backend,
        forward: Forward,
        slots: Slots,
        limits: Limits,
        pace: Pace,
        *,
        n_ctx: int,
        not_finite: Callable[[], Exception],
        message_ends: frozenset[int] = frozenset(),
        sample_on_device: bool = False,
    ) -> None:
        self.n_ctx = n_ctx
        self.nextn: NextNDrafter | None = None  # set if the model has a layer that drafts tokens
        self._message_ends = message_ends
        self._backend = backend
        self._forward = forward
        self._slots = slots
        self._pipeline = Pipeline(forward, slots, not_finite=not_finite, sample_on_device=sample_on_device)
        self._limits = limits
        self._pace = pace
        self._is_paced = True
        # a C lock and `with`: Ctrl-C cannot come between taking the lock and entering the block
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._turn: object | None = None  # identifies the thread that has the turn
        self._jobs: list[Job[Any]] = []
        self._arrivals = itertools.count()
        self._n_steps = 0
        self._closed = False

    @property
    def lock(self) -> Any:
        """The lock. Raises ForkedProcessError in a forked process, where the thread that held it does not exist."""
        self._backend.require_process()
        return self._lock

    @property
    def jobs(self) -> tuple[Job[Any], ...]:
        """The jobs that take part in the steps."""
        with self.lock:
            return tuple(self._jobs)

    @contextmanager
    def without_pace(self) -> Iterator[None]:
        """Let ``n_batch`` alone bound the steps, however long they take."""
        self._is_paced = False
        try:
            yield
        finally:
            self._is_paced = True

    # Jobs

    def add(self, job: Job[Any]) -> None:
        """Let a job take part in the steps from now on. Idempotent."""
        with self.lock:
            self._require_open()
            if job not in self._jobs:
                if job.arrival < 0:
                    job.arrival, job.message_ends = next(self._arrivals), self._message_ends
                self._jobs.append(job)
                self._changed.notify_all()

    def remove(self, job: Job[Any], *, detach: bool = True) -> None:
        """Remove a job; with ``detach`` its sequence gives up its slot. Idempotent.

        Does not wait for a step in progress. Does nothing in a forked process.
        """
        if self._backend.is_forked_copy:
            return
        with self.lock:
            if job in self._jobs:
                self._jobs.remove(job)
                if detach:
                    self._slots.detach(job.sequence)

    def next(self, job: Job[R]) -> R | None:
        """Return the next result of a job; None when there are no more. Raises the error of a job that failed."""
        self.add(job)
        self._wait_for((job,))
        with self.lock:
            if job.ready_results:
                return job.ready_results.popleft()
        if job.error is not None:
            raise job.error
        return None

    def extend(self, sequences: Sequence[CachedSequence], items: Sequence[Any]) -> Array:
        """Append items to each of several sequences: return the logits after each, float32 (n, vocab).

        Raises InputTooLongError, TokenizerError, ShapeError, BackendError for NaN, or GraphError if another thread
        extends or shortens one of the sequences. After an error or an interrupt no sequence is changed.
        """
        jobs, lengths = list[LogitsJob](), list[int]()
        try:
            with self.lock:
                self._require_open()
                if any(job.sequence in sequences and not job.ended for job in self._jobs):
                    raise GraphError(
                        "another thread is extending the sequence; expected one thread at a time",
                        hint="give each thread a sequence of its own: sequence.fork()",
                    )
                lengths = [len(sequence) for sequence in sequences]
                for sequence, before, added in zip(sequences, lengths, items, strict=True):
                    sequence.items.extend(added)
                    self._forward.check(sequence.items, before)
                jobs = [LogitsJob(sequence) for sequence in sequences]
                for job in jobs:
                    self.add(job)
            self._wait_for(jobs)
            for job in jobs:
                if job.error is not None:
                    raise job.error
            return stacked([job.logits for job in jobs if job.logits is not None])
        except BaseException:
            self._restore(sequences, lengths)
            raise
        finally:
            for job in jobs:
                self.remove(job, detach=False)

    def all_logits(self, sequence: CachedSequence) -> Iterator[Array]:
        """Yield the logits after every row, in arrays (rows, vocab). Rows that the cache has are computed too."""
        job = AllLogitsJob(sequence)
        try:
            while (rows := self.next(job)) is not None:
                yield rows
        finally:
            self.remove(job)

    def _restore(self, sequences: Sequence[CachedSequence], lengths: Sequence[int]) -> None:
        with self.lock:
            for sequence, n in zip(sequences, lengths, strict=False):  # no lengths if nothing was changed yet
                if len(sequence) > n:
                    self._slots.truncate(sequence, n)

    # Sequences

    def fork_sequence(self, source: CachedSequence, copy: CachedSequence) -> None:
        """Share the computed rows of ``source`` with ``copy``, which has the same items. Does not wait for a step."""
        with self.lock:
            self._slots.fork_sequence(source, copy)

    def truncate(self, sequence: CachedSequence, n: int) -> None:
        """Keep the first ``n`` rows. Raises GraphError inside a span. Does not wait for a step."""
        with self.lock:
            self._slots.truncate(sequence, n)
            self._fail_extension(sequence)

    def detach(self, sequence: CachedSequence) -> None:
        """Make its slot available to others. Does not wait for a step. Does nothing in a forked process."""
        if not self._backend.is_forked_copy:
            with self.lock:
                self._slots.detach(sequence)

    def save(self) -> None:
        """Give what the cache holds to the store, if there is one. Called in the turn, under the lock."""
        if self._slots.store is not None:
            self._slots.rollback()
            self._slots.save()

    def forget(self) -> None:
        """Remove from the cache all rows that no sequence owns."""
        with self.lock:
            self._require_open()
            self._slots.forget()

    def shift(self, sequence: CachedSequence, keep: int, n: int) -> None:
        """Remove ``n`` rows after the first ``keep``; see TokenSequence.shift. Waits for the turn: it computes."""

        def work() -> None:
            with self.lock:
                self._require_open()
                self._shift(sequence, keep, n)
                self._fail_extension(sequence)

        self.in_turn(work)

    def _shift(self, sequence: CachedSequence, keep: int, n: int) -> None:
        self._slots.attach(sequence, len(sequence))
        self._slots.shift(sequence, keep, n)

    def _fail_extension(self, sequence: CachedSequence) -> None:
        """End the ``extend`` of another thread, whose rows this thread may have removed."""
        for job in self._jobs:
            if isinstance(job, LogitsJob) and job.sequence is sequence and not job.ended:
                job.error = GraphError("another thread shortened the sequence, which this thread was extending")
                self._changed.notify_all()

    def shift_refusal(self, items: Items) -> str | None:
        """Return the reason why a sequence of these items cannot be shifted; None if it can."""
        return self._slots.shift_refusal(items)

    # Steps

    def step(self, urgent: Job[Any] | None = None) -> list[Event]:
        """Run one step, unless another thread has the turn; return what it did. ``urgent`` gets its room first.

        It computes the next row of every job that decodes, and parts of prompts. A device may still compute when it
        returns: the next step hands out the results.
        """
        return self._in_turn(lambda: self._step(urgent), wait=False) or []

    def in_turn(self, work: Callable[[], T]) -> T | None:
        """Call ``work`` while no other thread computes, and the device computes no step."""

        def after_step() -> T:
            self._settle()
            return work()

        return self._in_turn(after_step, wait=True)

    def _in_turn(self, work: Callable[[], T], *, wait: bool) -> T | None:
        """Call ``work`` while no other thread computes. Without ``wait``: return None if another thread does."""
        me = object()
        try:
            try:
                with self.lock:
                    while self._turn is not None:
                        if not wait:
                            return None
                        self._changed.wait()
                    self._turn = me
                return work()
            finally:
                self._give_turn(me)
        finally:
            self._give_turn(me)  # again: Ctrl-C during the first call must not keep the turn for ever

    def _give_turn(self, me: object) -> None:
        if self._turn is me:  # not in a forked process, which must not wait for the lock
            with self._lock:
                self._turn = None
                self._changed.notify_all()

    def _wait_for(self, jobs: Sequence[Job[Any]]) -> None:
        """Return when all jobs are ready. Another waiting thread, or else this thread, runs the steps."""
        while True:
            with self.lock:
                self._require_open()
                waiting = next((job for job in jobs if not job.ready), None)
                if waiting is None:
                    return
                if self._turn is not None:
                    self._changed.wait()
                    continue
            self.step(waiting)

    def _step(self, urgent: Job[Any] | None) -> list[Event]:
        self._pipeline.enter()
        try:
            events: list[Event] = []
            if self._pipeline.running and not self._goes_on_at_once():
                self._while_running(self._prepare_next)
                events = self._finish(notify=False)
                if self._fill_next():
                    return events + self._start()  # readers are woken when the device computes again
                with self.lock:
                    self._changed.notify_all()
            if self.nextn is not None and not self._pipeline.running:
                self.nextn.draft_for(self._jobs, self._slots, self.n_ctx)
            more, graphs = self._prepare_step(urgent)
            return events + more + self._run(graphs)
        except BaseException:
            with self.lock:
                self._pipeline.abandon()
            raise
        finally:
            self._pipeline.leave()

    def _goes_on_at_once(self) -> bool:
        """Whether the next step may begin before the running graph ends: this has no results, and no shift is due."""
        with self.lock:
            self._require_open()
            fits = all(len(job.sequence) <= self.n_ctx for job in self._jobs)
            return self._pipeline.without_results and self._pace.known and self._slots.store is None and fits

    def _run(self, graphs: list[list[JobChunk]]) -> list[Event]:
        """Compute the graphs of a step. Each is prepared while the device computes the one before."""
        events: list[Event] = []
        for i, graph in enumerate(graphs):
            later = [chunk.job.sequence for other in graphs[i + 1 :] for chunk in other]
            if self._pipeline.running:
                self._while_running(partial(self._prepare, graph, later))
                events += self._finish()
            if self._prepare(graph, later):  # again, if a job failed, or its rows were changed, meanwhile
                events += self._start()
        return events if graphs else self._finish()

    def _while_running(self, prepare: Callable[[], object]) -> None:
        """Prepare a graph. If that fails, it is tried again when the running one is complete: its results count."""
        try:
            prepare()
        except Exception:
            with self.lock:
                self._pipeline.cancel_prepared()

    def _prepare_next(self) -> None:
        """Prepare the next rows of the texts that the device computes, if the next step will compute exactly these."""
        with self.lock:
            chunks = self._pipeline.running
            expected = all(
                c.outputs and not c.drafted and isinstance(c.job, Generation) and self._goes_on(c.job) for c in chunks
            )
            if expected and {c.job for c in chunks} == {job for job in self._jobs if job.active}:
                self._pipeline.prepare_next()
        if self._pipeline.prepared:
            self._pipeline.compile()

    def _goes_on(self, job: Generation) -> bool:
        """Whether a generation will have one row for the next step, unless its next token ends it."""
        guesses = job.expects_draft or (job.expects_nextn and len(self._pipeline.running) == 1)
        room = len(job.sequence) < self.n_ctx
        return job.active and job.expects_more and not guesses and room and not job.sequence.edited

    def _fill_next(self) -> bool:
        """Fill in the tokens of the rows that were prepared; False if the next step needs other ones, or more."""
        with self.lock:
            jobs = [] if self._closed else [job for job in self._jobs if job.active]
            filled = self._pipeline.fill_next(jobs)
            self._n_steps += filled
            return filled

    def _prepare(self, chunks: list[JobChunk], later: Sequence[CachedSequence]) -> bool:
        """Prepare one graph, for jobs that are still there and whose rows have not changed. Idempotent.

        later: the sequences of later graphs. Return False if no job is left.
        """
        with self.lock:
            self._require_open()
            chunks = [c for c in chunks if c.job in self._jobs and not c.job.ended and not c.job.sequence.edited]
            if chunks != self._pipeline.prepared:
                self._pipeline.cancel_prepared()
                if chunks:
                    self._pipeline.prepare(chunks, later)
        if chunks and self._pipeline.running:
            self._pipeline.compile()
        return bool(chunks)

    def _start(self) -> list[Event]:
        """Start the graph that was prepared. Return its results, if it is computed at once."""
        with self.lock:
            self._pipeline.commit(self._n_steps)
        return [] if self._pipeline.start() else self._finish()

    def _finish(self, *, notify: bool = True) -> list[Event]:
        """Wait for the graph that was started, if there is one, and hand out its results."""
        if (finished := self._pipeline.finish()) is None:
            return []
        with self.lock:
            events = self._pipeline.deliver(finished)
            starts = [start for start, _ in finished.parts]
            if finished.away < _SHORT_ABSENCE and any(map(_reads_prompt, finished.chunks, starts)):
                self._pace.learn(finished.parts, finished.seconds, built=finished.built)
            if notify:
                self._changed.notify_all()
            return events

    def _settle(self) -> None:
        """Finish the graph that the last step has left to the device. Its error goes to the readers."""
        self._pipeline.enter()
        chunks = self._pipeline.running
        try:
            self._finish()
        except BaseException as error:
            with self.lock:
                self._pipeline.abandon()
                if not isinstance(error, Exception):
                    raise
                for job, *_ in chunks:
                    job.error = error
                self._changed.notify_all()

    def _prepare_step(self, urgent: Job[Any] | None) -> tuple[list[Event], list[list[JobChunk]]]:
        """Remove jobs, shift or end those whose context is full, and schedule the rest: return events and graphs."""
        with self.lock:
            self._require_open()
            if not self._pipeline.running:
                self._slots.rollback()  # of an earlier step, if its own rollback was interrupted
            self._slots.drop_held()
            self._drop_removable()
            events = self._shift_or_finish_full()
            self._n_steps += 1
            jobs = attach_jobs_that_fit(self._jobs, self._slots, self.n_ctx, urgent)
            n_active = sum(job.active for job in self._jobs)
            allowance = self._pace.allowance(n_active) if self._is_paced else None
            return events, schedule(jobs, self._limits, self._n_steps, allowance)

    def _drop_removable(self) -> None:
        for job in list(self._jobs):
            if job.removable:
                self.remove(job, detach=isinstance(job, Generation))

    def _shift_or_finish_full(self) -> list[Event]:
        """Shift the generations that have filled the context; end those that may not be shifted."""
        events: list[Event] = []
        for job in self._jobs:
            if not isinstance(job, Generation) or len(job.sequence) <= self.n_ctx or not job.active:
                continue
            keep = job.sampler.params.context_shift
            if keep is None:
                job.finish = "context"
                events.append(Event(job, finish=job.finish))
                continue
            try:
                start, stop = job.sequence.items.with_whole_spans(keep, keep + max(1, (self.n_ctx - keep) // 2))
                self._shift(job.sequence, start, stop - start)
            except Exception as error:  # for its own reader, not for the thread that runs the step
                job.error = error
                events.append(Event(job, error=error))
        return events

    # The end

    def close(self, free: Callable[[], None]) -> None:
        """Refuse further work, and call ``free`` after the current graph. Does nothing in a forked process."""
        if self._backend.is_forked_copy:
            return
        with self.lock:
            self._closed = True
            self._changed.notify_all()
        self.in_turn(free)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again with hotshoe.load_model")


def _reads_prompt(chunk: JobChunk, start: int) -> bool:
    """Whether rows that a caller gave are computed, and not those of a text that is being written."""
    return chunk.n - chunk.drafted > 1 and not chunk.job.sequence.has_written(start)
