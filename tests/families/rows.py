"""All rows, by name."""

from __future__ import annotations

from tests.families import dense, encoders, gemmas, hybrids, mixtures, variants
from tests.families.row import Row

__all__ = ["ENCODERS", "ROWS", "TEXT"]

TEXT: dict[str, Row] = dense.ROWS | gemmas.ROWS | variants.ROWS | mixtures.ROWS | hybrids.ROWS
ENCODERS: dict[str, Row] = encoders.ROWS
ROWS: dict[str, Row] = TEXT | ENCODERS
