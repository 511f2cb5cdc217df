"""What llama.cpp's converter makes of each row: ``python -m tools.record_towers`` writes it to tests/data/towers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["N_TOKENS", "Recorded", "Seen", "prompt_around", "read_recorded", "write_recorded"]

Array = np.ndarray[Any, Any]

_DATA = Path(__file__).parents[1] / "data" / "towers"

_MOST = 1 << 16  # bytes of the rows that are kept

N_TOKENS = 8


def prompt_around(place: str) -> str:
    """The prompt that llama.cpp continued. place: what stands for the picture."""
    return f"the quick {place} brown fox"


class Seen(NamedTuple):
    """What llama.cpp's mtmd computes of a prompt with a picture, from our files in f32, without flash attention."""

    ids: list[int]
    """the prompt; -1 for each row of the picture"""
    tokens: list[int]
    """the continuation, greedy"""
    least_margin: float
    """The smallest distance of a second best logit, as a part of the largest one."""
    width: int
    """elements of a row"""
    rows: str
    """what the encoder gives: F32 in base64"""
    step: int = 1
    """1: all rows are kept; 2: every second one; and so on"""

    @classmethod
    def of(cls, rows: Array, ids: list[int], tokens: list[int], least_margin: float) -> Seen:
        step = -(-rows.nbytes // _MOST)
        kept = base64.b64encode(np.float32(rows[::step]).tobytes()).decode()
        return cls(ids, tokens, least_margin, rows.shape[1], kept, step)

    @property
    def array(self) -> Array:
        """The rows that are kept, (n, width)."""
        return np.frombuffer(base64.b64decode(self.rows), "<f4").reshape(-1, self.width)


class Recorded(NamedTuple):
    """What is recorded of a row."""

    keys: dict[str, Any]
    """``clip.*`` of llama.cpp's file"""
    f32: dict[str, str]
    """type, shape and digest of each tensor of llama.cpp's file"""
    f16: dict[str, str]
    seen: Seen | None
    """None if llama.cpp cannot, see the row's ``seen_size``."""


def read_recorded(name: str) -> Recorded:
    path = _DATA / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run `python -m tools.record_towers LLAMA_CPP {name}`")
    record = json.loads(path.read_text())
    seen = record.pop("seen", None)
    return Recorded(**record, seen=Seen(**seen) if seen else None)


def write_recorded(name: str, record: Recorded) -> None:
    _DATA.mkdir(exist_ok=True)
    whole = record._asdict() | {"seen": record.seen and record.seen._asdict()}
    (_DATA / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
