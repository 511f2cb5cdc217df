"""NVIDIA's GPUs, by ggml's CUDA library. hotshoe_ggml.quirks.nvidia opens what that library needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe_core.contract.plugin import hookimpl

if TYPE_CHECKING:
    from hotshoe_ggml.provider import GgmlProvider

__all__ = ["LIBRARY_DIR", "hotshoe_providers"]

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"


@hookimpl
def hotshoe_providers() -> list[GgmlProvider]:
    from hotshoe_ggml.provider import GgmlProvider

    return [GgmlProvider("ggml-cuda", "cuda", LIBRARY_DIR, "cuda")]
