"""Random graphs on the CPU and on the reference, natively and decomposed: same outputs, same states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.backend import Backend
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.reference import open_reference
from hotshoe_core.testing import compute
from hotshoe_loader import load_all
from tests.fuzz.fault import Fault
from tests.fuzz.graphs import random_graph

__all__ = ["SEEDS", "SHARE", "run", "setup"]

Array = np.ndarray[Any, Any]
PRECISE, ROUNDED = 1e-3, 0.1
"""Of an element's difference, relative to the largest of its tensor; the second where products round their operands
to 8 or 16 bits, which what follows them may make more of, and then to 0.25 at least: sums of such may cancel."""
STEPS = 3


SEEDS = (2002501,)  # a mean of rounded values that cancel
SHARE = 40
N_NODES = 20

_backends: list[Backend] = []


def setup() -> None:
    _backends[:] = [load_all(require="cpu").open("cpu"), open_reference()]


def run(seed: int) -> str:
    """A fault names the shortest beginning of the graph on which they differ."""
    backend, reference = _backends
    if (found := difference(backend, reference, seed, N_NODES)) is not None:
        n, found = shrink(backend, reference, seed, N_NODES, found)
        raise Fault("different", f"random_graph({seed}, {n}): {found}")
    return "same"


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
