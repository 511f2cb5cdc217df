"""The engine: every step computes the next tokens of all jobs that have some, in as few graphs as it takes.

Whoever waits for a token runs the steps for all; the others find theirs ready. So threads that each read a stream share
the work, and a program that reads several in turn does too. A server starts one worker thread instead, which runs the
steps for everybody.

There are two locks in one. ``lock`` is short: lists and book-keeping change under it, and nobody computes under it. The
*turn* is long: whoever has it computes, and only one thread has. So adding, cancelling, forking, truncating and asking
for lengths never wait for a graph; who waits for a token waits on a condition.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from hotshoe.runner.items import Item, Items
from hotshoe.runner.jobs import AllLogitsJob, Event, Generation, Job, LogitsJob, Token
from hotshoe.runner.prefix import Held, Part, Slots
from hotshoe.runner.scheduler import Candidate, Limits, Piece, plan
from hotshoe_core.errors import CacheFullError, ClosedError, GraphError
from hotshoe_core.errors.arguments import described, listed

if TYPE_CHECKING:
    from hotshoe.kvcache import Placed, Sizes
    from hotshoe.runner.sequence import TokenSequence
    from hotshoe.sampling import DeviceOp
    from hotshoe_core import Backend

__all__ = ["Engine", "Forward", "Work"]

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Work(Protocol):
    """One graph's worth: what was gathered under the lock, to be computed without it."""

    n_rows: int

    def placed(self, feeds: dict[str, Any], sizes: Sizes) -> None:
        """The inputs of the cache, and what of it the graph must read."""


class Forward(Protocol):
    """What the engine asks of a model."""

    def check(self, items: Items, before: int = 0) -> None:
        """Whether rows from ``before`` on are what the model can compute. Raises TokenizerError, ShapeError, …"""

    def prepare(self, parts: Sequence[Part], op: DeviceOp | None) -> Any:
        """Gather the inputs of a graph: a Work. Called under the engine's lock."""

    def compute(self, work: Any) -> list[Array]:
        """Compute it: the logits of the rows asked for, in order, or what ``op`` names of them. Called without."""


