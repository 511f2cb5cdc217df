"""Our converter against llama.cpp's, on the same folders: every tensor bit by bit, and every key."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hotshoe.convert import convert
from tests.families.recorded import digests, family_keys
from tests.towers.made import MadeTower
from tests.towers.recorded import Recorded, read_recorded
from tests.towers.row import make_tower_folder


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_tensors_are_those_of_llama_cpp(either: MadeTower, kind: str) -> None:
    theirs, ours = getattr(_recorded(either), kind), digests(either.file(kind))
    differing = {name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)}
    assert differing == {name for other, _, name in (d.partition(" ") for d in either.row.differing) if other == kind}


def test_keys_are_those_of_llama_cpp(either: MadeTower) -> None:
    theirs, ours = _recorded(either).keys, family_keys(either.file())
    differing = {name for name in theirs.keys() | ours.keys() if not _same(theirs.get(name), ours.get(name))}
    assert {name: ours.get(name) for name in differing} == either.row.keys


def test_names_of_transformers(either: MadeTower, tmp_path: Path) -> None:
    if not either.row.published:
        pytest.skip("published folders and those that transformers writes have the same names")
    row = dataclasses.replace(either.row, published={})
    path = convert(make_tower_folder(row, tmp_path / "hf"), tmp_path / "mmproj-f32.gguf", "f32", projector=True)
    assert digests(path) == digests(either.file())


def _recorded(either: MadeTower) -> Recorded:
    if either.row.unrecorded:
        pytest.skip(either.row.unrecorded)
    return read_recorded(either.name)


def _same(a: object, b: object) -> bool:
    """Floats in a file are F32; JSON has them in decimal."""
    if isinstance(a, (float, list)) and type(a) is type(b):
        return np.array_equal(np.float32(a), np.float32(b))  # type: ignore[arg-type]
    return type(a) is type(b) and a == b
