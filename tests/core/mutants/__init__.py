"""Backends with one planted error each: what the conformance kit is proven to find.

ops        what an op computes             patches  what its rows are written with
lives      what surrounds the numbers: replay, states, memory, closing; and several devices
blocks     how a weight's blocks are read
mutant     Mutant: a wrong backend, the right one that it was made of, and what of the kit must fail for it
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.core.mutants import blocks, lives, ops
from tests.core.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: Mapping[str, Mutant] = {**ops.mutants(), **blocks.mutants(), **lives.mutants()}
"""All of them, by what is wrong: "softmax: …"."""
