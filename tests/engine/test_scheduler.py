"""The scheduler's policy, without tensors: sizes, order, fairness, and uniform caches."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotshoe.kvcache.buckets import round_down, round_up
from hotshoe.runner.forward import max_padding
from hotshoe.runner.pace import Allowance
from hotshoe.runner.scheduler import _MOST_SKIPPED, Chunk, Limits, schedule


@dataclass(eq=False)
class Job:
    id: int
    n_pending: int
    arrival: int
    served: int = -1
    n_computed: int = 0
    inseparable: tuple[tuple[int, int], ...] = ()
    cuts: tuple[int, ...] = ()
    all_outputs: bool = False
    checkpoints: tuple[int, ...] = ()
    n_draft: int = 0


def by_id(graphs: list[list[Chunk[Job]]]) -> list[list[tuple[int, int, int]]]:
    """Each chunk as (the job's id, n, outputs)."""
    return [[(job.id, n, outputs) for job, n, outputs, _ in graph] for graph in graphs]


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Job], Limits]:
    n_batch = draw(st.integers(1, 80))
    limits = Limits(n_batch, draw(st.integers(1, n_batch)), draw(st.booleans()), draw(st.sampled_from([1, 2, 16])))
    jobs = [
        Job(
            i,
            n_pending := draw(st.one_of(st.just(1), st.integers(1, 200))),
            arrival=i,
            served=draw(st.integers(-1, 20)),
            all_outputs=draw(st.booleans()),
            n_draft=draw(st.sampled_from([0, 0, 1, 3, 7, 15])) if n_pending <= 16 else 0,
        )
        for i in range(draw(st.integers(1, 14)))
    ]
    return jobs, limits


@given(situations())
@settings(max_examples=100, deadline=None)
def test_every_step_keeps_its_promises(situation: tuple[list[Job], Limits]) -> None:
    jobs, limits = situation
    step = 21
    graphs = schedule(jobs, limits, step)
    assert graphs  # there is always something to do
    assert all(graph for graph in graphs)
    assert sum(c.n for graph in graphs for c in graph) <= limits.n_batch
    done = dict.fromkeys(jobs, 0)
    for graph in graphs:
        assert sum(c.n for c in graph) <= limits.n_ubatch
        assert len({c.job for c in graph}) == len(graph)
        if limits.uniform:
            assert len({c.n for c in graph}) == 1
            assert round_up(graph[0].n, limits.per_octave) == graph[0].n
        for job, n, outputs, drafted in graph:
            assert n > 0
            assert 0 <= drafted <= (job.n_draft if job.n_pending == 1 else 0)
            done[job] += n - drafted
            assert outputs == (n if job.all_outputs else drafted + int(done[job] == job.n_pending))
    assert all(done[job] <= job.n_pending for job in jobs)
    # decoding jobs are served before any prompt, as far as the step goes
    decoding = [job for job in jobs if job.n_pending == 1]
    prompts = [job for job in jobs if job.n_pending > 1]
    served = [job for job in decoding if done[job]]
    if limits.n_batch > 1:
        assert len(served) == min(len(decoding), limits.n_batch - bool(prompts))
        if prompts:
            assert any(done[job] for job in prompts)
    # the shortest prompts first, or the one that came first if it was not served lately
    if prompts and not limits.uniform:
        order = sorted(prompts, key=lambda job: (job.n_pending, job.arrival))
        if step - prompts[0].served >= _MOST_SKIPPED:
            order = [prompts[0], *(job for job in order if job is not prompts[0])]
        begun = [job for job in order if done[job]]
        assert begun == order[: len(begun)]
        assert all(done[job] == job.n_pending for job in begun[:-1])


@pytest.mark.parametrize(
    ("wanted", "most", "expected"),
    [
        ([15], 512, [15]),
        ([6], 512, [6]),
        ([10], 512, [9]),  # rows are a round number: few different graphs
        ([15], 8, [7]),
        ([15], 1, [0]),
        ([0, 15], 512, [0, 14]),
        ([15, 15], 512, [7, 7]),
        ([15, 1, 0], 512, [6, 1, 0]),
        ([1, 1, 1], 512, [1, 1, 1]),
        ([15] * 8, 512, [1] * 8),
        ([3, 0, 0, 0], 512, [3, 0, 0, 0]),
        ([1, 0, 0, 0], 512, [0] * 4),  # short drafts are often wrong
        ([3] * 6, 512, [0] * 6),
        ([7] * 6, 512, [1] * 6),
        ([15] * 16, 512, [0] * 16),
        ([15] + [0] * 9, 512, [6, *[0] * 9]),
    ],
)
def test_guessed_tokens_share_a_step(wanted: list[int], most: int, expected: list[int]) -> None:
    jobs = [Job(i, 1, i, n_draft=n) for i, n in enumerate(wanted)]
    (graph,) = schedule(jobs, Limits(512, most))[:1]
    assert [chunk.drafted for chunk in graph] == expected[:most]
    assert [chunk.outputs for chunk in graph] == [1 + n for n in expected[:most]]


