"""All rows, by name."""

from __future__ import annotations

from tests.families import dense, encoders, gemmas, hybrids, mixtures, state_spaces
from tests.families.row import Row

__all__ = ["ENCODERS", "ROWS", "TEXT"]

TEXT: dict[str, Row] = dense.ROWS | gemmas.ROWS | mixtures.ROWS | hybrids.ROWS | state_spaces.ROWS
ENCODERS: dict[str, Row] = encoders.ROWS
ROWS: dict[str, Row] = TEXT | ENCODERS
