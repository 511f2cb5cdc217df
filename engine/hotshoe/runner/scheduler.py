"""Which sequences compute how many tokens next. Pure policy: no tensor, no lock, no cache.

A step computes at most ``n_batch`` tokens, in graphs of at most ``n_ubatch``. Sequences with one token left (those that
write) go first, with one token each; what is left of the step goes to prompts, in order of their arrival, cut where the
step ends. So those that write never wait longer than one step for a prompt, however long it is, and a prompt gets at
least one token of every step.

Where sequences of a graph must be of equal length (*uniform*), those that write have a graph of their own, and prompts
are cut into the sizes of ``bucket``, so that few different graphs are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

__all__ = ["Candidate", "Limits", "Piece", "bucket", "bucket_below", "plan"]


class Candidate(NamedTuple):
    """A sequence that has something to compute.

    id: the caller's own. n_pending: its tokens that are not computed yet, 1 or more. arrival: when it came; the least
    goes first. served: the last step that computed something of it, -1 for none. whole: pieces [from, to) of its
    pending tokens that must be computed in one graph. all_outputs: results are asked for after every token, not only
    after the last.
    """

    id: int
    n_pending: int
    arrival: int
    served: int = -1
    whole: tuple[tuple[int, int], ...] = ()
    all_outputs: bool = False


class Piece(NamedTuple):
    """The next ``n`` tokens of a candidate; results are asked for after the last ``outputs`` of them."""

    id: int
    n: int
    outputs: int


class Limits(NamedTuple):
    """n_batch: tokens of a step; n_ubatch: of one graph; max_sequences: of one graph. uniform: see the module."""

    n_batch: int
    n_ubatch: int
    max_sequences: int
    uniform: bool = False


Fits = Callable[[Sequence[Candidate]], bool]
"""Whether the cache has room for all that is pending of these together."""

_EXACT = 32  # below this, sizes are what they are


def bucket(n: int) -> int:
    """``n`` rounded up: exact below 32, then in steps of a sixteenth of the power of two below. At most 6 % more."""
    if n < _EXACT:
        return n
    step = 1 << (n.bit_length() - 5)
    return -(-n // step) * step


def bucket_below(n: int) -> int:
    """``n`` rounded down to a size that ``bucket`` leaves as it is."""
    if n < _EXACT:
        return n
    step = 1 << (n.bit_length() - 5)
    return n - n % step


def plan(candidates: Iterable[Candidate], limits: Limits, fits: Fits) -> list[list[Piece]]:
    """The graphs of the next step, in order: each a list of pieces, of one sequence at most one.

    candidates come in the order in which they get room in the cache: the first always does, the others while ``fits``;
    none is taken from the iterable after the first that does not fit. A sequence may be in several graphs of a step.
    """
    together: list[Candidate] = []
    for candidate in candidates:
        if together and (len(together) == limits.max_sequences or not fits([*together, candidate])):
            break
        together.append(candidate)
    writing = sorted((c for c in together if c.n_pending == 1), key=lambda c: (c.served, c.arrival))
    reading = sorted((c for c in together if c.n_pending > 1), key=lambda c: c.arrival)
    if limits.n_batch == 1 and writing and reading:  # one token has to do: in turns
        if (reading[0].served, reading[0].arrival) < (writing[0].served, writing[0].arrival):
            writing = []
        else:
            reading = []
    del writing[limits.n_batch - bool(reading) :]
    left = limits.n_batch - len(writing)
    if limits.uniform:
        return _uniform_writing(writing, limits) + _uniform_reading(reading, left, limits)
    shares = [(c, 1) for c in writing]
    for c in reading:
        n = _uncut(c, 0, min(left, c.n_pending)) if left else 0
        if n:
            shares.append((c, n))
            left = max(0, left - n)
    return _graphs(shares, limits)


def _graphs(shares: Sequence[tuple[Candidate, int]], limits: Limits) -> list[list[Piece]]:
    """The tokens of each candidate, one after the other, in graphs that are filled up."""
    graphs: list[list[Piece]] = [[]]
    room = limits.n_ubatch
    for c, share in shares:
        done = 0
        while done < share:
            n = _uncut(c, done, min(room, share - done))
            if n > room:  # a piece that must not be cut, and has to be the first of a graph
                n = 0 if graphs[-1] else n
            if n:
                graphs[-1].append(_piece(c, done, n))
                done, room = done + n, room - n
            if done < share:
                graphs.append([])
                room = limits.n_ubatch
    return [graph for graph in graphs if graph]


def _uncut(c: Candidate, start: int, n: int) -> int:
    """``n`` tokens from ``start`` on, or fewer or more, so that no piece that must stay whole is cut."""
    for first, last in c.whole:
        if first < start + n < last:
            return first - start if first > start else last - start
    return n


def _piece(c: Candidate, start: int, n: int) -> Piece:
    return Piece(c.id, n, n if c.all_outputs else int(start + n == c.n_pending))


def _uniform_writing(writing: Sequence[Candidate], limits: Limits) -> list[list[Piece]]:
    size = limits.n_ubatch
    return [[_piece(c, 0, 1) for c in writing[i : i + size]] for i in range(0, len(writing), size)]


def _uniform_reading(reading: Sequence[Candidate], left: int, limits: Limits) -> list[list[Piece]]:
    """Prompts in pieces of equal lengths: the first in order says how long, others that have as much go with it."""
    graphs: list[list[Piece]] = []
    done = dict.fromkeys((c.id for c in reading), 0)
    while left:
        waiting = [c for c in reading if done[c.id] < c.n_pending]
        if not waiting:
            break
        n = bucket_below(min(waiting[0].n_pending - done[waiting[0].id], left, limits.n_ubatch))
        graph: list[Piece] = []
        for c in waiting:
            if done[c.id] + n <= c.n_pending and (len(graph) + 1) * n <= min(left, limits.n_ubatch):
                graph.append(_piece(c, done[c.id], n))
                done[c.id] += n
        graphs.append(graph)
        left -= len(graph) * n
    return graphs
