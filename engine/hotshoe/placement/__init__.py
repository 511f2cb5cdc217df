"""Which device holds which part of a model: what was asked for, what fits, what was done."""

from __future__ import annotations

from hotshoe.placement.params import PlacementParams
from hotshoe.placement.report import PlacementReport

__all__ = ["PlacementParams", "PlacementReport"]
