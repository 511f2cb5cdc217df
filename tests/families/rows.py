"""All rows, by name."""

from __future__ import annotations

from tests.families import dense, encoders, gemmas, hybrids, mixtures, pictures
from tests.families.row import Row

__all__ = ["ENCODERS", "ROWS", "TEXT"]

TEXT: dict[str, Row] = dense.ROWS | gemmas.ROWS | mixtures.ROWS | hybrids.ROWS | pictures.ROWS
ENCODERS: dict[str, Row] = encoders.ROWS
ROWS: dict[str, Row] = TEXT | ENCODERS
