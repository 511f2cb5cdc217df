"""The engine with a fake model: threads, locks, interrupts and workers, without tensors and timing."""

from __future__ import annotations

import functools
import linecache
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hotshoe.runner.sequence import extend
from hotshoe_core.errors import ClosedError, ForkedProcessError, GraphError, HotshoeError
from tests.support.engine_rig import N_VOCAB, PATIENCE, PROMPT, Rig, expected, failing, in_thread, next_token


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
    assert rig.fitting() == generations[:2]  # they leave 8 cells
    assert rig.fitting(generations[2]) == [generations[2], generations[0]]
    generations[0].min_free_rows = 9
    assert rig.fitting(generations[2]) == [generations[2], generations[1]]  # it overtakes


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
