"""Quantized files of every row: they compute with the values of their blocks, and stay near the exact model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.made import Made
from tests.support.file_forms import dequantized
from tests.support.rewrite import rewrite

Array = np.ndarray[Any, Any]


def errors(ours: Array, expected: Array) -> Array:
    """The relative error of each token."""
    expected = expected[:, : ours.shape[1]]
    return np.asarray(np.linalg.norm(ours - expected, axis=1) / np.linalg.norm(expected, axis=1))


@pytest.fixture(params=["q8_0", "q5_0"])
def file(made: Made, request: pytest.FixtureRequest) -> Path:
    return made.file(request.param)


def test_the_results_are_those_of_the_values_in_the_blocks(made: Made, file: Path, main_device: str) -> None:
    """The values are those of the gguf package. A fast device rounds the other factor to 8 bits.

    The median over the tokens: a router may choose another expert of two that are nearly as good.
    """
    expected = made.result(rewrite(file, made.scratch / f"{file.stem}-values.gguf", edit=dequantized))
    assert errors(made.result(file), expected).max() <= 3e-5
    assert np.median(errors(made.result(file, main_device), expected)) <= 0.15


@pytest.mark.parametrize(("kind", "bound"), [("q8_0", 0.1), ("q5_0", 0.5)])
def test_the_results_stay_near_those_of_transformers(made: Made, main_device: str, kind: str, bound: float) -> None:
    """Weights of 5 bits move the results of a tiny random model far: states add up errors, routers choose others."""
    found = errors(made.result(made.file(kind), main_device), made.expected(made.ids))
    assert 0 < np.median(found) <= bound