@pytest.mark.parametrize(("n", "most", "each"), [(10, 512, 6), (9, 512, 7), (10, 13, 2)])
def test_texts_take_turns_at_guesses_if_there_is_no_room_for_all(n: int, most: int, each: int) -> None:
    jobs = [Job(i, 1, i, n_draft=15) for i in range(n)]
    steps = [schedule(jobs, Limits(512, most), step)[0] for step in range(n)]
    assert [sum(chunk.drafted for chunk in step) for step in steps] == [each] * n
    assert [sum(step[i].drafted for step in steps) for i in range(n)] == [each] * n


def test_texts_take_turns_at_losing_a_guess_to_a_round_number() -> None:
    jobs = [Job(i, 1, i, n_draft=15 if i < 7 else 0) for i in range(8)]
    steps = [schedule(jobs, Limits(512, 512), step)[0] for step in range(8)]
    assert [sum(chunk.drafted for chunk in step) for step in steps] == [6] * 8
    assert all(0 < sum(step[i].drafted for step in steps) < 8 for i in range(7))


@pytest.mark.parametrize(("wanted", "expected"), [([15], 15), ([6], 6), ([15, 15], 0), ([15, 0], 0)])
def test_guessed_tokens_of_a_uniform_step_are_those_of_a_single_text(wanted: list[int], expected: int) -> None:
    """So that all texts are in one graph, which reads the weights once."""
    jobs = [Job(i, 1, i, n_draft=n) for i, n in enumerate(wanted)]
    (graph,) = schedule(jobs, Limits(512, 512, uniform=True))
    assert [(chunk.n, chunk.drafted) for chunk in graph] == [(1 + expected, expected)] * len(wanted)


@given(situations(), st.integers(1, 80))
@settings(max_examples=50, deadline=None)
def test_prompts_get_no_more_rows_than_the_pace_allows(situation: tuple[list[Job], Limits], n_rows: int) -> None:
    jobs, limits = situation
    decoding = {job for job in jobs if job.n_pending == 1 or (len(jobs) == 1 and job.n_draft)}
    n_decoding = sum(job.n_pending + job.n_draft for job in decoding)
    graphs = schedule(jobs, limits, 21, Allowance(n_decoding + n_rows, 1.0, 0.0, 8))
    spare = n_decoding - sum(c.n for graph in graphs for c in graph if c.job in decoding)  # drafts left out
    assert sum(c.n for graph in graphs for c in graph if c.job not in decoding) <= max(8, n_rows + spare)
    assert graphs


def test_pieces_are_shorter_where_rows_attend_to_many_tokens() -> None:
    def piece(n_computed: int, *others: Job, min_rows: int = 8) -> int:
        jobs = [Job(0, 5000, 0, n_computed=n_computed), *others]
        return dict(
            row[:2] for row in by_id(schedule(jobs, Limits(512, 512), 0, Allowance(0.2, 0.001, 1e-6, min_rows)))[0]
        )[0]

    assert piece(0) == 160  # a row takes a millisecond, and as much again after 1,000 tokens
    assert piece(1000) == 96
    assert piece(16_000) == 10
    assert piece(100_000) == 8
    assert piece(100_000, min_rows=64) == 64
    talking = Job(1, 1, 1, n_computed=19_000)  # takes a tenth of the step
    assert piece(1000, talking) == 63  # 64 with the row of the other, which is more than half of the step


@pytest.mark.parametrize(
    ("n_prompts", "n_decoding", "n_pending", "n_computed", "expected"),
    [
        (1, 1, 1000, 0, [191]),
        (2, 7, 1000, 0, [185]),
        (3, 7, 1000, 0, [377]),  # as many wait for their first token
        (1, 0, 1000, 0, [384]),  # nobody waits for a token
        (1, 1, 1000, 20_000, [63]),  # half of the step would be 39 rows
        (1, 1, 200, 0, [136]),  # the rest is enough for a piece
        (1, 1, 100, 0, [100]),
    ],
)
def test_one_or_two_prompts_get_half_of_a_step_while_others_decode(
    n_prompts: int, n_decoding: int, n_pending: int, n_computed: int, expected: list[int]
) -> None:
    decoding = [Job(i, 1, i) for i in range(n_decoding)]
    prompts = [Job(10 + i, n_pending, 10 + i, n_computed=n_computed) for i in range(n_prompts)]
    graphs = schedule([*decoding, *prompts], Limits(512, 512), 0, Allowance(400.0, 1.0, 2e-4, 8))
    assert [chunk.n for graph in graphs for chunk in graph if chunk.job.n_pending > 1] == expected


