"""Device placement: which device holds which layers of a model."""

from __future__ import annotations

from hotshoe.placement.params import PlacementParams
from hotshoe.placement.report import PlacementReport

__all__ = ["PlacementParams", "PlacementReport"]
