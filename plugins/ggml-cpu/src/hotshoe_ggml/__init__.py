"""hotshoe's ggml plugin. Importing it loads no native code: `_native` does, when first asked."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
