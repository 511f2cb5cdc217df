"""Steps that are bounded by time, and in what order prompts are read and admitted to the cache."""

from __future__ import annotations

import pytest

from hotshoe.runner.pace import Pace
from hotshoe.runner.sequence import extend
from tests.support.engine_rig import Rig, expected, next_token


def test_only_some_jobs_overtake_one_that_does_not_fit() -> None:
    """Otherwise a long prompt would never begin while short ones keep coming."""
    rig = Rig(n_ctx=64)
    first, long = rig.generation([1] * 60, n=4), rig.generation([2] * 70, n=4)
    for generation in (first, long):
        generation.min_free_rows = 0
        rig.engine.add(generation)
    n_overtaking = 0
    for i in range(40):
        short = rig.generation([i], n=2)
        short.min_free_rows = 0
        rig.engine.add(short)
        fitting = rig.fitting()
        assert fitting[0] is first
        assert long not in fitting
        n_overtaking += short in fitting
        rig.engine.remove(short)
    assert 1 <= n_overtaking <= 17


def test_room_for_a_graph_is_not_taken_from_a_later_graph_of_the_step() -> None:
    rig = Rig(n_ubatch=16, n_ctx=32)
    later, idle, first = rig.sequence(), rig.sequence(), rig.sequence()
    later.append(*[1] * 10)
    idle.append(*[2] * 40)  # used more recently, but no job of the step
    logits = extend(rig.engine, [(first, [3] * 16), (later, [4] * 17)])
    assert [int(row.argmax()) for row in logits] == [next_token([3] * 16), next_token([1] * 10 + [4] * 17)]
    assert int(idle.append().argmax()) == next_token([2] * 40)


def test_a_long_prompt_leaves_room_for_short_ones() -> None:
    rig = Rig()
    assert [rig.generation([1] * n).min_free_rows for n in (1, 100, 5000)] == [64, 100, 1024]


def test_more_than_63_sequences_are_computed_together() -> None:
    rig = Rig(n_slots=200, n_ctx=2000)
    generations = [rig.generation([i % 50, i // 50], n=3) for i in range(150)]
    for generation in generations:
        generation.min_free_rows = 0
        rig.engine.add(generation)
    assert len(rig.fitting()) == 150
    assert [rig.read(g) for g in generations] == [expected([i % 50, i // 50], 3) for i in range(150)]
    forks = [rig.sequence([1, 2, 3])]
    forks[0].append()
    forks += [forks[0].fork() for _ in range(120)]
    assert [int(f.append(i % 50).argmax()) for i, f in enumerate(forks)] == [
        next_token([1, 2, 3, i % 50]) for i in range(121)
    ]
    assert sum(rig.forward.graphs[-121:]) == 121  # three rows are shared by all


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_are_bounded_by_time(asynchronous: bool) -> None:
    """A prompt is read in large pieces for one caller alone, and in small ones while others wait."""
    rig = Rig(n_batch=512, n_ubatch=512, n_ctx=4096, seconds=0.2, asynchronous=asynchronous)
    now = [0.0]

    def compute(n: int) -> None:
        now[0] += 0.001 * n

    rig.forward.gate = compute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotshoe.runner.pipeline.time.perf_counter", lambda: now[0])
        alone = rig.generation([1] * 2000, n=1)
        assert rig.read(alone) == expected([1] * 2000, 1)
        assert rig.forward.graphs == [64, 512, 512, 512, 400]  # 0.8 seconds would allow more
        del rig.forward.graphs[:]
        talking, long = rig.generation([2], n=30), rig.generation([3] * 1500, n=1)
        for job in (talking, long):
            rig.engine.add(job)
        assert rig.read(talking) == expected([2], 30)
        assert max(rig.forward.graphs) == 96  # half of 0.2 seconds: a round number, with the row of the other text
        assert rig.read(long) == expected([3] * 1500, 1)


def test_a_short_prompt_is_read_before_long_ones_and_these_go_on() -> None:
    rig = Rig(n_batch=64, n_ubatch=64, n_ctx=4096, seconds=0.2)
    long = [rig.generation([i] * 1000, n=1) for i in (1, 2)]
    for job in long:
        rig.engine.add(job)
    rig.engine.step()
    short = rig.generation([3] * 40, n=1)
    rig.engine.add(short)
    rig.engine.step()
    rig.engine.step()
    assert short.n_tokens == 1
    for i in range(60):  # ever new ones
        rig.engine.add(rig.generation([i] * 64, n=1))
        rig.engine.step()
    assert long[0].n_tokens == 1
    assert long[1].sequence.n_computed > 100


def test_the_pace_is_learned() -> None:
    pace = Pace(0.2)
    assert pace.allowance(1).rows(0) == pace.allowance(5).rows(9000) == 64  # nothing is known yet
    pace.learn([(0, 64)], 0.64, built=True)
    assert pace.allowance(1).rows(0) == 80  # 0.8 seconds
    assert pace.allowance(2).rows(0) == 20
    assert pace.allowance(2).after([(0, 10)]).rows(0) == 10
    pace.learn([(0, 10)], 5.0, built=True)  # compiling a graph says little about the next one
    assert pace.allowance(2).rows(0) == 15
    pace.learn([(0, 10)], 5.0, built=False)  # and a single step that was slow says little too
    assert pace.allowance(2).rows(0) == 8
    for _ in range(20):
        pace.learn([(0, 64)], 0.0064, built=False)
    assert pace.allowance(2).rows(0) >= 1900


def test_short_prompts_do_not_hide_what_long_ones_cost() -> None:
    """In a text of 16,000 tokens a row takes ten times as long as in a short one."""

    def seconds(start: int, n: int) -> float:
        return n * 0.0005 + n * (start + n / 2) * 3e-7

    pace, longest = Pace(0.2), 0.0
    for start in range(0, 16_000, 25):
        for _ in range(3):
            pace.learn([(0, 50)], seconds(0, 50), built=False)
        n = pace.allowance(6).rows(start)
        if start >= 100:
            longest = max(longest, seconds(start, n))
            assert seconds(start, n) > 0.15
        pace.learn([(start, n)], seconds(start, n), built=False)
    assert longest < 0.25


def test_a_long_text_does_not_leave_while_short_ones_can() -> None:
    """All slots are taken. Others would wait until the store has all of the long text."""
    rig = Rig(n_slots=3, n_ctx=4096)
    for tokens in ([1] * 1100, [2] * 10, [3] * 20):
        with rig.sequence(tokens) as sequence:
            sequence.append()
    rig.sequence([4] * 5).append()
    assert sorted(len(slot.rows) for slot in rig.slots._slots) == [5, 20, 1100]


def test_a_long_text_is_not_cut_for_a_short_one_that_begins_alike() -> None:
    rig = Rig(n_slots=2, n_ctx=4096)
    for tokens in ([1] * 1100, [2] * 10):
        with rig.sequence(tokens) as sequence:
            sequence.append()
    sequence = rig.sequence([1] * 30 + [4])
    sequence.append()
    assert sorted(len(slot.rows) for slot in rig.slots._slots) == [31, 1100]
