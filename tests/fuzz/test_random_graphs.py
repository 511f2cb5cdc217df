"""A fixed share of the random search over graphs; `make fuzz MINUTES=10` goes on for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotshoe_core.backend import Backend
from hotshoe_core.reference import open_reference
from hotshoe_loader import load_all
from tests.fuzz.search import check

N_GRAPHS = 40


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    registry = load_all()
    if "cpu" not in {d.name for d in registry.devices}:
        pytest.skip("needs hotshoe-ggml-cpu")
    with registry.open("cpu") as opened:
        yield opened


@pytest.mark.parametrize("seed", range(N_GRAPHS))
def test_a_random_graph(backend: Backend, seed: int) -> None:
    with open_reference() as reference:
        check(backend, reference, seed, 20)
