"""GPUs with a Vulkan driver, by ggml. The bindings and ggml's base library are hotshoe-ggml-cpu's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe_core.plugin import hookimpl

if TYPE_CHECKING:
    from hotshoe_ggml.provider import GgmlProvider

__all__ = ["hotshoe_providers"]

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"


@hookimpl
def hotshoe_providers() -> list[GgmlProvider]:
    try:
        from hotshoe_ggml.provider import GgmlProvider
    except ImportError as error:
        raise ImportError("hotshoe-ggml-vulkan needs hotshoe-ggml-cpu; try `pip install hotshoe-ggml-cpu`") from error
    return [GgmlProvider("ggml-vulkan", "vulkan", LIBRARY_DIR, "vulkan")]
