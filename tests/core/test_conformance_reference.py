"""The reference backend against the kit: lifecycle, and the decompositions against themselves. Numbers: test_ops.py."""

from __future__ import annotations

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.testing import BackendConformance


class TestReference(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return open_reference(params)
