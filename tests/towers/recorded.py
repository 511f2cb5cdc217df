"""What llama.cpp's converter writes for each row's encoder. ``python -m tools.record_towers`` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DATA", "TowerRecord", "read_record", "write_record"]

DATA = Path(__file__).parents[1] / "data" / "towers"


class TowerRecord(NamedTuple):
    """What is recorded of a row."""

    keys: dict[str, Any]
    """``clip.*`` of llama.cpp's file, in f32"""
    f32: dict[str, str]
    """type, shape and digest of each tensor of llama.cpp's file"""
    f16: dict[str, str]


def read_record(name: str) -> TowerRecord:
    path = DATA / f"{name}.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: run `python -m tools.record_towers LLAMA_CPP {name}`")
    return TowerRecord(**json.loads(path.read_text()))


def write_record(name: str, record: TowerRecord) -> None:
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(record._asdict(), indent=1) + "\n")
