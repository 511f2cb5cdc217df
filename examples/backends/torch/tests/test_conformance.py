"""hotshoe's conformance kit, on every device that torch has here, opened as a user opens it: by name."""

from __future__ import annotations

import torch

from hotshoe_core import Backend, BackendParams
from hotshoe_core.testing import BackendConformance
from hotshoe_loader import load_all


class TestCpu(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open("torch:cpu", params)


if torch.cuda.is_available():

    class TestGpu(BackendConformance):
        @classmethod
        def open(cls, params: BackendParams) -> Backend:
            return load_all().open("torch:0", params)
