"""Rows of embedding models and rerankers."""

from __future__ import annotations

from tests.families.row import Row

ROWS: dict[str, Row] = {}
