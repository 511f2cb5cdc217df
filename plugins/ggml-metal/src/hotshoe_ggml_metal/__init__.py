"""Apple's GPUs, by ggml's Metal library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe_core.contract.plugin import hookimpl

if TYPE_CHECKING:
    from hotshoe_ggml.provider import GgmlProvider

__all__ = ["hotshoe_providers"]


@hookimpl
def hotshoe_providers() -> list[GgmlProvider]:
    from hotshoe_ggml_metal.provider import MetalProvider

    return [MetalProvider()]
