"""The search: random graphs on a backend and on the reference, natively and decomposed, until they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.backend import Backend
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.testing import compute
from tests.fuzz.graphs import random_graph

__all__ = ["DifferenceError", "check", "difference", "shrink"]

Array = np.ndarray[Any, Any]
PRECISE, ROUNDED = 1e-3, 0.1
"""Of an element's difference, relative to the largest of its tensor; the second where products round their operands
to 8 or 16 bits, which what follows them may make more of, and then to 0.25 at least: sums of such may cancel."""
STEPS = 3


class DifferenceError(AssertionError):
    """A backend and the reference do not agree on a graph."""


def check(backend: Backend, reference: Backend, seed: int, n_nodes: int) -> None:
    """Raises DifferenceError, for the shortest beginning of the graph on which they differ."""
    if (found := difference(backend, reference, seed, n_nodes)) is not None:
        n, found = shrink(backend, reference, seed, n_nodes, found)
        raise DifferenceError(f"random_graph({seed}, {n}): {found}")


def shrink(backend: Backend, reference: Backend, seed: int, n_nodes: int, found: str) -> tuple[int, str]:
    """The fewest nodes with which this seed differs."""
    for n in range(1, n_nodes):
        if (earlier := difference(backend, reference, seed, n)) is not None:
            return n, earlier
    return n_nodes, found


def difference(backend: Backend, reference: Backend, seed: int, n_nodes: int) -> str | None:
    """What is different, in words; None if nothing is."""
    case = random_graph(seed, n_nodes)
    expected = compute(reference, case, steps=STEPS)
    for decompose in (False, True):
        try:
            got = compute(backend, case, decompose=decompose, steps=STEPS)
        except UnsupportedOpError:
            continue  # five axes, say: refused in words, which is allowed
        how = "decomposed" if decompose else "native"
        for step, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            if (words := _differ(ours, theirs, precise=seed % 2 == 0)) is not None:
                return f"{how}, step {step}: {words}"
    return None


def _differ(got: Sequence[Array], expected: Sequence[Array], *, precise: bool) -> str | None:
    bound, least = (PRECISE, 1e-3) if precise else (ROUNDED, 0.25)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i} is {a.dtype}{list(a.shape)}; expected {b.dtype}{list(b.shape)}"
        if not np.isfinite(b).all():
            return f"output {i} of the reference is not finite: the graph is badly made"
        worst = float(np.abs(a.astype(np.float64) - b).max()) / max(least, float(np.abs(b).max()))
        if not worst <= bound:
            return f"output {i}, {b.dtype}{list(b.shape)}, is off by {worst:.2g} of its largest element"
    return None
