"""All rows, by name."""

from __future__ import annotations

from tests.families import dense, encoders, gemmas, gpts, hybrids, mixtures, pictures, ported, state_spaces, variants
from tests.families.row import Row

__all__ = ["ENCODERS", "OTHERS", "ROWS", "TEXT"]

_GROUPS = (dense, gemmas, variants, gpts, mixtures, ported, hybrids, state_spaces, pictures)
TEXT: dict[str, Row] = {name: row for group in _GROUPS for name, row in group.ROWS.items()}
ENCODERS: dict[str, Row] = encoders.ROWS
ROWS: dict[str, Row] = TEXT | ENCODERS
OTHERS = {
    "mllama": "tests/towers/test_attended.py",
    "qwen": "tests/engine/test_models_like.py",
    "rwkv7": "tests/engine/test_rwkv7.py",
}
"""The tests of architectures for which transformers has no model, or only one together with an encoder of pictures."""
