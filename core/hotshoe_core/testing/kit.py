"""OpConformance: numbers against the reference backend. BackendConformance: that, and the lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE
from hotshoe_core.testing.cases import OP_CASES
from hotshoe_core.testing.graphs import GRAPH_CASES
from hotshoe_core.testing.lifecycle import LifecycleConformance
from hotshoe_core.testing.run import AnyCase, compute, error

__all__ = ["BackendConformance", "OpConformance"]

F32 = DType.F32
_EXACT = frozenset({DType.I8, DType.I16, DType.I32, DType.I64, DType.F64, F32})


_known: dict[str, tuple[AnyCase, list[list[np.ndarray[Any, Any]]]]] = {}


def _reference_answers(case: AnyCase) -> list[list[np.ndarray[Any, Any]]]:
    """What the reference says, which is asked once in a process: some megabytes for all cases."""
    asked, answers = _known.get(case.id, (None, []))
    if asked is not case:
        with open_reference() as reference, np.errstate(all="ignore"):
            answers = compute(reference, case)
        _known[case.id] = case, answers
    return answers


class OpConformance:
    """The cases as tests. ``params``: how the backend is opened."""

    backend: Backend
    params = BackendParams()

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        """An opened backend; called for the class, and for tests that open and close one of their own."""
        raise NotImplementedError(f"{cls.__name__} must define open(cls, params)")

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        """What to compute; a subclass may choose some of them."""
        return [*OP_CASES, *GRAPH_CASES]

    def tolerance(self, case: AnyCase) -> float:
        """The largest relative error (``run.error``) that counts as right.

        By the operands' types. 0: casts between types without blocks. 1e-4: F32. 2e-3: F16, whose products may be
        made in half precision.
        1e-2: BF16. 2e-2: quantized weights, whose activations a backend may quantize to 8 bits as well.
        """
        if case.op == "cast" and not any(d.is_quantized for d in case.dtypes):
            return 0.0  # to the nearest, halves to even, as IEEE 754: there is one answer
        if case.dtypes <= _EXACT:
            return 1e-4
        if any(d.is_quantized for d in case.dtypes):
            return 2e-2
        return 1e-2 if DType.BF16 in case.dtypes else 2e-3

    def xfail(self, case: AnyCase) -> str | None:
        """Why this case is known to fail; None if it must pass."""
        return None

    # Not for subclasses

    @classmethod
    def setup_class(cls) -> None:
        cls.backend = cls.open(cls.params)

    @classmethod
    def teardown_class(cls) -> None:
        cls.backend.close()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            cases = self.cases()
            if metafunc.function.__name__ == "test_decomposed":
                cases = [c for c in cases if not c.op or TABLE[c.op].composite]
            metafunc.parametrize("case", cases, ids=[c.id for c in cases])

    def test_every_op_has_a_case(self) -> None:
        missing = TABLE.keys() - {case.op for case in OP_CASES}
        assert not missing, f"add cases for {sorted(missing)} to hotshoe_core/testing/cases"

    def test_answer(self, case: AnyCase) -> None:
        self._expecting(case, lambda: self._check(case, decompose=False))

    def test_decomposed(self, case: AnyCase) -> None:
        self._expecting(case, lambda: self._check(case, decompose=True))

    def _check(self, case: AnyCase, *, decompose: bool) -> None:
        references = _reference_answers(case)
        try:
            answers = compute(self.backend, case, decompose=decompose)
        except UnsupportedOpError as e:
            if case.optional:
                pytest.skip(f"the backend refuses this optional case: {e}")
            raise
        limit = self.tolerance(case)
        for step, (got, expected) in enumerate(zip(answers, references)):
            for i, (g, w) in enumerate(zip(got, expected)):
                far = error(g, w)
                where = f"{case.id}: step {step}, output {i}"
                assert far <= limit, f"{where}: error {far:.2e} > {limit:.0e}{_differences(g, w)}"

    def _expecting(self, case: AnyCase, check: Callable[[], None]) -> None:
        reason = self.xfail(case)
        if reason is None:
            check()
            return
        if not reason:
            pytest.fail(f"xfail for {case.id} gives no reason")
        try:
            check()
        except (Exception, pytest.fail.Exception) as e:
            pytest.xfail(f"{reason} ({type(e).__name__})")
        pytest.fail(f"passes, though it is expected to fail: {reason}")


class BackendConformance(OpConformance, LifecycleConformance):
    """All of it. Define ``open``; see the package's documentation."""


def _differences(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"\ngot {got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    with np.printoptions(precision=5, threshold=60, edgeitems=3):
        return f"\ngot\n{got}\nwant\n{expected}"
