"""Pipeline: starts the graphs of the engine's steps, and finishes them.

A device may still compute a graph when a step has returned. So what a reader does with its tokens costs no time, and
the next step prepares one more row of each text before it waits for the tokens that these rows will hold.

Every caller has the engine's turn. The methods that say so are called under the engine's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from hotshoe.runner.cached_sequence import CachedSequence
from hotshoe.runner.items import Items
from hotshoe.runner.jobs import Event, Generation, Job
from hotshoe.runner.scheduler import Chunk
from hotshoe.runner.slots import Slots

if TYPE_CHECKING:
    from hotshoe.kvcache import Sizes
    from hotshoe.sampling import DeviceSampling

__all__ = ["Forward", "JobChunk", "Pipeline", "Results"]

Array = np.ndarray[Any, Any]
JobChunk = Chunk[Job[Any]]


class Results(NamedTuple):
    """What a graph gives for the requested rows."""

    outputs: list[Array]
    """Their logits, or what the sampling returns for them."""

    hidden: Array | None = None
    """Their hidden states, (rows, dim), if the model has a drafting layer."""


class Forward(Protocol):
    """What the engine asks of a model."""

    @property
    def n_graphs_built(self) -> int:
        """How many graphs were built so far."""

    def check(self, items: Items, before: int = 0) -> None:
        """Raise an error unless the model can compute the rows from ``before`` on: TokenizerError, ShapeError, …"""

    def padded_rows(self, n: int) -> int:
        """Return the number of rows of the graph that computes ``n`` rows, with padding."""

    def prepare(
        self,
        chunks: Sequence[JobChunk],
        sampling: DeviceSampling | None,
        n_rows: int,
        feeds: dict[str, Array],
        sizes: Sizes,
    ) -> Any:
        """Gather all inputs of a graph, for ``start``. Called under the engine's lock.

        feeds, sizes: the values of the cache's inputs, and how many cells the graph must read. A row whose token is not
        known yet gets token 0.
        """

    def set_tokens(self, work: Any, tokens: Sequence[int]) -> None:
        """Set the tokens of the first rows, which ``prepare`` did not know."""

    def compile(self, work: Any) -> None:
        """Compile the graph, unless that was done before. Another one may be computed meanwhile."""

    def start(self, work: Any) -> bool:
        """Begin to compute the graph. Return whether the device still computes it."""

    def finish(self, work: Any) -> Results:
        """Wait for the graph that was started last. Return its results, with the requested rows in order."""


class _Run(NamedTuple):
    """A graph that is to be computed, or is being computed."""

    chunks: list[JobChunk]
    sampling: DeviceSampling | None
    work: Any
    begun: float
    """When its preparation began, by ``time.perf_counter``."""
    parts: list[tuple[int, int]]
    """The position of the first row of each chunk, and the number of its rows."""
    n_built: int
    """Graphs that were built before its preparation."""


class Pipeline:
    """The graph that the device computes, if any, and the one that is prepared for it.

    not_finite: makes the error for logits that are NaN or infinity. sample_on_device: whether top-k is computed on the
    device too.
    """

    def __init__(
        self, forward: Forward, slots: Slots, *, not_finite: Callable[[], Exception], sample_on_device: bool
    ) -> None:
        self._forward = forward
        self._slots = slots
        self._not_finite = not_finite
        self._sample_on_device = sample_on_device
        self._running: _Run | None = None
        self._prepared: _Run | None = None  # has room in the cache, and is not started
        self._finished = 0.0  # when the last graph was
        self._left = 0.0  # when the last step ended
        self._away = 0.0  # seconds between steps, while a graph was running

    @property
    def running(self) -> list[JobChunk]:
        """The chunks of the graph that was started and not finished; empty without such a graph."""
        return [] if self._running is None else self._running.chunks

    @property
    def without_results(self) -> bool:
        """Whether a graph is running that gives no results, as for the first rows of a long prompt."""
        return self._running is not None and not any(chunk.outputs for chunk in self._running.chunks)

    @property
    def prepared(self) -> list[JobChunk]:
        """The chunks of the graph that is to be started; empty without such a graph."""
        return [] if self._prepared is None else self._prepared.chunks

    # Under the lock

    def prepare(self, chunks: list[JobChunk], later: Sequence[CachedSequence]) -> None:
        """Prepare a graph. Under the lock. Raises CacheFullError.

        later: the sequences of the step's later graphs, whose rows must stay.
        """
        begun, n_rows = time.perf_counter(), self._n_rows(chunks)
        feeds = self._slots.begin(chunks, n_rows, later)
        self._prepared = self._filled(chunks, n_rows, feeds, begun)

    def prepare_next(self) -> None:
        """Prepare one more row for each text of the running graph, if there is room. Under the lock.

        Each of its texts is being written, and the running graph computes its last row, without guessed ones.
        """
        begun = time.perf_counter()
        chunks = [chunk._replace(n=1, outputs=1) for chunk in self.running]
        n_rows = self._n_rows(chunks)
        feeds = self._slots.begin_next([chunk.job.sequence for chunk in chunks], n_rows)
        if feeds is not None:
            self._prepared = self._filled(chunks, n_rows, feeds, begun)

    def fill_next(self, jobs: Sequence[Job[Any]]) -> bool:
        """Put the tokens of these jobs into the rows that were prepared for them. Under the lock.

        Return False if none were prepared, or not for exactly these jobs; then none are any more.
        """
        run = self._prepared
        if run is None:
            return False
        sequences = [chunk.job.sequence for chunk in run.chunks]
        if (
            {chunk.job for chunk in run.chunks} != set(jobs)
            or any(sequence.edited or sequence.n_pending != 1 for sequence in sequences)
            or run.sampling != self._common_sampling(run.chunks)
        ):
            self.cancel_prepared()
            return False
        tokens = [row for sequence in sequences if isinstance(row := sequence.items.rows[-1], int)]
        assert len(tokens) == len(sequences)  # a text grows by tokens only
        self._forward.set_tokens(run.work, tokens)
        self._slots.set_pending(sequences)
        return True

    def cancel_prepared(self) -> None:
        """Give up what was prepared, or begun to be. Under the lock."""
        self._prepared = None
        self._slots.cancel()

    def abandon(self) -> None:
        """Give up all graphs after an error. Under the lock. Nothing that a running one still writes is used."""
        self._prepared = self._running = None
        self._away = 0.0
        self._slots.rollback()

    def commit(self, step: int) -> None:
        """Note that the prepared graph is about to be started, in this step. Under the lock."""
        assert self._prepared is not None
        for job, *_ in self._prepared.chunks:
            job.served = step
            job.on_scheduled(job.sequence.n_computed)
        self._slots.commit()

    # Outside the lock

    def enter(self) -> None:
        """Note that a step begins."""
        if self._running is not None:
            self._away += time.perf_counter() - self._left

    def leave(self) -> None:
        """Note that a step ends."""
        self._left = time.perf_counter()

    def compile(self) -> None:
        """Compile the prepared graph while another one runs. Otherwise ``start`` does it."""
        assert self._prepared is not None
        self._forward.compile(self._prepared.work)

    def start(self) -> bool:
        """Start the prepared graph, after ``commit``. Return whether the device still computes it."""
        self._running, self._prepared = self._prepared, None
        assert self._running is not None
        return self._forward.start(self._running.work)

    def finish(self) -> Finished | None:
        """Wait for the running graph, and let its jobs process what it computed. None if no graph is running."""
        run = self._running
        if run is None:
            return None
        outputs, hidden = self._forward.finish(run.work)
        self._running = None
        damaged: list[Job[Any]] = []
        row = 0
        for job, _, n, _ in run.chunks:
            if not n:
                continue
            rows = [output[row : row + n] for output in outputs]
            if hidden is not None and isinstance(job, Generation):
                job.hidden = hidden[row : row + n]
            job.process(rows, run.sampling)
            row += n
            # A sampler has looked already. A model may exclude tokens by -inf, but not all of them.
            if (job.failing or not isinstance(job, Generation)) and not np.isfinite(rows[-1].max(axis=-1)).all():
                if not job.failing:
                    job.error = self._not_finite()
                damaged.append(job)
        begun, self._finished = max(run.begun, self._finished), time.perf_counter()
        built = self._forward.n_graphs_built != run.n_built
        away, self._away = self._away, 0.0
        return Finished(run.chunks, run.parts, damaged, self._finished - begun, away, built)

    def deliver(self, finished: Finished) -> list[Event]:
        """Keep the rows of a graph, and hand out its results. Under the lock."""
        chunks, parts, damaged, seconds, _, _ = finished
        for job, *_ in chunks:
            job.seconds += seconds
        self._slots.confirm()
        if damaged:
            self.cancel_prepared()
            try:
                self._slots.discard(job.sequence for job in damaged)
            except Exception as error:  # for their own readers, not for the thread that runs the step
                for job in damaged:
                    job.error = error
        events = [event for chunk in chunks if chunk.outputs for event in chunk.job.deliver()]
        for chunk, (start, _) in zip(chunks, parts, strict=True):
            if chunk.drafted:
                self._slots.drop_rejected(chunk.job.sequence, start)
        return events

    # Helpers

    def _n_rows(self, chunks: Sequence[JobChunk]) -> int:
        return self._forward.padded_rows(sum(chunk.n for chunk in chunks))

    def _filled(self, chunks: list[JobChunk], n_rows: int, feeds: dict[str, Array], begun: float) -> _Run:
        sampling = self._common_sampling(chunks)
        work = self._forward.prepare(chunks, sampling, n_rows, feeds, self._slots.cache.sizes)
        parts = [(chunk.job.n_computed, chunk.n) for chunk in chunks]
        return _Run(chunks, sampling, work, begun, parts, self._forward.n_graphs_built)

    def _common_sampling(self, chunks: Sequence[JobChunk]) -> DeviceSampling | None:
        """Return the sampling that the device may do instead of returning all logits, if all jobs agree on it."""
        choices = {chunk.job.device_sampling for chunk in chunks if chunk.outputs}
        sampling = choices.pop() if len(choices) == 1 else None
        return sampling if sampling is not None and (sampling.kind == "argmax" or self._sample_on_device) else None


class Finished(NamedTuple):
    """A graph that was computed."""

    chunks: Sequence[JobChunk]
    parts: list[tuple[int, int]]
    """The position of the first row of each chunk, and the number of its rows."""
    damaged: list[Job[Any]]
    """The jobs with logits that are NaN or infinity. Their rows in the cache may be so too."""
    seconds: float
    """Since its preparation began, or since the results of the graph before if that was later."""
    away: float
    """Seconds of these in which no step ran: the readers were busy."""
    built: bool
    """Whether a graph was built meanwhile."""
