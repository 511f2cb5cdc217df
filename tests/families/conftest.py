"""``made``: each row in turn. A module that tests some rows only names them in ROWS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hotshoe
from tests.families.made import Made
from tests.families.rows import ROWS
from tests.support.fixtures import data

__all__ = ["data", "device", "made", "main_device", "parametrize_device", "pytest_generate_tests"]

_NEEDS = {"reference": "hotshoe", "cpu": "hotshoe-ggml-cpu", "mlx:cpu": "hotshoe-mlx[cpu]"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize with a scope of the session, so that pytest runs all tests of a row before the next row."""
    if "made" in metafunc.fixturenames:
        rows = getattr(metafunc.module, "ROWS", ROWS)
        metafunc.parametrize("made", list(rows), indirect=True, scope="session")
    parametrize_device(metafunc)


def parametrize_device(metafunc: pytest.Metafunc) -> None:
    """``device``: each device of --device in turn, or all that can compute on any machine."""
    if "device" in metafunc.fixturenames:
        devices = metafunc.config.getoption("--device") or list(_NEEDS)
        metafunc.parametrize("device", devices, indirect=True, scope="session")


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    name = str(request.param)
    made = Made(name, ROWS[name], tmp_path_factory.mktemp(name), request.config.getoption("--bound"))
    yield made
    made.close()


def _device(name: str) -> str:
    if name not in [d.name for d in hotshoe.load_all().devices]:
        if name not in _NEEDS:
            pytest.fail(f"--device {name}: this machine has no such device; `hotshoe devices` lists those that it has")
        pytest.skip(f"no device {name!r}: {_NEEDS[name]} is not installed")
    return name


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return _device(request.param)


@pytest.fixture(scope="session")
def main_device(request: pytest.FixtureRequest) -> str:
    """The device of tests that need only one: the first of --device, or the fastest."""
    if chosen := request.config.getoption("--device"):
        return _device(chosen[0])
    names = [d.name for d in hotshoe.load_all().devices]
    return "cpu" if "cpu" in names else "reference"
