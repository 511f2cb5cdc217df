"""The kit for any device: `hotshoe conform DEVICE` sets ``opener`` and runs this module with pytest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.testing.kit import BackendConformance

opener: Callable[[BackendParams], Backend] | None = None


class TestDevice(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        if opener is None:
            pytest.skip("no device was given: run `hotshoe conform DEVICE`")
        return opener(params)
