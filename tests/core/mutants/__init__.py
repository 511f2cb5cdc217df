"""Mutants: backends with one planted error each, which the conformance kit must find.

ops        errors in the result of an op      patches  building blocks for them
lives      errors in replay, states, memory, closing, and several devices
blocks     errors in reading the blocks of weights
mutant     Mutant: a backend with an error, the same backend without it, and the tests that must fail
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.core.mutants import blocks, lives, ops
from tests.core.mutants.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: Mapping[str, Mutant] = {**ops.mutants(), **blocks.mutants(), **lives.mutants()}
"""All of them, by what is wrong: "softmax: …"."""
