"""Random graphs on the CPU and on the reference: same outputs, same states.

The CPU runs each natively, decomposed, and asked for one row of each output alone, when core computes as few rows of
all that comes before as it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np

from hotshoe_core.contract.backend import Backend
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.graphs import push_down_take
from hotshoe_core.tensors.tensor import Tensor, constant
from hotshoe_core.testing import GraphCase, compute
from hotshoe_core.testing.run import Maker
from hotshoe_loader import load_all
from tests.fuzz.fault import Fault
from tests.fuzz.graphs import random_graph

__all__ = ["SEEDS", "SHARE", "run", "setup"]

Array = np.ndarray[Any, Any]
PRECISE, ROUNDED = 1e-3, 0.1
"""Of an element's difference, relative to the largest of its tensor; the second where products round their operands
to 8 or 16 bits, which what follows them may make more of, and then to 0.25 at least: sums of such may cancel."""
STEPS = 3


SEEDS = (
    630,  # of an expand, whose rows are not those of what it expands, a few rows
    2002501,  # a mean of rounded values that cancel
)
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
    last = [[each[-1:].astype(_of_rows(each)) if each.ndim > 1 else each for each in outputs] for outputs in expected]
    for how, variant, wanted in (
        ("native", case, expected),
        ("decomposed", case, expected),
        ("rows", _row(case), last),
    ):
        try:
            with mock.patch.object(push_down_take, "_MIN_SAVED", 1):
                got = compute(backend, variant, decompose=how == "decomposed", steps=STEPS)
        except UnsupportedOpError:
            continue  # five axes, say: refused in words, which is allowed
        for step, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
            if (words := _differ(ours, theirs, precise=seed % 2 == 0)) is not None:
                return f"{how}, step {step}: {words}"
    return None


def _row(case: GraphCase) -> GraphCase:
    """The case with the last row alone of each output that has rows. Its operands get the same numbers."""

    def body(make: Maker) -> Sequence[Tensor]:
        return [t.take(constant(np.array([len(t) - 1], np.int32))) if t.ndim > 1 else t for t in case.body(make)]

    return GraphCase(case.id, body, case.dtypes)


def _of_rows(array: Array) -> np.dtype[Any]:
    """The type of rows that were taken of it."""
    return array.dtype if array.dtype.kind in "iu" else np.dtype(np.float32)


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
