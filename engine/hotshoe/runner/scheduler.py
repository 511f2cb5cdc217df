"""Scheduling policy: how many rows of each job the next step computes. It touches no tensor, no lock and no cache.

A step computes at most ``n_batch`` rows, in graphs of at most ``n_ubatch`` rows. Decoding jobs (one pending row) go
first, with one row each. The rest of the step, or as many rows as runner/pace.py allows, goes to prompts. The prompt
that is finished soonest goes first, so that a short request does not wait for long ones; the one that came first is
served in every third step at least, however many short ones follow it. A decoding job never waits longer than one step
for a prompt, and half as long if there are only one or two, unless pieces would have fewer than 64 rows. A prompt that
needs more steps is cut so that the step has a round number of rows: few different graphs are needed.

The guessed tokens of a decoding job (runner/drafting.py) are rows of the same graph as its next one. If there is no
room for the guesses of all jobs, they take turns.

If all sequences of a graph must have the same number of rows (*uniform*), decoding jobs get graphs of their own, and
prompts are cut into the sizes of kvcache/buckets.py, so that few different graphs are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from hotshoe.kvcache.buckets import ROWS_PER_OCTAVE, round_down, round_up
from hotshoe.runner.pace import STABLE_ROWS, Allowance

__all__ = ["Chunk", "Limits", "Pending", "schedule"]


class Pending(Protocol):
    """What the policy reads of a job that has rows to compute."""

    arrival: int
    """The order in which jobs came; the lowest is served first."""

    served: int
    """The last step that computed rows of the job; -1 for none."""

    all_outputs: bool
    """Whether results are needed after every row, not only after the last one."""

    @property
    def n_pending(self) -> int:
        """The number of rows that are not computed yet, 1 or more."""

    @property
    def n_computed(self) -> int:
        """The number of rows that are computed: the position of the first pending one."""

    @property
    def n_draft(self) -> int:
        """How many tokens are guessed to follow the pending rows, if these are the next one, or few that it follows."""

    @property
    def inseparable(self) -> Sequence[tuple[int, int]]:
        """[start, stop) of the pending rows that must be computed in one graph, counted from the first of them."""

    @property
    def cuts(self) -> Sequence[int]:
        """The pending rows that a graph must begin with, counted from the first of them, in order."""

    @property
    def checkpoints(self) -> Sequence[int]:
        """After how many of the pending rows a recurrent cache should keep a state, in order."""


P = TypeVar("P", bound=Pending)

_MANY = 3  # prompts: fewer may get half of a step's time
_MOST_SKIPPED = 3  # steps that serve others before the prompt that came first
_LEAST_DRAFT = ((6, 7), (4, 3))  # with so many texts a row costs much of a token: only good guesses pay
_MOST_WITH_DRAFTS = 16  # rows of decoding jobs and their guessed tokens: each further one costs as much as it may save


class Chunk(NamedTuple, Generic[P]):
    """The next ``n`` rows of a job's sequence. Results are needed after the last ``outputs`` of them."""

    job: P
    n: int
    outputs: int
    drafted: int = 0
    """How many of the rows, the last ones, are guessed tokens."""


class Limits(NamedTuple):
    """The sizes that the policy keeps to."""

    n_batch: int
    """Rows of a step."""

    n_ubatch: int
    """Rows of a graph."""

    uniform: bool = False
    """Whether all sequences of a graph must have the same number of rows."""

    per_octave: int = ROWS_PER_OCTAVE
    """How many sizes uniform prompts are cut into, from a power of two to the next one."""


