"""The conformance kit: is a backend right? For backend authors, ours and others. Needs pytest.

    from hotshoe_core.testing import BackendConformance

    class TestMyBackend(BackendConformance):
        @classmethod
        def open(cls, params):
            return MyProvider().open([DEVICE], params)   # pytest.skip(reason) where there is no device

        def tolerance(self, case):                       # optional: looser where the device is, and only there
            return 2e-3 if case.op == "gelu" else super().tolerance(case)

        def xfail(self, case):                           # optional: what is known to fail, with the reason
            return "the device has no int64" if case.id == "..." else None

``BackendConformance`` is OpConformance (numbers: every op of the table, composites natively and decomposed,
graphs of several ops; all against the reference backend, computed twice in one context with new inputs) and
LifecycleConformance (contexts, closing, threads, memory, refusals). An xfail must have a reason, and a case
that passes in spite of its xfail fails. An op without a case fails the kit: add one to ``cases``.

    cases      OP_CASES: what is computed, as data       operands   Arg, Case and the numbers they take
    graphs     GRAPH_CASES: functions                    run        builds a case on a backend and computes it
    kit        OpConformance, BackendConformance         lifecycle  LifecycleConformance
    multidevice  MultiDeviceConformance, for backends over several devices: ``open`` opens two or more
    fake       a family of several devices over NumPy: what tests of placement run on everywhere
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
