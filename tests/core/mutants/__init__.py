"""Mutants: backends with one planted error each, which the conformance kit must find.

ops        errors in the result of an op      patches  building blocks for them
sizes      errors beyond a block, a grid, or a few rows
numbers    errors in wide integers, rounding, small numbers, far positions, NaN
lives      errors in replay, states, threads   memory   errors in what is held and reported
devices    errors with several devices         adapters building blocks for these three
blocks     errors in reading the blocks of weights
mutant     Mutant: a backend with an error, the same backend without it, and the tests that must fail
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.core.mutants import blocks, devices, lives, memory, numbers, ops, sizes
from tests.core.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: Mapping[str, Mutant] = {
    **ops.mutants(), **sizes.mutants(), **numbers.mutants(), **blocks.mutants(), **lives.mutants(),
    **memory.mutants(), **devices.mutants(),
}  # fmt: skip
"""All of them, by what is wrong: "softmax: …"."""
