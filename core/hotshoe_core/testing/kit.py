"""OpConformance compares numbers with the reference backend; BackendConformance also tests the lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hotshoe_core import ops
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
_ELEMENTWISE = frozenset(name for name, op in TABLE.items() if op.__module__ == ops.add.__module__)
_MOVING = {"cast"} | {n for n, op in TABLE.items() if op.__module__ in (ops.take.__module__, ops.tile.__module__)}

_MAX_KEPT = 2**17
_known: dict[str, tuple[AnyCase, list[list[np.ndarray[Any, Any]]]]] = {}


def _reference_results(case: AnyCase) -> list[list[np.ndarray[Any, Any]]]:
    """The results of the reference backend. It keeps small ones for the process: a few megabytes in all."""
    known, results = _known.get(case.id, (None, []))
    if known is not case:
        with open_reference() as reference, np.errstate(all="ignore"):
            results = compute(reference, case)
        if sum(y.nbytes for step in results for y in step) < _MAX_KEPT:
            _known[case.id] = case, results
    return results


class OpConformance:
    """Runs the cases as tests. A subclass defines ``open``."""

    backend: Backend
    params = BackendParams()
    """The options that the backend is opened with."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        """Open a backend. Called once for the class, and by tests that open and close their own backend."""
        raise NotImplementedError(f"{cls.__name__} must define open(cls, params)")

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        """The cases to compute; a subclass may return some of them."""
        return [*OP_CASES, *GRAPH_CASES]

    def tolerance(self, case: AnyCase) -> float:
        """The largest relative error (``run.error``) that is accepted, by the types of the operands.

        0: casts, and ops that move elements, of types without blocks. 1e-4: F32. 2e-3: F16, because products may be
        computed in half precision. 1e-2: BF16. 2e-2: quantized weights, because a backend may quantize the activations
        to 8 bits too. With ``Backend.fast_math``: at least 5e-3, and 3e-2 for quantized weights.
        """
        if case.op in _MOVING and not any(d.is_quantized for d in case.dtypes):
            return 0.0  # rounding to nearest, halves to even (IEEE 754), has one correct result
        fast = self.backend.fast_math
        if any(d.is_quantized for d in case.dtypes):
            return 3e-2 if fast else 2e-2
        if DType.BF16 in case.dtypes:
            return 1e-2
        if fast:
            # a variance may be E[x²] - E[x]², of which few digits are left with a mean of 1000
            return 5e-2 if case.id.startswith("layer_norm F32[4,64]-offset") else 5e-3
        return 1e-4 if case.dtypes <= _EXACT else 2e-3

    def atol(self, case: AnyCase) -> float | None:
        """The absolute error accepted in each element, in addition to the relative one; None: see ``run.error``.

        Each element of an elementwise op over F32 counts, so that small numbers count too.
        1e-30: a device may give 0 for numbers that F32 holds with fewer digits. 2e-6: formulas that subtract. With
        ``Backend.fast_math`` at least 1e-6: such kernels add 1 to exp(x) in softplus, and no digit of a small result
        is left.
        """
        if case.op not in _ELEMENTWISE or not case.dtypes <= _EXACT:
            return None
        least = 1e-6 if self.backend.fast_math else 1e-30
        return 2e-6 if case.op in ("affine", "gelu", "geglu") else least

    def xfail(self, case: AnyCase) -> str | None:
        """The reason why this case is known to fail; None if it must pass."""
        return None

    # Subclasses do not override the rest

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
        references = _reference_results(case)
        try:
            results = compute(self.backend, case, decompose=decompose)
        except UnsupportedOpError as e:
            if case.optional:
                pytest.skip(f"the backend refuses this optional case: {e}")
            raise
        limit = self.tolerance(case)
        for step, (got, expected) in enumerate(zip(results, references)):
            for i, (g, w) in enumerate(zip(got, expected)):
                relative = error(g, w, self.atol(case))
                where = f"{case.id}: step {step}, output {i}"
                assert relative <= limit, f"{where}: error {relative:.2e} > {limit:.0e}{_differences(g, w)}"

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
        pytest.fail(f"passes, but is expected to fail: {reason}")


class BackendConformance(OpConformance, LifecycleConformance):
    """The whole kit. A subclass defines ``open``; see ``hotshoe_core.testing``."""


def _differences(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"\ngot {got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    with np.printoptions(precision=5, threshold=60, edgeitems=3):
        return f"\ngot\n{got}\nexpected\n{expected}"