def schedule(
    jobs: Sequence[P], limits: Limits, step: int = 0, allowance: Allowance | None = None
) -> list[list[Chunk[P]]]:
    """Return the graphs of the next step, in order. A graph has at most one chunk of a job; a step may have several.

    jobs: those that have room in the cache, all of them together. step: the number of this step. allowance: what the
    step may take; None: only ``limits`` count.
    """
    # rows before a wrong guess come again, with new guesses
    alone = len(jobs) == 1 and jobs[0].n_draft > 0 and jobs[0].n_pending <= min(limits.n_batch, limits.n_ubatch)
    decoding = sorted((job for job in jobs if job.n_pending == 1 or alone), key=lambda job: (job.served, job.arrival))

    def rest(job: P) -> tuple[float, int]:
        # the last 100 rows of a prompt of 16,000 take longer than a whole prompt of 500
        return job.n_pending if allowance is None else allowance.cost(job.n_computed, job.n_pending), job.arrival

    prompts = sorted((job for job in jobs if job.n_pending > 1 and not alone), key=rest)
    first = min(prompts, key=lambda job: job.arrival, default=None)
    if first is not None and step - first.served >= _MOST_SKIPPED:
        prompts.remove(first)
        prompts.insert(0, first)
    if limits.n_batch == 1 and decoding and prompts:  # the step has a single row: take turns
        if (prompts[0].served, prompts[0].arrival) < (decoding[0].served, decoding[0].arrival):
            decoding = []
        else:
            prompts = []
    most = limits.n_batch - bool(prompts)
    del decoding[most:]
    wanted, again = [job.n_draft for job in decoding], sum(job.n_pending - 1 for job in decoding)
    drafted = _drafted(wanted, again, min(most, limits.n_ubatch), limits.uniform, limits.per_octave, step)
    chosen = [(job, job.n_pending + n) for job, n in zip(decoding, drafted, strict=True)]
    done = sum(n for _, n in chosen)
    left = limits.n_batch - done
    if allowance is not None:
        half = allowance.seconds / 2
        allowance = allowance.after((job.n_computed, n) for job, n in chosen)
        if decoding and 0 < len(prompts) < _MANY and prompts[0].n_pending >= 2 * STABLE_ROWS:  # enough for two pieces
            allowance = allowance.at_most(max(half, allowance.cost(prompts[0].n_computed, STABLE_ROWS)))
    if limits.uniform:
        if prompts and allowance is not None:
            left = min(left, allowance.rows(prompts[0].n_computed))
        return _uniform_decoding(chosen, limits) + _uniform_prompts(prompts, left, limits)
    shares = chosen
    for job in prompts:
        most = left if allowance is None else min(left, allowance.rows(job.n_computed))
        n = _move_out_of_span(job, 0, _share(job.n_pending, most, done, limits.per_octave)) if most else 0
        if n:
            shares.append((job, n))
        if n < job.n_pending:
            break
        left, done = max(0, left - n), done + n  # rows that stay together may be more than were left
        if allowance is not None:
            allowance = allowance.after([(job.n_computed, n)])._replace(min_rows=0)
    return _graphs(shares, limits)


