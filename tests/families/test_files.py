"""Our converter against llama.cpp's, on the same folders: every tensor bit by bit, and every key of the family."""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
import pytest

from tests.families.made import Made
from tests.families.recorded import digests, family_keys, read_record


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_tensors_are_those_of_llama_cpp(made: Made, kind: str) -> None:
    recorded: dict[str, str] = getattr(read_record(made.name), kind)
    cut = {name: int(recorded[name].split()[1].split("x")[0]) for name in made.row.cut}
    ours = digests(made.file(kind), cut)
    left_out = {name for name in ours if any(fnmatch.fnmatchcase(name, p) for p in made.row.left_out)}
    assert bool(left_out) == bool(made.row.left_out)
    assert {name: value for name, value in ours.items() if name not in left_out} == recorded


def test_keys_are_those_of_llama_cpp(made: Made) -> None:
    recorded, ours = read_record(made.name).keys, family_keys(made.file())
    differing: dict[str, Any] = {
        name: ours.get(name) for name in ours.keys() | recorded.keys() if not _same(ours.get(name), recorded.get(name))
    }
    assert differing == made.row.keys


def _same(a: Any, b: Any) -> bool:
    """Floats in a file are F32; JSON has them in decimal."""
    if isinstance(a, float) and isinstance(b, float):
        return np.float32(a) == np.float32(b)
    return type(a) is type(b) and bool(a == b)
