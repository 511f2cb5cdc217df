"""The build backend: scikit-build-core's, which also requires NVIDIA's wheels if no CUDA toolkit is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    path = Path(__file__).parent / "cmake" / "toolkit.py"
    spec = importlib.util.spec_from_file_location("toolkit", path)
    assert spec is not None
    assert spec.loader is not None
    toolkit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(toolkit)
    return [*_build.get_requires_for_build_wheel(config_settings), *toolkit.requirements()]