def test_the_end_of_a_long_prompt_does_not_go_before_a_short_one() -> None:
    """Each of its rows attends to 15,900 tokens."""
    long, short = Job(0, 100, 0, served=20, n_computed=15_900), Job(1, 145, 1)
    allowance = Allowance(0.15, 0.0016, 8e-7, 8)
    assert [row[0] for row in by_id(schedule([long, short], Limits(512, 512), 21, allowance))[0]] == [1]
    assert [row[0] for row in by_id(schedule([long, short], Limits(64, 64), 21))[0]] == [0]


def test_steps_have_few_different_numbers_of_rows() -> None:
    """Each number needs a graph of its own."""
    found = set()
    for n_decoding in range(1, 9):
        decoding = [Job(i, 1, i) for i in range(n_decoding)]
        for start in range(0, 16_000, 100):
            job = Job(20, 16_000 - start, 20, n_computed=start)
            (graph,) = schedule([*decoding, job], Limits(512, 512), 0, Allowance(0.2, 0.0005, 3e-7, 8))
            found.add(sum(chunk.n for chunk in graph))
    assert len(found) <= 25, sorted(found)


def test_no_piece_of_a_prompt_is_small() -> None:
    """A graph of 64 rows or more gives a row the same bits as any other such graph on a CPU."""
    for n in range(128, 700):
        left, pieces = n, []
        while left:
            pieces.append(
                by_id(schedule([Job(0, left, 0)], Limits(512, 512), 0, Allowance(128.0, 1.0, 0.0, 64)))[0][0][1]
            )
            left -= pieces[-1]
        assert min(pieces) >= 64, (n, pieces)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.integers(1, 20),
    st.booleans(),
    st.integers(1, 20),
)
@example([1, 1, 1, 1, 1, 45, 60, 60], 1, False, 1)
@settings(max_examples=40, deadline=None)
def test_no_job_starves(prompts: list[int], n_batch: int, uniform: bool, n_ubatch: int) -> None:
    """Prompts that are then continued for ever: every text makes progress."""
    limits = Limits(n_batch, min(n_ubatch, n_batch), uniform)
    pending = dict(enumerate(prompts))
    served = dict.fromkeys(pending, -1)
    tokens = dict.fromkeys(pending, 0)
    # a step of a single row serves one text, and prompts together have the turn of one
    n_steps = (len(prompts) if n_batch == 1 else 3) * sum(prompts) + 10 * len(prompts) ** 2
    for step in range(n_steps):
        jobs = [Job(i, n, i, served[i]) for i, n in pending.items()]
        for graph in by_id(schedule(jobs, limits, step)):
            for i, n, outputs in graph:
                served[i] = step
                pending[i] -= n
                if outputs:
                    tokens[i] += 1
                    pending[i] = 1
    assert min(tokens.values()) >= 2


def test_decoding_never_waits_for_a_long_prompt() -> None:
    limits = Limits(n_batch=64, n_ubatch=64)
    left, written = 1000, 0
    for step in range(18):
        (graph,) = by_id(schedule([Job(0, left, 0), Job(1, 1, 1, step), Job(2, 1, 2, step)], limits))
        assert graph[:-1] == [(1, 1, 1), (2, 1, 1)]
        assert graph[-1] == (0, min(62, left), int(left <= 62))
        left -= graph[-1][1]
        written += 1
        if not left:
            break
    assert (left, written) == (0, 17)


def test_a_step_is_cut_into_graphs() -> None:
    graphs = by_id(schedule([Job(0, 70, 0), Job(1, 1, 1), Job(2, 1, 2)], Limits(50, 20)))
    assert graphs == [[(1, 1, 1), (2, 1, 1), (0, 18, 0)], [(0, 20, 0)], [(0, 8, 0)]]


def test_a_graph_begins_with_each_cut() -> None:
    cut = Job(0, 30, 0, cuts=(4, 5, 25))
    expected = [[(0, 4, 0)], [(0, 1, 0)], [(0, 16, 0)], [(0, 4, 0)], [(0, 5, 1)]]
    assert by_id(schedule([cut], Limits(64, 16))) == expected
    assert by_id(schedule([Job(1, 1, 1), cut], Limits(6, 16))) == [[(1, 1, 1), (0, 4, 0)], [(0, 1, 0)]]


