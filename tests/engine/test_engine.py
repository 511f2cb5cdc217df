"""The engine with a fake model: threads, locks, interrupts and workers, without tensors and timing."""

from __future__ import annotations

import functools
import linecache
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hotshoe.kvcache import AttentionSpec, CausalCache, RecurrentCache, RecurrentSpec
from hotshoe.runner.engine import Engine
from hotshoe.runner.items import Items
from hotshoe.runner.jobs import Generation
from hotshoe.runner.pace import Pace
from hotshoe.runner.scheduler import Chunk, Limits
from hotshoe.runner.sequence import TokenSequence, extend
from hotshoe.runner.slots import Slots
from hotshoe.sampling import DeviceSampling, Sampler, SamplingParams
from hotshoe_core import Backend, DType
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import ClosedError, ForkedProcessError, GraphError, HotshoeError

N_VOCAB, PATIENCE = 50, 60  # seconds after which a test that hangs has failed


class Work:
    def __init__(self, chunks: Sequence[Chunk[Any]], sampling: DeviceSampling | None, n_rows: int) -> None:
        self.sampling = sampling
        self.n_rows = n_rows
        self.requested: list[list[Any]] = []
        for job, n, outputs in chunks:
            end = job.sequence.n_computed + n
            self.requested += [job.sequence.items.rows[: end - i] for i in reversed(range(outputs))]


def next_token(rows: Sequence[Any]) -> int:
    """Return the token after a text. It depends on all rows."""
    return (sum((i + 1) * int(r) for i, r in enumerate(rows)) + len(rows)) % N_VOCAB


class FakeForward:
    """Logits by arithmetic. ``gate``: called in each graph with its number of rows, while no thread holds the lock.

    asynchronous: as a device that computes until somebody waits for it.
    """

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.computed: list[np.ndarray] = []
        self.running: Work | None = None
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

    def compile(self, work: Work) -> None: ...

    def start(self, work: Work) -> bool:
        self.running = work
        if not self.asynchronous:
            self.computed = self._compute(work)
        return self.asynchronous

    def finish(self, work: Work) -> list[np.ndarray]:
        assert work is self.running
        return self._compute(work) if self.asynchronous else self.computed

    def _compute(self, work: Work) -> list[np.ndarray]:
        self.graphs.append(work.n_rows)
        self.gate(work.n_rows)
        logits = np.zeros((len(work.requested), N_VOCAB), np.float32)
        for row, rows in zip(logits, work.requested, strict=True):
            row[next_token(rows)] = 10
        if work.sampling is None:
            return [logits]
        best = logits.argmax(axis=-1, keepdims=True)  # greedy: no other sampling is used
        return [best, np.take_along_axis(logits, best, -1)]


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
    ) -> None:
        self.backend: Backend = open_reference()
        kind: Any = RecurrentCache if uniform else CausalCache
        spec = RecurrentSpec({"x": (1,)}) if uniform else AttentionSpec(1, 4)
        sizes = {} if uniform else {"n_tokens": n_ctx, "n_ubatch": n_ubatch, "dtype": DType.F32}
        self.cache = kind(self.backend, (spec,), n_sequences=2, **sizes)
        self.forward = FakeForward(asynchronous)
        self.slots = Slots(self.cache, n_slots)
        limits = Limits(n_batch, n_ubatch, uniform)
        self.engine = Engine(
            self.backend, self.forward, self.slots, limits, Pace(seconds), n_ctx=n_ctx, not_finite=Exception
        )

    def sequence(self, ids: Sequence[int] = ()) -> TokenSequence:
        return TokenSequence(self.engine, ids)

    def generation(self, ids: Sequence[int], n: int = 5) -> Generation:
        sampler = Sampler(SamplingParams(temperature=0, max_tokens=n), N_VOCAB)
        return Generation(self.sequence(ids), sampler, frozenset())

    def read(self, generation: Generation) -> list[int]:
        tokens = []
        while (token := self.engine.next(generation)) is not None:
            tokens.append(token.sampled.id)
        return tokens


