"""The conformance kit: tests that show whether a backend is correct. For all backend authors. Needs pytest.

    from hotshoe_core.testing import BackendConformance

    class TestMyBackend(BackendConformance):
        @classmethod
        def open(cls, params):
            return MyProvider().open([DEVICE], params)   # pytest.skip(reason) if the device is missing

        def tolerance(self, case):                       # optional: larger where the device is less exact
            return 2e-3 if case.op == "gelu" else super().tolerance(case)

        def atol(self, case):                            # optional: for elementwise ops
            return 1e-6 if case.op == "exp" else super().atol(case)

        def xfail(self, case):                           # optional: the reason why a case is known to fail
            return "the device has no int64" if case.id == "..." else None

``BackendConformance`` has two parts. OpConformance compares numbers with the reference backend: every op of the table,
composites natively and decomposed, and graphs of several ops; each is computed twice in one context with new inputs.
LifecycleConformance tests contexts, states, threads, closing and errors, and, as MemoryConformance, memory. An xfail
must give a reason, and a case that passes despite its xfail fails. An op without a case fails the kit: add one to
``cases``.

    cases      OP_CASES: single ops, as data             operands   Arg, Case and the numbers of operands
    graphs     GRAPH_CASES: functions                    run        builds a case on a backend and computes it
    kit        OpConformance, BackendConformance         lifecycle  LifecycleConformance
    product    a small product, for tests of lives       memory     MemoryConformance
    multidevice  MultiDeviceConformance, for backends over several devices: ``open`` opens two or more
    fake       a family of several devices over NumPy, so that tests of placement run on every machine
"""

from hotshoe_core.testing.cases import OP_CASES
from hotshoe_core.testing.graphs import GRAPH_CASES
from hotshoe_core.testing.kit import BackendConformance, OpConformance
from hotshoe_core.testing.lifecycle import LifecycleConformance
from hotshoe_core.testing.multidevice import MultiDeviceConformance
from hotshoe_core.testing.operands import Arg, Case
from hotshoe_core.testing.run import GraphCase, Maker, compute, error

__all__ = [
    "GRAPH_CASES",
    "OP_CASES",
    "Arg",
    "BackendConformance",
    "Case",
    "GraphCase",
    "LifecycleConformance",
    "Maker",
    "MultiDeviceConformance",
    "OpConformance",
    "compute",
    "error",
]
