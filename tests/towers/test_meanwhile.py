"""An encoder computes while the text model runs steps: texts of other threads go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hotshoe.runner.media_encoder import KeptRows, MediaEncoder
from hotshoe_core.errors import BackendError, ClosedError
from tests.towers.made import MadeTower
from tests.towers.row import picture
from tests.towers.rows import ROWS

SECONDS = 60


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory, main_device: str) -> Iterator[Any]:
    made = MadeTower("qwen2-vl", ROWS["qwen2-vl"], tmp_path_factory.mktemp("meanwhile"))
    yield made.load(main_device)
    made.close()


def test_texts_go_on_while_a_picture_is_computed(model: Any) -> None:
    ends = dict.fromkeys(model.tokenizer.stop_ids, -np.inf)
    stop, tokens, three_more = threading.Event(), [0], threading.Event()
    wanted = [1 << 60]

    def write() -> None:
        while not stop.is_set():
            with model.stream([5, 6, 7], max_tokens=200, temperature=0, logit_bias=ends) as stream:
                while not stop.is_set() and stream.completion.finish_reason is None:
                    stream.advance()
                    tokens[0] += 1
                    if tokens[0] >= wanted[0]:
                        three_more.set()

    compute = model.images._compute

    def waits(prepared: Any) -> Any:
        wanted[0] = tokens[0] + 3
        assert three_more.wait(SECONDS), "the text waits for the picture"
        return compute(prepared)

    model.images._compute = waits
    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert model.images.items("", [picture(91, 113)], add_special=False)
    finally:
        stop.set()
        thread.join()
    assert three_more.is_set()


def test_two_threads_compute_a_picture_once(model: Any) -> None:
    meet = threading.Barrier(2)
    before = model.images.n_computed
    found: list[Any] = []

    def look() -> None:
        meet.wait(SECONDS)
        found.append(model.images.items("", [picture(90, 111)], add_special=False))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.images.n_computed == before + 1
    assert len(found) == 2


def test_closing_waits_for_a_picture_and_refuses_later_ones(model: Any) -> None:
    compute, begun, go_on = model.images._compute, threading.Event(), threading.Event()
    found: list[Any] = []

    def waits(prepared: Any) -> Any:
        begun.set()
        assert go_on.wait(SECONDS)
        return compute(prepared)

    model.images._compute = waits
    looking = threading.Thread(
        target=lambda: found.append(model.images.items("", [picture(64, 85)], add_special=False))
    )
    looking.start()
    assert begun.wait(SECONDS)
    closing = threading.Thread(target=model.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    looking.join()
    closing.join()
    assert found
    with pytest.raises(ClosedError):
        model.images.items("", [picture(65, 86)], add_special=False)


def test_a_library_that_threads_must_not_share_takes_the_turn(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = MadeTower("qwen2-vl", ROWS["qwen2-vl"], tmp_path_factory.mktemp("turn"))
    with made.load("reference") as model:
        assert model.images is not None
        used: Any = model.images._run
        assert used.__func__ is MediaEncoder._run_meanwhile
        assert model.images.backend.independent
        model.images.backend.independent = False
        turns: list[Any] = []
        loaded = model.images._loaded

        def run(work: Any) -> Any:
            turns.append(work)
            return work()

        other = MediaEncoder(loaded, model.tokenizer, run, lambda: None, KeptRows())
        assert other.items("", [picture(60, 70)], add_special=False)
        assert len(turns) == 1


def test_an_error_leaves_the_encoder_usable(model: Any) -> None:
    compute = model.images._compute

    def fails(prepared: Any) -> Any:
        raise BackendError("the device is gone")

    model.images._compute = fails
    with pytest.raises(BackendError, match="gone"):
        model.images.items("", [picture(92, 114)], add_special=False)
    model.images._compute = compute
    assert model.images.items("", [picture(92, 114)], add_special=False)
