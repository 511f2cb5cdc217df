"""The Vulkan device that tests run on, which may be a software device."""

from __future__ import annotations

import os

import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_loader import load_all

__all__ = ["OnVulkan", "require_vulkan"]


def require_vulkan() -> str:
    """``vulkan:0``; skips the test with the reason if it is missing."""
    pytest.importorskip("hotshoe_ggml_vulkan", reason="needs hotshoe-ggml-vulkan: make test VULKAN=1")
    os.environ.setdefault("HOTSHOE_PROBE_TIMEOUT", "300")  # a software device compiles shaders for many seconds
    registry = load_all()
    if "vulkan:0" not in {device.name for device in registry.devices}:
        verdict = next(v for v in registry.verdicts if v.candidate == "ggml-vulkan")
        pytest.skip(f"ggml-vulkan: {verdict.outcome.value}: {verdict.reason} (hint: {verdict.hint})")
    return "vulkan:0"


class OnVulkan:
    """``open`` for a class of the conformance kit. devices: those that it opens, Vulkan's among them."""

    devices: tuple[str, ...] = ("vulkan:0",)

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        require_vulkan()
        return load_all().open(list(cls.devices), params)
