"""``made``: the files of each row in turn, and what transformers computes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.families.conftest import device, main_device
from tests.towers.made import MadeTower
from tests.towers.rows import ROWS

__all__ = ["device", "made", "main_device", "pytest_generate_tests"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "made" in metafunc.fixturenames:
        metafunc.parametrize("made", list(ROWS), indirect=True, scope="session")


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    name = str(request.param)
    made = MadeTower(name, ROWS[name], tmp_path_factory.mktemp(name))
    yield made
    made.close()
