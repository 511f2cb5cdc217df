"""The texts of tests/data/texts.json: short ones in full, long ones described by what they repeat."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Text", "load_texts"]

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Text:
    name: str
    text: str
    tokens: int | None  # ids that all-MiniLM-L6-v2's tokenizer makes of it, special ones included; None: not stated


def load_texts(max_tokens: int | None = None) -> list[Text]:
    """All texts, or those that are not known to be longer than ``max_tokens`` (and no longer than as many letters)."""
    texts = []
    for entry in json.loads((DATA / "texts.json").read_text(encoding="utf-8")):
        text = entry.get("text")
        if text is None:
            text = entry["separator"].join([entry["repeat"]] * entry["times"])
        tokens = entry.get("tokens")
        if max_tokens is None or (tokens or len(text)) <= max_tokens:
            texts.append(Text(entry["name"], text, tokens))
    return texts
