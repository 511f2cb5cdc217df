"""Wheels of packages that are written as anybody would write them, built as pip builds them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["build_wheel"]


def build_wheel(project: Path, folder: Path) -> Path:
    """The wheel of a project whose build backend is hatchling. Skips the test where that is not installed."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling, with which the package is built: pip install hatchling")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "-w", folder]
    subprocess.run([*pip, "wheel", *options, project], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
