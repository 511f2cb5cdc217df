"""The kit on the reference backend: lifecycle and decompositions. test_ops.py checks its numbers."""

from __future__ import annotations

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.testing import BackendConformance


class TestReference(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return open_reference(params)
