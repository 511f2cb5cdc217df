"""The scheduler's policy, without any tensor: budgets, order, fairness, and what a uniform cache asks for."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.runner.scheduler import Candidate, Limits, Piece, bucket, bucket_below, plan


def always(chosen: Sequence[Candidate]) -> bool:
    return True


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Candidate], Limits]:
    n_batch = draw(st.integers(1, 80))
    limits = Limits(n_batch, draw(st.integers(1, n_batch)), draw(st.integers(1, 12)), draw(st.booleans()))
    candidates = [
        Candidate(
            i,
            draw(st.one_of(st.just(1), st.integers(1, 200))),
            arrival=i,
            served=draw(st.integers(-1, 20)),
            all_outputs=draw(st.booleans()),
        )
        for i in range(draw(st.integers(1, 14)))
    ]
    return candidates, limits


@given(situations())
@settings(max_examples=100, deadline=None)
def test_every_step_keeps_its_promises(situation: tuple[list[Candidate], Limits]) -> None:
    candidates, limits = situation
    by_id = {c.id: c for c in candidates}
    graphs = plan(candidates, limits, always)
    assert graphs  # there is always something to do
    assert all(graph for graph in graphs)
    assert sum(p.n for graph in graphs for p in graph) <= limits.n_batch
    done = dict.fromkeys(by_id, 0)
    for graph in graphs:
        assert sum(p.n for p in graph) <= limits.n_ubatch
        assert len({p.id for p in graph}) == len(graph) <= limits.max_sequences
        if limits.uniform:
            assert len({p.n for p in graph}) == 1
            assert bucket(graph[0].n) == graph[0].n
        for p in graph:
            assert p.n > 0
            done[p.id] += p.n
            finished = done[p.id] == by_id[p.id].n_pending
            assert p.outputs == (p.n if by_id[p.id].all_outputs else int(finished))
    assert all(done[c.id] <= c.n_pending for c in candidates)
    # those that write are served before any prompt, as far as the step goes
    admitted = candidates[: limits.max_sequences]
    writing = [c for c in admitted if c.n_pending == 1]
    reading = [c for c in admitted if c.n_pending > 1]
    served = [c for c in writing if done[c.id]]
    if limits.n_batch > 1:
        assert len(served) == min(len(writing), limits.n_batch - bool(reading))
        if reading:
            assert done[reading[0].id] > 0
    # prompts in order: none goes on while an earlier one that could be cut is left waiting in the whole step
    if not limits.uniform:
        begun = [c for c in reading if done[c.id]]
        assert begun == reading[: len(begun)]
        assert all(done[c.id] == c.n_pending for c in begun[:-1])


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.integers(1, 20),
    st.booleans(),
    st.integers(1, 20),
)
@settings(max_examples=40, deadline=None)
def test_nobody_starves(prompts: list[int], n_batch: int, uniform: bool, n_ubatch: int) -> None:
    """Texts that are read and then written for ever: each gets on, as often as the others."""
    limits = Limits(n_batch, min(n_ubatch, n_batch), len(prompts), uniform)
    pending = dict(enumerate(prompts))
    served = dict.fromkeys(pending, -1)
    tokens = dict.fromkeys(pending, 0)
    n_steps = 3 * sum(prompts) + 10 * len(prompts) ** 2
    for step in range(n_steps):
        candidates = [Candidate(i, n, i, served[i]) for i, n in pending.items()]
        for graph in plan(candidates, limits, always):
            for p in graph:
                served[p.id] = step
                pending[p.id] -= p.n
                if p.outputs:
                    tokens[p.id] += 1
                    pending[p.id] = 1
    assert min(tokens.values()) >= 2


def test_writers_never_wait_for_a_long_prompt() -> None:
    limits = Limits(n_batch=64, n_ubatch=64, max_sequences=8)
    left, written = 1000, 0
    for step in range(18):
        graphs = plan([Candidate(0, left, 0), Candidate(1, 1, 1, step), Candidate(2, 1, 2, step)], limits, always)
        (graph,) = graphs
        assert [p for p in graph if p.id] == [Piece(1, 1, 1), Piece(2, 1, 1)]
        assert graph[-1] == Piece(0, min(62, left), int(left <= 62))
        left -= graph[-1].n
        written += 1
        if not left:
            break
    assert (left, written) == (0, 17)


def test_room_decides_who_takes_part_and_nobody_behind_is_asked() -> None:
    asked: list[list[int]] = []
    taken: list[int] = []

    def candidates():  # type: ignore[no-untyped-def]
        for i in range(5):
            taken.append(i)
            yield Candidate(i, 10, i)

    def fits(chosen: Sequence[Candidate]) -> bool:
        asked.append([c.id for c in chosen])
        return sum(c.n_pending for c in chosen) <= 20

    (graph,) = plan(candidates(), Limits(100, 100, 10), fits)
    assert [p.id for p in graph] == [0, 1]
    assert (taken, asked) == ([0, 1, 2], [[0, 1], [0, 1, 2]])
    (graph,) = plan([Candidate(0, 50, 0)], Limits(100, 100, 10), lambda chosen: False)
    assert graph == [Piece(0, 50, 1)]  # the first is always served


def test_a_step_is_cut_into_graphs() -> None:
    graphs = plan([Candidate(0, 70, 0), Candidate(1, 1, 1), Candidate(2, 1, 2)], Limits(50, 20, 8), always)
    assert graphs == [
        [Piece(1, 1, 1), Piece(2, 1, 1), Piece(0, 18, 0)],
        [Piece(0, 20, 0)],
        [Piece(0, 10, 0)],
    ]


def test_spans_are_not_cut() -> None:
    span = Candidate(0, 40, 0, whole=((10, 30),))
    assert plan([span], Limits(64, 24, 8), always) == [[Piece(0, 10, 0)], [Piece(0, 24, 0)], [Piece(0, 6, 1)]]
    # where the step ends within it, it waits; where it is the next, it goes whole, be the step longer for it
    (graph,) = plan([span], Limits(24, 24, 8), always)
    assert graph == [Piece(0, 10, 0)]
    at_it = span._replace(n_pending=30, whole=((0, 20),))
    graphs = plan([Candidate(1, 1, 1), at_it], Limits(16, 20, 8), always)
    assert graphs == [[Piece(1, 1, 1)], [Piece(0, 20, 0)]]


def test_uniform_steps_read_prompts_of_equal_pieces() -> None:
    limits = Limits(512, 256, 8, uniform=True)
    graphs = plan([Candidate(0, 300, 0), Candidate(1, 1, 1), Candidate(2, 100, 2), Candidate(3, 1, 3)], limits, always)
    assert graphs[0] == [Piece(1, 1, 1), Piece(3, 1, 1)]
    assert graphs[1:] == [[Piece(0, 256, 0)], [Piece(0, 44, 1), Piece(2, 44, 0)], [Piece(2, 56, 1)]]


def test_buckets() -> None:
    for n in (*range(1, 3000), 4096, 100_000):
        up, down = bucket(n), bucket_below(n)
        assert down <= n <= up
        assert bucket(up) == up == bucket_below(up)
        assert bucket(down) == down
        assert 16 * (up - n) < n or up == n
        if n < 32 or n in (512, 1024, 2048):
            assert up == n == down
    assert len({bucket(n) for n in range(32, 513)}) == 16 * 4 + 1
