"""MetalProvider: the GPU of a Mac."""

from __future__ import annotations

import sys
from pathlib import Path

from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_ggml.provider import GgmlProvider

__all__ = ["LIBRARY_DIR", "MetalProvider"]

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"


class MetalProvider(GgmlProvider):
    """The device ``metal:0``, on macOS."""

    def __init__(self) -> None:
        super().__init__("ggml-metal", "metal", LIBRARY_DIR, "metal")

    def native(self) -> dict[str, object] | None:
        """See GgmlProvider.native. Raises DeviceNotFoundError on other systems than macOS."""
        if sys.platform != "darwin":
            raise DeviceNotFoundError(
                f"wrong platform: Metal is part of macOS, and this is {sys.platform}",
                hint="pip uninstall hotshoe-ggml-metal",
            )
        return super().native()