def _drafted(wanted: Sequence[int], again: int, most: int, uniform: bool, per_octave: int, step: int) -> list[int]:
    """Return how many guessed tokens of each decoding job are computed, of those ``wanted``.

    again: pending rows besides the next one of each job. most: rows of the step's first graph. All these rows together
    are a round number: few different graphs are needed. uniform: only a single job gets guesses, as jobs with other
    numbers of rows would need a graph each, which reads all weights. step: the number of the step; if there is no room
    for the guesses of all, each begins with another job.
    """
    n = len(wanted)
    room = min(most, _MOST_WITH_DRAFTS) - n - again
    least = next((least for texts, least in _LEAST_DRAFT if n >= texts), 1)
    wanted = [count if count >= least else 0 for count in wanted]
    drafting = sum(map(bool, wanted))
    if room <= 0 or not drafting or (uniform and n > 1):
        return [0] * n
    share = max(1, room // drafting)
    counts = [0] * n
    turns = [i % n for i in range(step, step + n)]
    for i in turns:
        counts[i] = min(wanted[i], share, room)
        room -= counts[i]
    total = n + again + sum(counts)
    for _ in range(total - max(n + again, round_down(total, min(4, per_octave)))):
        counts[max(reversed(turns), key=counts.__getitem__)] -= 1
    return counts


def _graphs(shares: Sequence[tuple[P, int]], limits: Limits) -> list[list[Chunk[P]]]:
    """Divide each job's share of the step into chunks, one job after the other, so that graphs are filled."""
    graphs: list[list[Chunk[P]]] = [[]]
    room = limits.n_ubatch
    for job, share in shares:
        done = 0
        while done < share:
            n = _move_out_of_span(job, done, min(room, share - done))
            n = next((cut - done for cut in job.cuts if done < cut < done + n), n)
            if n > room:  # rows that must stay together, and need an empty graph
                n = 0 if graphs[-1] else n
            if n:
                graphs[-1].append(_chunk(job, done, n))
                done, room = done + n, room - n
            if done < share:
                graphs.append([])
                room = limits.n_ubatch
    return [graph for graph in graphs if graph]


def _share(n_pending: int, most: int, done: int, per_octave: int) -> int:
    """Return how many of a prompt's rows are computed now, of at most ``most``, after ``done`` rows of other jobs.

    If possible, those that remain are enough for a piece.
    """
    if n_pending <= most:
        return n_pending
    quantum = min(STABLE_ROWS, 1 << max(0, most.bit_length() - 3))  # at most a quarter is given up for a round number
    total = round_down((done + most) // quantum * quantum, per_octave)
    n = total - done if total > done else most
    lacking = STABLE_ROWS - (n_pending - n)
    return n - lacking if lacking > 0 and n - lacking >= STABLE_ROWS else n


def _move_out_of_span(job: Pending, start: int, n: int) -> int:
    """Return ``n``, or a smaller or larger number, so that the cut is not inside rows that must stay together."""
    for first, last in job.inseparable:
        if first < start + n < last:
            return first - start if first > start else last - start
    return n


def _chunk(job: P, start: int, n: int) -> Chunk[P]:
    drafted = max(0, start + n - job.n_pending)
    return Chunk(job, n, n if job.all_outputs else drafted + int(start + n >= job.n_pending), drafted)


def _uniform_decoding(chosen: Sequence[tuple[P, int]], limits: Limits) -> list[list[Chunk[P]]]:
    size = limits.n_ubatch
    chunks = [_chunk(job, 0, n) for job, n in chosen]
    return [chunks[i : i + size] for i in range(0, len(chunks), size)]


def _uniform_prompts(prompts: Sequence[P], left: int, limits: Limits) -> list[list[Chunk[P]]]:
    """Cut prompts into chunks of equal size: the first prompt sets the size, others with as many rows join it.

    A chunk ends at the next checkpoint of its prompt, as the cache has the states at the ends of chunks only. After the
    first chunk, what is left of a step is used only if it is enough for a whole piece.
    """
    graphs: list[list[Chunk[P]]] = []
    done = [0] * len(prompts)
    while left:
        waiting = [i for i, job in enumerate(prompts) if done[i] < job.n_pending]
        if not waiting:
            break
        distance = _to_checkpoint(prompts[waiting[0]], done[waiting[0]])
        most = min(left, limits.n_ubatch)
        if graphs and most < min(distance, STABLE_ROWS):
            break
        n = _even_part(distance, most, limits.per_octave)
        graph: list[Chunk[P]] = []
        for i in waiting:
            if n <= _to_checkpoint(prompts[i], done[i]) and (len(graph) + 1) * n <= most:
                graph.append(_chunk(prompts[i], done[i], n))
                done[i] += n
        graphs.append(graph)
        left -= len(graph) * n
    return graphs


def _even_part(n: int, most: int, per_octave: int) -> int:
    """Return the first of the fewest parts of ``n`` rows of which none has more than ``most``; they are about equal."""
    size = -(-n // -(-n // most))
    rounded = round_up(size, per_octave)
    return round_down(size, per_octave) if rounded > min(n, most) else rounded


def _to_checkpoint(job: Pending, done: int) -> int:
    """Return how many rows after the first ``done`` go to the next checkpoint, or to the end."""
    return next((c for c in job.checkpoints if c > done), job.n_pending) - done
