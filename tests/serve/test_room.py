"""Which models are unloaded so that another one fits, with models that are numbers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("starlette", reason="hotshoe[serve] is not installed")

from hotshoe.serve import wire
from hotshoe.serve.durations import seconds_of
from hotshoe.serve.room import Room
from hotshoe_core.errors import OptionError


class Model:
    def __init__(
        self, name: str, needs: dict[str, int], last_used: float, *, n_jobs: int = 0, pinned: bool = False
    ) -> None:
        self.needs, self.last_used, self.loaded = needs, last_used, True
        self.keep_alive: float | None = None
        self.n_jobs = n_jobs
        self.neighbour: Model | None = None  # gets a request while this one is unloaded
        self._facts = name, pinned

    @property
    def name(self) -> str:
        return self._facts[0]

    @property
    def is_pinned(self) -> bool:
        return self._facts[1]

    @property
    def is_loaded(self) -> bool:
        return self.loaded

    async def stop(self) -> None:
        self.loaded = False
        if self.neighbour is not None:
            self.neighbour.n_jobs = 1


NEW = Model("new", {}, 0)
NEW.loaded = False


def victims(models: list[Model], needs: dict[str, int], free: dict[str, int], total: dict[str, int]) -> Any:
    room = Room()
    room.tenants += [*models, NEW]
    found = room.victims(wire.Planned(needs, free, total, 1, True), NEW)
    return None if found is None else [model.name for model in found]


CPU3 = [Model("a", {"cpu": 10}, 1), Model("b", {"cpu": 20}, 2), Model("c", {"cpu": 30}, 3)]


@pytest.mark.parametrize(
    ("needs", "free", "expected"),
    [
        (5, 5, []),
        (15, 5, ["a"]),  # the least recently used is enough
        (30, 5, ["a", "b"]),
        (45, 5, ["a", "c"]),  # b stays: it was used after a, and a and c are enough
        (46, 5, ["b", "c"]),
        (65, 5, ["a", "b", "c"]),
        (66, 5, None),
    ],
)
def test_the_least_recently_used_that_make_room(needs: int, free: int, expected: list[str] | None) -> None:
    assert victims(CPU3, {"cpu": needs}, {"cpu": free}, {}) == expected


def test_only_models_of_the_device_that_lacks_memory_go() -> None:
    models = [Model("a", {"cpu": 50}, 1), Model("b", {"gpu": 10, "cpu": 1}, 2)]
    assert victims(models, {"gpu": 15, "cpu": 3}, {"gpu": 5, "cpu": 3}, {}) == ["b"]


def test_models_that_work_and_pinned_ones_stay() -> None:
    models = [Model("a", {"cpu": 50}, 1, n_jobs=1), Model("b", {"cpu": 50}, 2, pinned=True), Model("c", {"cpu": 50}, 3)]
    assert victims(models, {"cpu": 40}, {"cpu": 0}, {}) == ["c"]
    assert victims(models, {"cpu": 60}, {"cpu": 0}, {}) is None


def test_mapped_weights_count_although_the_system_calls_them_free() -> None:
    assert victims(CPU3, {"cpu": 30}, {"cpu": 90}, {"cpu": 100}) == []
    assert victims(CPU3, {"cpu": 45}, {"cpu": 90}, {"cpu": 100}) == ["a"]


def test_unknown_memory_is_enough() -> None:
    assert victims(CPU3, {"npu": 1000}, {"cpu": 0}, {}) == []


def test_what_stays_and_what_can_go() -> None:
    room = Room()
    busy, idle = Model("a", {"cpu": 5}, 1, n_jobs=1), Model("b", {"cpu": 7}, 1)
    room.tenants += [busy, idle, NEW]
    assert (room.held(NEW), room.extra(NEW), room.is_busy(NEW)) == ({"cpu": 5}, {"cpu": 7}, True)
    room.may_unload = False
    assert (room.held(NEW), room.extra(NEW), room.is_busy(NEW)) == ({"cpu": 12}, {}, False)


def test_a_model_that_got_a_request_meanwhile_is_not_unloaded() -> None:
    async def work() -> None:
        room = Room()
        first, second = Model("a", {}, time.monotonic() - 9), Model("b", {}, time.monotonic() - 9)
        first.keep_alive = second.keep_alive = 5.0
        first.neighbour = second
        room.tenants += [first, second]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(room.unload_unused(), 1.5)
        assert (first.loaded, second.loaded) == (False, True)
        first.loaded, second.n_jobs = True, 0
        assert not await room.unload_all([first, second], "another needs its memory")
        assert (first.loaded, second.loaded) == (False, True)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (5, 5.0),
        (-1, None),
        ("300s", 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("-1", None),
        ("0", 0.0),
        ("1.5h", 5400.0),
        (1e300, None),  # no calendar has a date for it
        ("9" * 400, None),
    ],
)
def test_durations(given: Any, seconds: float | None) -> None:
    assert seconds_of("keep_alive", given) == seconds


@pytest.mark.parametrize("given", ["", "m", "5 minutes", "5d", "--5", "1e3", "5m30", "1" * 10_000 + "x"])
def test_what_is_not_a_duration(given: str) -> None:
    with pytest.raises(OptionError, match="keep_alive is"):
        seconds_of("keep_alive", given)
