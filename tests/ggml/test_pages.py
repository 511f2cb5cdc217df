"""Large pages for packed weights."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml.cpu import pages
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.native.context import address

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are requested on Linux only")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_DELAY", 0.0)
    monkeypatch.setattr(pages, "_PAUSE_AFTER_FAST", 0)
    monkeypatch.setattr(pages, "_PAUSE_AFTER_SLOW", 0)
    monkeypatch.setattr(pages, "_PAUSE_LATER", 0)


def large_pages(memory: np.ndarray) -> int:
    """The number of bytes in large pages, in the mapping of this memory."""
    start, found = address(memory), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, last = (int(x, 16) for x in words[0].split("-"))
            found = first <= start < last
        elif found and words[0] == "AnonHugePages:":
            return int(words[1]) << 10
    raise AssertionError("the memory is nowhere")


def test_pages_become_large_and_keep_what_is_in_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no large pages")
    memory = zeros(40 << 20)
    memory[:] = np.arange(memory.size, dtype=np.uint8)
    thread = pages.enlarge_pages(memory)
    assert thread is not None
    thread.join()
    np.testing.assert_array_equal(memory, np.arange(memory.size, dtype=np.uint8))
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("this kernel makes them slowly")
    assert large_pages(memory) >= 20 << 20  # Linux does not promise all of them


def test_memory_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_DELAY", 0.2)
    memory = zeros(40 << 20)
    held = weakref.ref(memory)
    thread = pages.enlarge_pages(memory)
    assert thread is not None
    del memory
    assert held() is None
    thread.join(10)
    assert not thread.is_alive()


def test_large_pages_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no large pages")
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this kernel gives no pages before they are written")
    monkeypatch.setattr(pages, "_FAST", 10.0)
    memory = zeros(40 << 20)
    fresh = pages.FreshPages(memory)
    fresh.request(0, 1 << 20)
    fresh.request(1 << 20, memory.nbytes)
    assert large_pages(memory) >= 20 << 20
    assert not memory.any()
    memory[:] = 1


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The requested pages, all of which are provided, and whether they are large."""
    requested: list[tuple[int, bool]] = []
    large = []

    def advise(start: int, nbytes: int, advice: int) -> int:
        if advice == mmap.MADV_HUGEPAGE:
            large.append((start, nbytes))
        else:
            requested.append((start, (start, nbytes) in large))
        return 0

    monkeypatch.setattr(pages, "_advise", lambda: advise)
    return requested


LARGE = 2 << 20


def test_the_thread_that_writes_the_start_of_a_page_requests_it(
    requested: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_FAST", 10.0)
    memory = zeros(41 << 20)[4096:]
    fresh = pages.FreshPages(memory)
    edges = [0, 1, 3 << 20, 4 << 20, 17 << 20, memory.nbytes]
    parts = list(itertools.pairwise(edges))
    for part in parts[::-1]:
        fresh.request(*part)
    first, stop = -(-address(memory) // LARGE) * LARGE, address(memory) + memory.nbytes
    # only the last one is small
    assert sorted(requested) == [(page, page + LARGE <= stop) for page in range(first, stop, LARGE)]


def test_after_a_slow_page_more_and_more_are_small(
    requested: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_FAST", -1.0)
    memory = zeros(200 << 20)
    pages.FreshPages(memory).request(0, memory.nbytes)
    large = [(page - requested[0][0]) // LARGE for page, is_large in requested if is_large]
    assert large == [0, 9, 26, 59]
    assert len(requested) >= 99


def test_a_kernel_without_the_call_gets_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[int] = []

    def refuse(start: int, nbytes: int, advice: int) -> int:
        requested.append(start)
        return errno.EINVAL

    monkeypatch.setattr(pages, "_advise", lambda: refuse)
    fresh = pages.FreshPages(memory := zeros(40 << 20))
    fresh.request(0, memory.nbytes)
    fresh.request(0, memory.nbytes)
    assert len(set(requested)) == 1


def test_small_memory_gets_no_thread() -> None:
    assert pages.enlarge_pages(zeros(1 << 20)) is None


def test_small_memory_is_not_requested(requested: list[tuple[int, bool]]) -> None:
    pages.FreshPages(memory := zeros(10 << 20)).request(0, memory.nbytes)
    assert not requested


def test_without_a_thread_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pages.enlarge_pages(zeros(40 << 20)) is None
