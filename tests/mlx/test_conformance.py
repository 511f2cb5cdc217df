"""MLX on the CPU against the kit, opened as a user opens it: through the loader."""

from __future__ import annotations

import pytest

from hotshoe_core.backend import Backend
from hotshoe_core.device import BackendParams
from hotshoe_core.testing import BackendConformance

pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")

from hotshoe_loader import load_all


class TestMlxCpu(BackendConformance):
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open("mlx:cpu", params)
