"""What a step leaves to the device, with a fake model: rows that are prepared meanwhile, errors, and other work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotshoe.kvcache.base import Allocation
from hotshoe.kvcache.recurrent_rows import Rows
from hotshoe.runner.jobs import Generation
from hotshoe.runner.pipeline import Results
from hotshoe.sampling import Sampler, SamplingParams
from hotshoe_core.errors import SamplingError
from tests.support.engine_rig import N_VOCAB, PROMPT, Rig, Work, expected


@pytest.mark.parametrize("uniform", [False, True])
def test_the_device_computes_while_a_token_is_read(uniform: bool) -> None:
    rig = Rig(asynchronous=True, uniform=uniform)
    generation = rig.generation([1, 2, 3])
    read = []
    for i in range(5):
        token = rig.engine.next(generation)
        assert token is not None
        read.append(token.sampled.id)
        assert (rig.forward.running is not None) == (i < 4)
    assert read == expected([1, 2, 3])
    assert rig.engine.next(generation) is None
    assert sum(rig.forward.graphs) == 7
    assert rig.cache.length(0) == 7  # the last token is not computed


def test_the_next_part_of_a_prompt_is_prepared_while_the_device_computes() -> None:
    rig = Rig(asynchronous=True, n_batch=64)
    assert rig.read(rig.generation(PROMPT, n=1)) == expected(PROMPT, 1)
    assert rig.forward.graphs == [32] * 16
    during = " ".join(rig.forward.calls).split("start")[1:]  # what came after each start, until the next
    assert [calls.split("finish")[0].count("compile") for calls in during] == [1] * 15 + [0]


@pytest.mark.parametrize("uniform", [False, True])
def test_a_row_that_was_prepared_for_nothing_leaves_no_trace(uniform: bool) -> None:
    """A text ends by a token that nobody could foresee. Its state goes on serving others."""
    rig = Rig(asynchronous=True, uniform=uniform)
    tokens = expected([1, 2, 3], 6)
    other = rig.generation([9, 8], n=9)
    rig.engine.add(other)
    generation = rig.generation([1, 2, 3], n=9, stop=tokens[4])
    assert rig.read(generation) == tokens[:4]
    assert rig.read(other) == expected([9, 8], 9)
    rig.engine.remove(generation)
    n = sum(rig.forward.graphs)
    assert rig.read(rig.generation([1, 2, 3, *tokens[:4], 7])) == expected([1, 2, 3, *tokens[:4], 7])
    assert sum(rig.forward.graphs) - n == 5  # its rows were found


@pytest.mark.parametrize("action", ["shift", "close", "turn"])
def test_other_work_waits_for_the_device(action: str) -> None:
    rig = Rig(asynchronous=True)
    generation, other = rig.generation([1, 2, 3]), rig.sequence([4, 5, 6])
    rig.engine.next(generation), rig.engine.next(generation)
    assert rig.forward.running is not None
    done: list[object] = []
    if action == "shift":
        other.shift(0, 1)
    elif action == "close":
        rig.engine.close(lambda: done.append(rig.forward.running))
    else:
        rig.engine.in_turn(lambda: done.append(rig.forward.running))
    assert rig.forward.running is None
    assert done == ([] if action == "shift" else [None])
    assert [token.sampled.id for token in generation.ready_results] == expected([1, 2, 3])[2:3]
    if action != "close":
        assert rig.read(generation) == expected([1, 2, 3])[2:]


def test_a_device_that_fails_after_a_step() -> None:
    """The reader gets the error once, and may go on. If another thread met it, the text has ended."""
    rig = Rig(asynchronous=True)
    generation = rig.generation([1, 2, 3], n=9)
    read = [rig.engine.next(generation), rig.engine.next(generation)]
    rig.forward.failure = RuntimeError("the device burns")
    with pytest.raises(RuntimeError, match="burns"):
        rig.engine.next(generation)
    assert rig.cache.length(0) == 4  # the row that failed is gone
    read += [rig.engine.next(generation), rig.engine.next(generation)]
    assert [token.sampled.id for token in read if token is not None] == expected([1, 2, 3], 4)
    rig.forward.failure = RuntimeError("the device burns")
    rig.engine.in_turn(lambda: None)
    with pytest.raises(RuntimeError, match="burns"):
        rig.engine.next(generation)
    assert generation.ended
    rig.engine.remove(generation)
    assert rig.read(rig.generation([1, 2, 3])) == expected([1, 2, 3])
    assert not any(slot.busy for slot in rig.slots._slots)


def test_damage_that_is_seen_when_the_next_row_is_prepared() -> None:
    rig = Rig(asynchronous=True)
    damaged, other = rig.generation([1, 2, 3], n=9), rig.generation([4, 5], n=9)
    rig.engine.add(other)
    rig.engine.next(damaged), rig.engine.next(damaged)
    compute = rig.forward._compute

    def nan(work: Work) -> Results:
        results = compute(work)
        results.outputs[-1][[len(rows) == 5 for rows in work.requested]] = np.nan  # the row of one of them
        return results

    rig.forward._compute = nan  # type: ignore[method-assign]
    with pytest.raises(SamplingError, match="NaN"):
        rig.engine.next(damaged)
    rig.forward._compute = compute  # type: ignore[method-assign]
    rig.engine.remove(damaged)
    assert rig.read(other) == expected([4, 5], 9)
    assert not any(slot.busy for slot in rig.slots._slots)


def test_rows_of_a_running_graph_are_not_shared() -> None:
    """They may be lost yet."""
    rig = Rig(asynchronous=True, n_batch=32)
    rig.engine._pace.learn([(0, 32)], 1e-3, built=False)
    first, second = (rig.generation(PROMPT[:200], n=1) for _ in range(2))
    rig.engine.add(first)
    rig.engine.step()
    assert (rig.forward.running is not None, rig.forward.graphs) == (True, [])
    rig.engine.add(second)
    rig.forward.failure = RuntimeError("the device burns")
    with pytest.raises(RuntimeError, match="burns"):
        rig.engine.step(second)
    assert first.sequence.n_computed == second.sequence.n_computed == 0


def test_a_failure_keeps_the_state_of_a_text_that_was_only_prepared() -> None:
    rig = Rig(asynchronous=True, uniform=True, n_batch=64, n_ubatch=64)
    rig.engine._pace.learn([(0, 32)], 1e-3, built=False)
    text = rig.generation(list(range(20)), n=60)
    for _ in range(20):
        rig.engine.next(text)
    rig.engine.add(rig.generation(PROMPT[::-1], n=1))
    while not rig.engine._pipeline.without_results:
        rig.engine.step()
    before = text.sequence.n_computed
    rig.forward.failure = RuntimeError("the device burns")
    with pytest.raises(RuntimeError, match="burns"):
        rig.engine.step()
    assert text.sequence.n_computed == before > 30


def test_a_state_does_not_return_to_a_slot_that_was_emptied() -> None:
    rows = Rows(2, first=1)
    rows.put(1, slot=0, position=5)
    rows.allocate([Allocation(0, 5, 1)])
    rows.remove(0, 0)  # as when another thread gives the slot to another text
    rows.rollback()
    assert rows.length(0) == 0


def test_the_time_of_a_reader_says_nothing_about_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(asynchronous=True, n_batch=64, n_ubatch=64, seconds=0.02)
    now = [0.0]

    def compute(n: int) -> None:
        now[0] += n * 5e-5

    rig.forward.gate = compute
    monkeypatch.setattr("hotshoe.runner.pipeline.time.perf_counter", lambda: now[0])
    text, prompt = rig.generation([1, 2, 3], n=40), rig.generation(PROMPT, n=1)
    rig.engine.next(text)
    rig.engine.add(prompt)
    for _ in range(14):
        rig.engine.next(text)
        now[0] += 0.05  # the reader prints
    assert prompt.finished


def test_no_shift_waits_for_a_graph_under_the_lock() -> None:
    rig = Rig(asynchronous=True, n_batch=16, n_ubatch=8, n_ctx=100)
    rig.engine._pace.learn([(0, 32)], 1e-3, built=False)
    params = SamplingParams(temperature=0, max_tokens=50, context_shift=0)
    text = Generation(rig.sequence(PROMPT[:98]), Sampler(params, N_VOCAB), frozenset())
    shift, running = rig.slots.shift, []

    def shifted(*args: Any) -> None:
        running.append(rig.forward.running)
        shift(*args)

    rig.slots.shift = shifted  # type: ignore[method-assign]
    rig.engine.next(text)
    rig.engine.add(rig.generation(PROMPT[1:31], n=1))
    for _ in range(4):
        rig.engine.next(text)
    assert running == [None]


def test_a_graph_that_cannot_be_prepared_does_not_cost_the_results_of_the_one_before() -> None:
    rig = Rig(asynchronous=True)
    text = rig.generation([1, 2, 3])
    rig.engine.next(text)

    def fail(work: Work) -> None:
        raise MemoryError("no room for the next graph")

    rig.forward.compile = fail  # type: ignore[method-assign]
    assert rig.read(text) == expected([1, 2, 3])[1:]