class Engine:
    """The jobs of one model, in the order they came, and its cache."""

    def __init__(self, backend: Backend, forward: Forward, slots: Slots, limits: Limits, *, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.on_device = False  # whether top-k is computed there too: pays where logits would have to cross a bus
        self._backend = backend
        self._forward = forward
        self._slots = slots
        self._limits = limits
        # a C lock and `with`: no Ctrl-C can come between its taking and the block
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._turn: object | None = None  # of who computes
        self._jobs: list[Job] = []
        self._arrivals = itertools.count()
        self._n_steps = 0
        self._worker: threading.Thread | None = None
        self._closed = False

    @property
    def lock(self) -> Any:
        """The short lock. Raises ForkedProcessError first: in a forked child a thread that held it is gone."""
        self._backend.require_process()
        return self._lock

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those that take part in the steps."""
        with self.lock:
            return tuple(self._jobs)

    # Jobs

    def add(self, job: Job) -> None:
        """Let it take part in the steps from now on. Idempotent."""
        with self.lock:
            self._require_open()
            if job not in self._jobs:
                if job.arrival < 0:
                    job.arrival = next(self._arrivals)
                self._jobs.append(job)
                self._changed.notify_all()

    def remove(self, job: Job, *, detach: bool = True) -> None:
        """It takes part no more; with ``detach`` its place in the cache is free for others. Idempotent.

        Does not wait for a step on its way, and does nothing in a forked child.
        """
        if self._backend.foreign:
            return
        with self.lock:
            if job in self._jobs:
                self._jobs.remove(job)
                if detach:
                    self._slots.detach(job.sequence)

    def next(self, generation: Generation) -> Token | None:
        """Its next token; None at the end, which ``generation.finish`` explains. Raises what went wrong with it."""
        self.add(generation)
        self._wait_for((generation,))
        with self.lock:
            if generation.ready:
                self._changed.notify_all()  # a worker may go on with it
                return generation.ready.popleft()
        if generation.error is not None:
            raise generation.error
        return None

    def extend(self, pairs: Iterable[tuple[TokenSequence, Iterable[Item]]]) -> Array:
        """Add items to several sequences and compute them together: the logits after each, float32 (n, vocab).

        Raises InputTooLongError and TokenizerError, GraphError for a sequence that is given twice or is another
        model's; the sequences are then as before, as after an interruption.
        """
        with self.lock:
            self._require_open()
            given = listed("what is added", pairs, "pairs of a sequence and its new tokens", GraphError)
            for pair in given:
                if not isinstance(pair, Sequence) or len(pair) != 2:
                    raise GraphError(
                        f"what is added is {described(pair)}; expected a pair of a sequence and its new tokens"
                    )
            self._require_own(sequence for sequence, _ in given)
            added = [(sequence, len(sequence), items) for sequence, items in given]
            try:
                for sequence, before, items in added:
                    sequence.items.extend(items)
                    self._forward.check(sequence.items, before)
            except BaseException:
                self._restore(added)
                raise
        jobs = [LogitsJob(sequence) for sequence, _, _ in added]
        try:
            for job in jobs:
                self.add(job)
            self._wait_for(jobs)
            return _stacked([job.logits for job in jobs])
        except BaseException:
            self._restore(added)
            raise
        finally:
            for job in jobs:
                self.remove(job, detach=False)

    def all_logits(self, sequence: TokenSequence) -> Iterator[Array]:
        """The logits after every row of a sequence, in pieces (rows, vocab); all are computed anew."""
        job = AllLogitsJob(sequence)
        try:
            while True:
                self.add(job)
                self._wait_for((job,))
                with self.lock:
                    piece = job.ready.popleft() if job.ready else None
                    self._changed.notify_all()
                if piece is None:
                    return
                yield piece
        finally:
            self.remove(job)

    def _require_own(self, sequences: Iterable[TokenSequence]) -> None:
        seen: set[int] = set()
        for sequence in sequences:
            if getattr(sequence, "engine", None) is not self:
                raise GraphError(
                    f"{type(sequence).__name__} is no sequence of this model",
                    hint="make it with model.sequence() of the same loaded model",
                )
            if id(sequence) in seen:
                raise GraphError("a sequence was given twice; expected each once, with all its tokens")
            seen.add(id(sequence))

    def _restore(self, added: Sequence[tuple[TokenSequence, int, Any]]) -> None:
        with self.lock:
            for sequence, before, _ in added:
                if len(sequence) > before:
                    sequence.cut_back(before)

    # Sequences

    def fork(self, source: Held, twin: Held) -> None:
        """Share with ``twin``, of the same items, what was computed of ``source``. Does not wait for a step."""
        with self.lock:
            self._slots.fork(source, twin)

    def detach(self, sequence: Held) -> None:
        """Its place in the cache is free for others. Does not wait for a step; nothing in a forked child."""
        if not self._backend.foreign:
            with self.lock:
                self._slots.detach(sequence)

    def forget(self) -> None:
        """Drop from the cache what nobody owns."""
        with self.lock:
            self._require_open()
            self._slots.forget()

    def shift(self, sequence: Held, keep: int, n: int) -> None:
        """See TokenSequence.shift. Waits for the turn: it computes."""

        def work() -> None:
            with self.lock:
                self._require_open()
                self._slots.attach(sequence, whole=True)
                self._slots.shift(sequence, keep, n)

        self.in_turn(work)

    def shift_refusal(self, items: Items) -> str | None:
        """Why a sequence of these items cannot be shifted; None if it can."""
        return self._slots.shift_refusal(items)

    # Steps

    def step(self, urgent: Job | None = None) -> list[Event]:
        """Compute once, if nobody else is at it: the next token of all that have their prompts behind them, and pieces
        of prompts. ``urgent`` gets its room in the cache first. Returns what came of it.
        """
        return self.in_turn(lambda: self._step(urgent), wait=False) or []

    def in_turn(self, work: Callable[[], T], *, wait: bool = True) -> T | None:
        """Do something while nobody computes. Without ``wait``: None at once if somebody does."""
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
            self._give_turn(me)  # again: a Ctrl-C in the first must not keep the turn for ever

    def _give_turn(self, me: object) -> None:
        if self._turn is me:  # not so in a forked child, which must not wait for the lock
            with self._lock:
                self._turn = None
                self._changed.notify_all()

    def _wait_for(self, jobs: Sequence[Job]) -> None:
        """Until all of these are settled: let the worker, whoever computes, or else this thread run the steps."""
        while True:
            with self.lock:
                self._require_open()
                waiting = [job for job in jobs if not job.settled]
                failed = next((job.error for job in jobs if job.error is not None), None)
                if failed is not None and not isinstance(jobs[0], Generation):
                    raise failed
                if not waiting:
                    return
                if self._turn is not None or self._worker is not None:
                    self._changed.wait()
                    continue
            self.step(waiting[0])

    def _step(self, urgent: Job | None) -> list[Event]:
        with self.lock:
            self._require_open()
            self._slots.rollback()  # of a step whose own rollback was interrupted
            events = self._leave_and_prepare()
            jobs, graphs = self._plan(urgent)
            edits = [job.sequence.edits for job in jobs]
            self._n_steps += 1
        for graph in graphs:
            events += self._run([(jobs[p.id], p) for p in graph if jobs[p.id].sequence.edits == edits[p.id]])
        return events

    def _leave_and_prepare(self) -> list[Event]:
        """Generations that were left go; of those that have filled the context, some shift, the others end."""
        events: list[Event] = []
        for job in list(self._jobs):
            if not isinstance(job, Generation):
                if job.done:  # whoever asked was interrupted before it could take the job away
                    self._jobs.remove(job)
                continue
            if job.finish == "cancelled":
                self.remove(job)
            elif job.active and len(job.sequence) > self.n_ctx:
                keep = job.sampler.params.context_shift
                if keep is None:
                    job.finish = "context"
                    events.append(Event(job, finish=job.finish))
                    continue
                try:
                    self._slots.attach(job.sequence, whole=True)
                    self._slots.shift(job.sequence, keep, max(1, (self.n_ctx - keep) // 2))
                except Exception as error:  # its reader's business, not that of whoever runs the step
                    job.error = error
                    events.append(Event(job, error=error))
        return events

    def _plan(self, urgent: Job | None) -> tuple[list[Job], list[list[Piece]]]:
        """The oldest first, but before them the one that somebody waits for."""
        jobs: list[Job] = []
        step: list[Placed] = []
        ordered = sorted((j for j in self._jobs if j.active), key=lambda j: (j is not urgent, j.arrival))

        def candidates() -> Iterator[Candidate]:
            for job in ordered:
                job.begin()
                try:
                    self._slots.attach(job.sequence, reuse=job.reuse, keep=(j.sequence for j in jobs))
                except CacheFullError:
                    if jobs:
                        return
                    raise
                jobs.append(job)
                sequence = job.sequence
                if isinstance(job, Generation) and job.n_cached is None:
                    job.n_cached = sequence.n_computed
                at = sequence.n_computed
                whole = tuple((max(0, a - at), b - at) for a, b in sequence.items.pieces if b > at)
                yield Candidate(
                    len(jobs) - 1, sequence.n_pending, job.arrival, job.served, whole, all_outputs=job.all_outputs
                )

        def fits(chosen: Sequence[Candidate]) -> bool:
            for c in chosen[len(step) :]:
                step.append(self._slots.placed(jobs[c.id].sequence, c.n_pending))
            last = chosen[-1]
            return self._slots.fits(step, jobs[last.id].spare if last.n_pending > 1 else 0)

        return jobs, plan(candidates(), self._limits, fits)

    def _run(self, graph: list[tuple[Job, Piece]]) -> list[Event]:
        """Compute one graph, for those of its jobs that are still there."""
        start = time.perf_counter()
        try:
            with self.lock:
                self._require_open()
                graph = [(job, piece) for job, piece in graph if job in self._jobs and _alive(job)]
                if not graph:
                    return []
                parts = [Part(job.sequence, piece.n, piece.outputs) for job, piece in graph]
                asked = [job for job, piece in graph if piece.outputs]
                op = self._common_op(asked)
                for job, _ in graph:
                    job.served = self._n_steps
                    job.placed(job.sequence.n_computed)
                work: Work = self._forward.prepare(parts, op)
                feeds = self._slots.place(parts, work.n_rows)
                work.placed(feeds, self._slots.cache.sizes)
            results = self._forward.compute(work)
            row = 0
            for job, piece in graph:
                if piece.outputs:
                    job.take([r[row : row + piece.outputs] for r in results], op)
                    row += piece.outputs
            with self.lock:
                seconds = time.perf_counter() - start
                for job, _ in graph:
                    job.seconds += seconds
                self._slots.commit()
                events = [job.deliver() for job in asked]
                self._changed.notify_all()
                return events
        except BaseException:
            with self.lock:
                self._slots.rollback()
            raise

    def _common_op(self, asked: Sequence[Job]) -> DeviceOp | None:
        """What the device may compute instead of handing over all logits, if it serves everybody."""
        ops = {job.device_op for job in asked}
        op = ops.pop() if len(ops) == 1 else None
        return op if op is not None and (op.op == "argmax" or self.on_device) else None

    # A worker

    def start(self, listener: Callable[[list[Event]], None] | None = None) -> None:
        """Run the steps in a thread of the engine's own, for a server; ``listener`` is called there with the events."""
        with self.lock:
            self._require_open()
            if self._worker is not None:
                raise GraphError("the engine has a worker already")
            self._worker = threading.Thread(target=self._work, args=(listener,), name="hotshoe-engine", daemon=True)
            self._worker.start()

    def stop(self) -> None:
        """End the worker after the step it is at. Idempotent."""
        if self._backend.foreign:
            return
        with self.lock:
            worker, self._worker = self._worker, None
            self._changed.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def _work(self, listener: Callable[[list[Event]], None] | None) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                while self._worker is me and not (self._turn is None and any(_due(job) for job in self._jobs)):
                    self._changed.wait()
                if self._worker is not me:
                    return
                active = [job for job in self._jobs if job.active]
            try:
                events = self.step()
            except Exception as error:  # whoever waits gets it: there is nobody here to raise it to
                events = self._fail(active, error)
            if listener is not None and events:
                listener(events)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> list[Event]:
        with self._lock:
            for job in jobs:
                job.error = error
            self._changed.notify_all()
        return [Event(job, error=error) for job in jobs]

    # The end

    def close(self, free: Callable[[], None]) -> None:
        """Refuse what comes, and ``free`` the memory when the graph on its way is done. Nothing in a forked child."""
        if self._backend.foreign:
            return
        with self.lock:
            self._closed = True
            self._changed.notify_all()
        self.stop()
        self.in_turn(free)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again with hotshoe.load_model")


def _alive(job: Job) -> bool:
    """Whether the step is still for this job: it may have been left while an earlier graph was computed."""
    return job.error is None and not (isinstance(job, Generation) and job.finish is not None)


def _due(job: Job) -> bool:
    return job.active or (isinstance(job, Generation) and job.finish == "cancelled")


def _stacked(rows: Sequence[Array | None]) -> Array:
    """(n, vocab) of n times (1, vocab); without a copy where they lie one after the other: 8 sequences take 5 MB."""
    found = [row for row in rows if row is not None]
    if not found:
        raise GraphError("no sequence was given; expected one or more")
    if len(found) == 1:
        return found[0]
    base = found[0].base
    if base is None or len(base) != len(found) or any(row.base is not base for row in found):
        return np.concatenate(found)
    in_order = all(row.ctypes.data == base[i].ctypes.data for i, row in enumerate(found))
    return base if in_order else np.concatenate(found)
