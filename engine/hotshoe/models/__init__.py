"""Model implementations, one module an architecture."""

from hotshoe.models.registry import find, register

__all__ = ["find", "register"]
