"""Mutant: a wrong backend, the right one it was made of, and what of the kit fails for the one and not the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance
from hotshoe_core.testing.run import AnyCase

__all__ = ["Mutant", "Open", "Test", "first_failure"]

Open = Callable[[BackendParams], Backend]
Test = AnyCase | str
"""A case, or the name of one of the kit's tests."""


@dataclass(frozen=True)
class Mutant:
    """``tests``: what there is to find it with; one of them must fail. ``names``: what that one's report must name."""

    wrong: Open
    right: Open
    tests: Sequence[Test]
    names: str
    kit: type[BackendConformance | MultiDeviceConformance] = BackendConformance


def first_failure(mutant: Mutant, open: Open, tests: Sequence[Test]) -> tuple[Test, str] | None:
    """The first of the tests that fails on the backend, and its words."""
    made = {"open": classmethod(lambda cls, params: open(params))}
    kit: Any = type("TestMutant", (mutant.kit,), made)
    kit.setup_class()
    try:
        for test in tests:
            why = _failure(kit(), test)
            if why is not None:
                return test, why
    finally:
        kit.teardown_class()
    return None


def _failure(kit: Any, test: Test) -> str | None:
    """A number that is wrong is an AssertionError. What is not about numbers may fail with any exception."""
    expected: Any = Exception if isinstance(test, str) else AssertionError
    try:
        with np.errstate(all="ignore"):
            if isinstance(test, str):
                getattr(kit, test)()
            else:
                kit.test_answer(test)
    except (expected, pytest.fail.Exception) as error:
        return f"{type(error).__name__}: {error}"
    except pytest.skip.Exception:
        return None
    return None
