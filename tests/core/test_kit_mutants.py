"""The kit finds errors: each backend here has one planted error, and a test of the kit must fail."""

from __future__ import annotations

import pytest

from hotshoe_core.tensors.tensor import TABLE
from hotshoe_core.testing.cases import sizes
from tests.core.mutants import MUTANTS
from tests.core.mutants.mutant import first_failure


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_error_is_found(name: str) -> None:
    """The same test passes on the same backend without the error, and its report names what is wrong."""
    mutant = MUTANTS[name]
    assert mutant.tests, "there is nothing to find it with"
    found = first_failure(mutant, mutant.wrong, mutant.tests)
    assert found is not None, f"the kit does not notice: {name}"
    test, why = found
    assert mutant.names in why
    assert first_failure(mutant, mutant.right, [test]) is None


def test_there_are_as_many_as_the_page_says() -> None:
    assert len(MUTANTS) > 450, "docs/backends.md: more than 450 planted errors"


def test_each_op_has_a_mutant() -> None:
    assert not TABLE.keys() - {name.partition(":")[0] for name in MUTANTS}, "add a row to tests/core/mutants/ops.py"


def test_each_op_has_a_large_case() -> None:
    """Every op, so that a new one is not tested with a handful of elements alone."""
    assert not TABLE.keys() - {case.op for case in sizes.cases()}, "add a case to hotshoe_core/testing/cases/sizes.py"
