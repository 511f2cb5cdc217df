"""hotshoe's MLX plugin. It imports mlx only when the loader asks its provider for devices."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