def expected(ids: Sequence[int], n: int = 5) -> list[int]:
    rows = list(ids)
    for _ in range(n):
        rows.append(next_token(rows))
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


@pytest.fixture(params=[False, True], ids=["at-once", "asynchronous"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    """Whether the device still computes a graph when it was started."""
    return bool(request.param)


@pytest.fixture
def held(asynchronous: bool) -> Iterator[tuple[Rig, threading.Event, threading.Event]]:
    """An engine whose third graph waits: (rig, event "the graph has begun", event that lets it continue)."""
    rig, there, go = Rig(asynchronous=asynchronous), threading.Event(), threading.Event()

    def gate(n: int) -> None:
        if len(rig.forward.graphs) == 3:
            there.set()
            assert go.wait(PATIENCE)

    rig.forward.gate = gate
    yield rig, there, go
    go.set()


PROMPT = [i % N_VOCAB for i in range(512)]


def test_no_thread_waits_for_the_graph_of_a_long_prompt(held: tuple[Rig, threading.Event, threading.Event]) -> None:
    rig, there, go = held
    other = rig.sequence([9] * 9)
    other.append(3)
    rig.forward.graphs.clear()
    cancelled, long = rig.generation([7, 7]), rig.generation(PROMPT)
    rig.engine.add(cancelled)
    read: list[list[int]] = []
    reader = in_thread(lambda: read.append(rig.read(long)))
    assert there.wait(PATIENCE)
    done = threading.Event()

    def everything() -> None:
        assert not go.is_set()
        rig.engine.remove(cancelled)  # what Stream.close does
        late = rig.generation([1, 2, 3])
        rig.engine.add(late)
        assert late in rig.engine.jobs
        assert cancelled not in rig.engine.jobs
        twin = other.fork()
        assert twin.n_computed == other.n_computed == 10
        other.truncate(4)
        assert (len(other), len(twin)) == (4, 10)
        assert long.sequence.n_computed == 3 * 32 - 2  # the graph that stands still included; others' 2 rows went first
        twin.close()
        rig.engine.forget()
        rig.engine.remove(late)
        done.set()

    in_thread(everything).join(PATIENCE)
    assert done.is_set()  # all of it, while the graph stands still
    assert not go.is_set()
    go.set()
    reader.join(PATIENCE)
    assert read == [expected(PROMPT)]
    assert max(rig.forward.graphs) == 32


def test_a_prompt_that_is_left_ends_with_its_graph(held: tuple[Rig, threading.Event, threading.Event]) -> None:
    rig, there, go = held
    long = rig.generation(PROMPT)
    reader = in_thread(lambda: rig.read(long))
    assert there.wait(PATIENCE)
    long.finish = "cancelled"
    rig.engine.remove(long)
    go.set()
    reader.join(PATIENCE)
    assert rig.forward.graphs == [32] * 3
    assert rig.read(rig.generation([*PROMPT[:96], 4])) == expected([*PROMPT[:96], 4])
    assert rig.forward.graphs[3] == 1  # what was computed of it serves others


def test_a_sequence_cut_while_it_is_computed(held: tuple[Rig, threading.Event, threading.Event]) -> None:
    rig, there, go = held
    sequence = rig.sequence(PROMPT[:40])
    failed = failing(lambda: sequence.append(*PROMPT[40:]))
    assert there.wait(PATIENCE)
    sequence.truncate(0)
    go.set()
    assert "another thread shortened the sequence" in failed()
    assert (len(sequence), len(rig.forward.graphs)) == (0, 3)  # the rest was not computed
    assert int(rig.sequence([*PROMPT[:70], 1]).append().argmax()) == next_token([*PROMPT[:70], 1])
    assert int(sequence.append(2).argmax()) == next_token([2])


@pytest.mark.parametrize("change", ["truncate", "shift"])
def test_a_sequence_cut_between_two_steps(change: str, asynchronous: bool) -> None:
    """The thread that extends it gets an error, and what it added is removed."""
    rig, there, go = Rig(n_batch=64, asynchronous=asynchronous), threading.Event(), threading.Event()
    step = rig.engine.step

    def pausing(urgent: Any = None) -> list[Any]:
        events = step(urgent)
        there.set()
        assert go.wait(PATIENCE)
        return events

    rig.engine.step = pausing  # type: ignore[method-assign]
    sequence = rig.sequence(PROMPT[:40])
    failed = failing(lambda: sequence.append(*PROMPT[40:]))
    assert there.wait(PATIENCE)
    sequence.truncate(50) if change == "truncate" else sequence.shift(0, 10)
    go.set()
    assert "another thread shortened the sequence" in failed()
    assert len(sequence) == 40
    ids = sequence.ids
    assert int(sequence.append(2).argmax()) == next_token([*ids, 2])


def test_a_sequence_that_two_threads_extend(held: tuple[Rig, threading.Event, threading.Event]) -> None:
    """The second one gets an error at once, and changes nothing. Other sequences are not affected."""
    rig, there, go = held
    sequence, other = rig.sequence(), rig.sequence([5, 6])
    got: list[np.ndarray] = []
    first = in_thread(lambda: got.append(sequence.append(*PROMPT)))
    assert there.wait(PATIENCE)
    for second in (lambda: sequence.append(3), lambda: extend(rig.engine, [(other, [3]), (sequence, [4])])):
        with pytest.raises(GraphError, match=r"another thread is extending[\s\S]*fork\(\)"):
            second()
    assert (len(sequence), len(other)) == (512, 2)
    twin = sequence.fork()
    go.set()
    first.join(PATIENCE)
    assert [int(logits.argmax()) for logits in got] == [next_token(PROMPT)]
    for one in (sequence, twin):
        assert int(one.append(3).argmax()) == next_token([*PROMPT, 3])


def test_closing_waits_for_the_graph_only(held: tuple[Rig, threading.Event, threading.Event]) -> None:
    rig, there, go = held
    errors: list[BaseException] = []

    def read() -> None:
        try:
            rig.read(rig.generation(PROMPT))
        except HotshoeError as error:
            errors.append(error)

    reader = in_thread(read)
    assert there.wait(PATIENCE)
    freed = threading.Event()
    closer = in_thread(lambda: rig.engine.close(freed.set))
    while not rig.engine._closed:
        assert reader.is_alive()
    assert not freed.is_set()
    with pytest.raises(ClosedError):
        rig.engine.add(rig.generation([1]))
    go.set()
    closer.join(PATIENCE)
    reader.join(PATIENCE)
    assert freed.is_set()
    assert [type(e) for e in errors] == [ClosedError]
    assert len(rig.forward.graphs) == 3


def test_many_threads_get_what_they_would_alone(asynchronous: bool) -> None:
    rig = Rig(n_batch=64, asynchronous=asynchronous)
    prompts = [[i, *range(3 * i)] for i in range(8)]
    got: dict[int, list[int]] = {}

    def work(i: int) -> None:
        got[i] = rig.read(rig.generation(prompts[i]))

    threads = [in_thread(lambda i=i: work(i)) for i in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE)
    assert got == {i: expected(p) for i, p in enumerate(prompts)}


def test_the_cache_admits_jobs_in_order_while_they_fit() -> None:
    rig = Rig(n_ctx=16)  # for two sequences: 32 cells
    for generation in (generations := [rig.generation([i] * 12, n=4) for i in range(3)]):
        generation.min_free_rows = 4
        rig.engine.add(generation)
    assert rig.engine._attach_jobs_that_fit(None) == generations[:2]  # they leave 8 cells
    assert rig.engine._attach_jobs_that_fit(generations[2]) == [generations[2], generations[0]]
    generations[0].min_free_rows = 9
    assert rig.engine._attach_jobs_that_fit(generations[2]) == [generations[2], generations[1]]  # it overtakes


# Interrupts


def interrupted_at(k: int, work: Callable[[], object]) -> bool:
    """Run ``work`` and raise KeyboardInterrupt at the k-th line of the runner or the cache.

    Return False if it ended before.
    """
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        name = frame.f_code.co_filename
        if "/hotshoe/runner/" not in name and "/hotshoe/kvcache/" not in name:
            return None
        if frame.f_code.co_name == "<genexpr>":  # one that is dropped is entered once more, and what it raises is lost
            return None
        if event == "call" or (event == "line" and not never_interrupted(name, frame.f_lineno)):
            count += 1
            if count == k:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)


@functools.cache
def never_interrupted(path: str, line: int) -> bool:
    """Whether a tracer may raise at a line, but a signal cannot: Python handles signals in calls and loops.

    The tracer visits ``with`` again after its block; ``try`` executes nothing.
    """
    return linecache.getline(path, line).lstrip().startswith(("with ", "try:"))


@pytest.mark.parametrize("uniform", [False, True])
def test_an_interrupt_anywhere_leaves_nothing_behind(uniform: bool, asynchronous: bool) -> None:
    """Interrupt every line of a step that computes two prompts in chunks and decodes. Nothing stays locked or taken.

    A uniform cache has few lines of its own, so only every third line is interrupted.
    """
    rig = Rig(n_batch=8, n_ubatch=4, n_ctx=64, uniform=uniform, asynchronous=asynchronous)
    k = 1
    while interrupted_once(rig, k):
        k += 3 if uniform else 1
    assert k > 300


def interrupted_once(rig: Rig, k: int) -> bool:
    generation = rig.generation([k % N_VOCAB, *range(5)], n=3)
    rig.engine.add(generation)
    sequence = rig.sequence([k % N_VOCAB, 3])

    def work() -> None:
        sequence.append(*range(4))
        rig.read(generation)

    interrupted = interrupted_at(k, work)
    rig.engine.remove(generation)
    got: list[int] = []
    in_thread(lambda: got.append(int(sequence.append(4).argmax()))).join(PATIENCE)
    assert got == [next_token(sequence.items.rows)], k
    assert len(sequence) in (3, 7)
    sequence.close()
    rig.engine.forget()
    assert [rig.cache.length(slot) for slot in range(8)] == [0] * 8, k
    if not rig.cache.uniform:
        assert [cells.room() for cells in rig.cache.cells.values()] == [128], k
    assert not any(slot.busy for slot in rig.slots._slots)
    assert rig.engine.jobs == ()
    return interrupted


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX only")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_at_once_though_a_lock_is_held() -> None:
    """Even if another thread of the parent computes and holds the lock."""
    rig = Rig()
    sequence, generation = rig.sequence([1, 2]), rig.generation([3])
    sequence.append(3)
    taken, go = threading.Event(), threading.Event()

    def hold() -> None:
        def work() -> None:
            with rig.engine.lock:
                taken.set()
                assert go.wait(PATIENCE)

        rig.engine.in_turn(work)

    holder = in_thread(hold)
    assert taken.wait(PATIENCE)
    refused = [
        lambda: sequence.append(1),
        lambda: sequence.truncate(1),
        lambda: sequence.shift(0, 1),
        sequence.fork,
        lambda: rig.engine.next(generation),
        lambda: rig.engine.add(generation),
        lambda: list(rig.engine.all_logits(sequence)),
        rig.engine.forget,
    ]
    pid = os.fork()
    if pid == 0:  # nothing but os._exit may end the child
        signal.alarm(30)
        code = 1
        try:
            for call in refused:
                with pytest.raises(ForkedProcessError):
                    call()
            sequence.close()
            rig.engine.remove(generation)
            rig.engine.close(lambda: None)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    go.set()
    holder.join(PATIENCE)
    assert os.waitstatus_to_exitcode(status) == 0
    assert rig.read(generation) == expected([3])
