"""``made``, ``heard`` and ``either``: the files of each row in turn, and what transformers computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.families.conftest import device, main_device, parametrize_device
from tests.towers.made import MadeTower
from tests.towers.rows import ROWS
from tests.towers.sounds import SOUNDS, MadeSound

__all__ = ["device", "either", "heard", "made", "main_device", "pytest_generate_tests"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rows: dict[str, Any] = {"made": ROWS, "heard": SOUNDS, "either": ROWS | SOUNDS}
    for name, table in rows.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(table), indirect=True, scope="session")
    parametrize_device(metafunc)


def _make(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Iterator[MadeTower]:
    name, bound = str(request.param), request.config.getoption("--bound")
    folder = folders.mktemp(name)
    made = (
        MadeSound(name, SOUNDS[name], folder, bound) if name in SOUNDS else MadeTower(name, ROWS[name], folder, bound)
    )
    yield made
    made.close()


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    """A row that reads pictures."""
    yield from _make(request, tmp_path_factory)


@pytest.fixture(scope="session")
def heard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    """A row that reads sounds."""
    yield from _make(request, tmp_path_factory)


@pytest.fixture(scope="session")
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    """A row of any kind."""
    yield from _make(request, tmp_path_factory)