def test_spans_are_not_cut() -> None:
    span = Job(0, 40, 0, inseparable=((10, 30),))
    assert by_id(schedule([span], Limits(64, 24))) == [[(0, 10, 0)], [(0, 24, 0)], [(0, 6, 1)]]
    # if the step ends inside the span, the span waits; if it comes next, it is computed whole, in a longer step
    assert by_id(schedule([span], Limits(24, 24))) == [[(0, 10, 0)]]
    span = Job(0, 30, 0, inseparable=((0, 20),))
    assert by_id(schedule([Job(1, 1, 1), span], Limits(16, 20))) == [[(1, 1, 1)], [(0, 20, 0)]]


def test_uniform_steps_cut_prompts_into_equal_chunks() -> None:
    limits = Limits(512, 256, uniform=True)
    graphs = by_id(schedule([Job(0, 300, 0), Job(1, 1, 1), Job(2, 100, 2), Job(3, 1, 3)], limits))
    assert graphs[0] == [(1, 1, 1), (3, 1, 1)]
    assert graphs[1:] == [[(2, 100, 1), (0, 100, 0)], [(0, 200, 1)]]


@pytest.mark.parametrize("per_octave", [1, 2, 16])
def test_the_most_padding(per_octave: int) -> None:
    """It was counted one by one: a model with an n_batch of 2^31 - 1 did not load within minutes."""
    most = 0
    for n in range(1, 3000):
        most = max(most, round_up(n, per_octave) - n)
        assert max_padding(n, per_octave) == most, n
    assert max_padding(2**31 - 1, per_octave) == 2**30 // per_octave - 1


@pytest.mark.parametrize("per_octave", [1, 2, 4, 8, 16])
def test_buckets(per_octave: int) -> None:
    for n in (*range(1, 3000), 4096, 100_000):
        up, down = round_up(n, per_octave), round_down(n, per_octave)
        assert down <= n <= up
        assert round_up(up, per_octave) == up == round_down(up, per_octave)
        assert round_up(down, per_octave) == down
        assert per_octave * (up - n) < n or up == n
        if n < 2 * per_octave or n in (512, 1024, 2048):
            assert up == n == down
    assert len({round_up(n, per_octave) for n in range(32, 513)}) == per_octave * 4 + 1
    if per_octave in (1, 2, 16):  # docs/backends.md and CacheConfig
        assert len({round_up(n, per_octave) for n in range(1, 513)}) == {1: 10, 2: 18, 16: 96}[per_octave]
    assert round_up(0, per_octave) == 0


@pytest.mark.parametrize(
    ("n_pending", "checkpoint", "most", "expected"),
    [
        (100, None, 216, [100]),
        (256, None, 140, [128]),  # not 136, and 120 in the next step
        (512, None, 200, [176]),
        (384, 128, 136, [128]),  # 8 rows of the step are left: too few for another piece
        (384, 128, 200, [128, 64]),
    ],
)
def test_uniform_prompts_are_cut_into_even_parts_without_slivers(
    n_pending: int, checkpoint: int | None, most: int, expected: list[int]
) -> None:
    job = Job(0, n_pending, 0, checkpoints=() if checkpoint is None else (checkpoint,))
    graphs = schedule([job], Limits(2048, 512, uniform=True), 0, Allowance(most, 1.0, 0.0, 64))
    assert [chunk.n for graph in graphs for chunk in graph] == expected


def test_rows_of_a_wrong_guess_come_again_with_new_guesses() -> None:
    """Of a text that is alone; the others of a recurrent model could not be in its graph."""
    again = Job(0, 3, 0, n_computed=40, n_draft=3)
    for uniform in (False, True):
        limits = Limits(64, 16, uniform)
        ((chunk,),) = schedule([again], limits)
        assert chunk == (again, 6, 4, 3)
    one, other = schedule([again, Job(1, 1, 1)], Limits(64, 16, True))
    assert [by_id([one]), by_id([other])] == [[[(1, 1, 1)]], [[(0, 3, 1)]]]
    assert schedule([again], Limits(64, 2, True))[0][0].n == 2  # no graph has room for all of them


def test_guesses_with_rows_that_come_again_are_a_round_number() -> None:
    for n_pending in range(1, 17):
        ((chunk,),) = schedule([Job(0, n_pending, 0, n_draft=15)], Limits(64, 16, True))
        assert chunk.n <= 16
        assert chunk.n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16) or not chunk.drafted
