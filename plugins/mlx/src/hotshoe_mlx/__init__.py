"""hotshoe's MLX plugin. Importing it does not import mlx: a provider does, when it is asked for its devices."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
