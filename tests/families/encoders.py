"""Rows of embedding models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.families.row import Row
from tests.support.tiny_bert import VOCAB, make_tiny_bert

_ALL_HEADS: dict[str, Any] = {"num_key_value_heads": ...}


def wordpiece(folder: Path) -> None:
    """Write BERT's tokenizer, without changing the model that is in the folder."""
    kept = {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}
    make_tiny_bert(folder, sentence=False)
    for name, content in kept.items():
        (folder / name).write_bytes(content)


_WORDPIECE: dict[str, Any] = {"vocab_size": len(VOCAB), "pad_token_id": 0, "bos_token_id": ..., "eos_token_id": ...}

ROWS: dict[str, Row] = {
    "bert": Row(
        "BertModel",
        "bert",
        _ALL_HEADS | _WORDPIECE,
        tokenizer=wordpiece,
        unused=("pooler.*", "*.key.bias"),  # all scores of a query get the same from the bias of keys
        llamacpp_bound=1e-3,  # GELU
    ),
}
