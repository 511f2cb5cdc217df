"""An engine over a real cache and a fake model, without tensors and timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotshoe.kvcache import AttentionSpec, CausalCache, RecurrentCache, RecurrentSpec
from hotshoe.kvcache.recurrent_rows import Rows
from hotshoe.runner.admission import attach_jobs_that_fit
from hotshoe.runner.engine import Engine
from hotshoe.runner.items import Items
from hotshoe.runner.jobs import Generation
from hotshoe.runner.pace import Pace
from hotshoe.runner.pipeline import Results
from hotshoe.runner.scheduler import Chunk, Limits
from hotshoe.runner.sequence import TokenSequence
from hotshoe.runner.slots import Slots
from hotshoe.sampling import DeviceSampling, Sampler, SamplingParams
from hotshoe_core import Backend, DType
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import GraphError

N_VOCAB, PATIENCE = 50, 60  # seconds after which a test that hangs has failed
PROMPT = [i % N_VOCAB for i in range(512)]


class Work:
    def __init__(self, chunks: Sequence[Chunk[Any]], sampling: DeviceSampling | None, n_rows: int) -> None:
        self.sampling = sampling
        self.n_rows = n_rows
        self.requested: list[list[Any]] = []
        for job, n, outputs, _ in chunks:
            end = job.sequence.n_computed + n
            self.requested += [job.sequence.rows(0, end)[: end - i] for i in reversed(range(outputs))]


def next_token(rows: Sequence[Any]) -> int:
    """Return the token after a text. It depends on all rows."""
    return (sum((i + 1) * int(r) for i, r in enumerate(rows)) + len(rows)) % N_VOCAB


class FakeForward:
    """Logits by arithmetic. ``gate``: called in each graph with its number of rows, while no thread holds the lock.

    asynchronous: as a device that computes until somebody waits for it. next_token: the token after a text.
    """

    def __init__(self, asynchronous: bool, next_token: Callable[[Sequence[Any]], int] = next_token) -> None:
        self.asynchronous = asynchronous
        self.next_token = next_token
        self.computed = Results([])
        self.running: Work | None = None  # started, and not finished
        self.failure: Exception | None = None  # of the next graph
        self.calls: list[str] = []
        self.gate: Callable[[int], None] = lambda n: None
        self.graphs: list[int] = []
        self.n_graphs_built = 0

    def check(self, items: Items, before: int = 0) -> None: ...

    def padded_rows(self, n: int) -> int:
        return n

    def prepare(
        self, chunks: Sequence[Chunk[Any]], sampling: DeviceSampling | None, n_rows: int, feeds: Any, sizes: Any
    ) -> Work:
        return Work(chunks, sampling, n_rows)

    def set_tokens(self, work: Work, tokens: Sequence[int]) -> None:
        for rows, token in zip(work.requested, tokens, strict=True):
            rows.append(token)

    def compile(self, work: Work) -> None:
        self.calls.append("compile")

    def start(self, work: Work) -> bool:
        self.calls.append("start")
        self.running = work
        if not self.asynchronous:
            self.computed = self._compute(work)
        return self.asynchronous

    def finish(self, work: Work) -> Results:
        self.calls.append("finish")
        assert work is self.running
        self.running = None
        return self._compute(work) if self.asynchronous else self.computed

    def _compute(self, work: Work) -> Results:
        self.graphs.append(work.n_rows)
        self.gate(work.n_rows)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        logits = np.zeros((len(work.requested), N_VOCAB), np.float32)
        for row, rows in zip(logits, work.requested, strict=True):
            row[self.next_token(rows)] = 10
        if work.sampling is None:
            return Results([logits])
        best = logits.argmax(axis=-1, keepdims=True)  # greedy: no other sampling is used
        return Results([best, np.take_along_axis(logits, best, -1)])


class Rig:
    """An engine over a real cache and the fake forward."""

    def __init__(
        self,
        *,
        n_batch: int = 512,
        n_ubatch: int = 32,
        n_ctx: int = 1024,
        uniform: bool = False,
        n_slots: int = 8,
        seconds: float = 1e9,
        asynchronous: bool = False,
        next_token: Callable[[Sequence[Any]], int] = next_token,
        n_states: int | None = None,
    ) -> None:
        self.backend: Backend = open_reference()
        kind: Any = RecurrentCache if uniform else CausalCache
        spec = RecurrentSpec({"x": (1,)}) if uniform else AttentionSpec(1, 4)
        sizes = {} if uniform else {"n_tokens": n_ctx, "n_ubatch": n_ubatch, "dtype": DType.F32}
        self.cache = kind(self.backend, (spec,), n_sequences=2, **sizes)
        if n_states is not None:
            self.cache.rows = Rows(n_states, first=1)
        self.forward = FakeForward(asynchronous, next_token)
        self.slots = Slots(self.cache, n_slots)
        limits = Limits(n_batch, n_ubatch, uniform)
        self.engine = Engine(
            self.backend, self.forward, self.slots, limits, Pace(seconds), n_ctx=n_ctx, not_finite=Exception
        )

    def sequence(self, ids: Sequence[int] = ()) -> TokenSequence:
        return TokenSequence(self.engine, ids)

    def generation(self, ids: Sequence[int], n: int | None = 5, stop: int = -1, **drafts: Any) -> Generation:
        sampler = Sampler(SamplingParams(temperature=0, max_tokens=n), N_VOCAB)
        return Generation(self.sequence(ids), sampler, frozenset({stop}), **drafts)

    def fitting(self, urgent: Generation | None = None) -> list[Any]:
        """Return the jobs that the next step would compute."""
        return attach_jobs_that_fit(self.engine.jobs, self.slots, self.engine.n_ctx, urgent)

    def read(self, generation: Generation) -> list[int]:
        tokens = []
        while (token := self.engine.next(generation)) is not None:
            tokens.append(token.sampled.id)
        return tokens


def expected(ids: Sequence[int], n: int = 5, model: Callable[[Sequence[Any]], int] = next_token) -> list[int]:
    rows = list(ids)
    for _ in range(n):
        rows.append(model(rows))
    return rows[len(ids) :]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def failing(work: Callable[[], object]) -> Callable[[], str]:
    """Call ``work`` in a thread; return a function that waits for it and returns the message of its GraphError."""
    messages: list[str] = []

    def run() -> None:
        try:
            work()
        except GraphError as error:
            messages.append(str(error))

    thread = in_thread(run)

    def message() -> str:
        thread.join(PATIENCE)
        return messages[0]

    return message
