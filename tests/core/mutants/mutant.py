"""Mutant: a backend with an error, the same backend without it, and the tests of the kit that find the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.testing import BackendConformance, MultiDeviceConformance
from hotshoe_core.testing.run import AnyCase

__all__ = ["Mutant", "Open", "Test", "first_failure", "subclass"]

Open = Callable[[BackendParams], Backend]
Test = AnyCase | str
"""A case, or the name of a test of the kit."""


@dataclass(frozen=True)
class Mutant:
    """``tests``: one of them must fail. ``names``: the text that its report must contain."""

    wrong: Open
    right: Open
    tests: Sequence[Test]
    names: str
    kit: type[BackendConformance | MultiDeviceConformance] = BackendConformance


def subclass(base: type[Any], methods: Mapping[str, Callable[..., Any]]) -> type[Any]:
    """``base`` with these methods replaced. Each must exist: a new method would change nothing."""
    assert not methods.keys() - set(dir(base))
    return type("Mutant", (base,), dict(methods))


def first_failure(mutant: Mutant, open: Open, tests: Sequence[Test]) -> tuple[Test, str] | None:
    """The first test that fails on the backend, and its message."""
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
    """A wrong number is an AssertionError. Other tests may fail with any exception."""
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
