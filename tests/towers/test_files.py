"""Our converters of encoders against llama.cpp's, on the same folders: every tensor bit by bit, and every key."""

from __future__ import annotations

import pytest

from tests.families.recorded import digests, family_keys, same_value
from tests.towers.made import MadeTower
from tests.towers.recorded import TowerRecord, read_record


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_tensors_are_those_of_llama_cpp(made: MadeTower, kind: str) -> None:
    assert digests(made.file(kind)) == getattr(_record(made), kind)


def test_keys_are_those_of_llama_cpp(made: MadeTower) -> None:
    recorded, ours = _record(made).keys, family_keys(made.file())
    names = ours.keys() | recorded.keys()
    differing = {name: ours.get(name) for name in names if not same_value(ours.get(name), recorded.get(name))}
    assert differing == made.row.keys


def _record(made: MadeTower) -> TowerRecord:
    if made.row.unrecorded:
        pytest.skip(made.row.unrecorded)
    return read_record(made.name)
