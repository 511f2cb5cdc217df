"""What llama.cpp's converter makes of each row: ``python -m tools.record_towers`` writes it to tests/data/towers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Recorded", "read_recorded", "write_recorded"]

_DATA = Path(__file__).parents[1] / "data" / "towers"


class Recorded(NamedTuple):
    """What is recorded of a row."""

    keys: dict[str, Any]
    """``clip.*`` of llama.cpp's file"""
    f32: dict[str, str]
    """type, shape and digest of each tensor of llama.cpp's file"""
    f16: dict[str, str]


def read_recorded(name: str) -> Recorded:
    path = _DATA / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run `python -m tools.record_towers LLAMA_CPP {name}`")
    return Recorded(**json.loads(path.read_text()))


def write_recorded(name: str, record: Recorded) -> None:
    _DATA.mkdir(exist_ok=True)
    (_DATA / f"{name}.json").write_text(json.dumps(record._asdict(), indent=1) + "\n")
