"""Large pages for packed weights."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core import DType, WeightData
from hotshoe_ggml.cpu import packed, packing, pages
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.native import ffi, kernels
from hotshoe_ggml.native.context import address

LARGE = 2 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are requested on Linux only")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_DELAY", 0.0)


def large_pages(memory: np.ndarray) -> int:
    """The number of bytes in large pages, in the mappings of this memory."""
    return resident(memory, "AnonHugePages:")


def resident(memory: np.ndarray, kind: str = "Rss:") -> int:
    """The number of bytes that are in memory, in the mappings of this memory."""
    start, stop = address(memory), address(memory) + memory.nbytes
    total, found = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            first, last = (int(x, 16) for x in words[0].split("-"))
            found = first < stop and start < last
        elif found and words[0] == kind:
            total += int(words[1]) << 10
    return total


def require_large_pages() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("this system gives large pages to all programs, or to none")
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("this kernel gives no pages before they are written")


def request(of_memory: pages.LargePages, start: int, stop: int) -> None:
    kernels().hotshoe_request_pages(of_memory.native, start, stop)


def requested(of_memory: pages.LargePages) -> set[int]:
    """The pages that are large, by their number from the first whole one on."""
    start, stop = (int(ffi.cast("uintptr_t", at)) for at in (of_memory.native.start, of_memory.native.stop))
    n = -(-(stop - start) // LARGE)
    return {page for page in range(n) if of_memory.native.is_large[page]}


def all_later(memory: np.ndarray, n_hot: int) -> pages.LargePages:
    """The pages of the memory, of which none was requested before it was written."""
    of_memory = pages.LargePages(memory, n_hot)
    memory[:] = np.arange(memory.size, dtype=np.uint8)
    return of_memory


def wait_for(thread: threading.Thread | None) -> None:
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


def test_pages_become_large_and_keep_what_is_in_them() -> None:
    require_large_pages()
    memory = zeros(150 << 20)
    wait_for(all_later(memory, memory.nbytes).get_rest())
    np.testing.assert_array_equal(memory, np.arange(memory.size, dtype=np.uint8))
    assert large_pages(memory) >= 120 << 20  # Linux does not promise all of them


def test_others_read_while_pages_become_large() -> None:
    require_large_pages()
    memory = zeros(100 << 20)
    memory[:] = 7
    thread = all_later(memory, memory.nbytes).get_rest()
    expected = int(np.arange(1 << 20, dtype=np.uint8).sum(dtype=np.int64)) * 100
    assert thread is not None
    sums = {int(memory.sum(dtype=np.int64))}
    while thread.is_alive():
        sums.add(int(memory.sum(dtype=np.int64)))
    assert sums == {expected}


def test_memory_of_others_is_not_freed() -> None:
    """Other threads get new addresses all the time, and keep what they write there."""
    require_large_pages()
    memory = zeros(200 << 20)
    thread = all_later(memory, memory.nbytes).get_rest()
    assert thread is not None
    others = []
    while thread.is_alive():
        others.append(zeros(2 << 20))
        others[-1][:: 1 << 12] = 5
        time.sleep(1e-3)
    assert all((other[:: 1 << 12] == 5).all() for other in others)


def test_pages_that_are_large_already_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    require_large_pages()
    monkeypatch.setattr(pages, "_FAST", 10.0)
    memory = zeros(40 << 20)
    of_memory = pages.LargePages(memory, memory.nbytes)
    request(of_memory, 0, memory.nbytes)
    monkeypatch.setattr(of_memory, "_replace", lambda *_: pytest.fail("a large page was replaced"))
    wait_for(of_memory.get_rest())


def test_where_pages_are_slow_only_those_at_the_start_become_large(monkeypatch: pytest.MonkeyPatch) -> None:
    require_large_pages()
    monkeypatch.setattr(pages, "_FAST", -1.0)
    memory = zeros(120 << 20)
    wait_for(all_later(memory, 40 << 20).get_rest())
    assert large_pages(memory[: 40 << 20]) >= 30 << 20
    assert large_pages(memory[44 << 20 :]) <= 16 << 20


def test_matrices_that_each_token_reads_come_before_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Pages(pages.LargePages):
        def __init__(self, memory: np.ndarray, n_hot: int) -> None:
            super().__init__(memory, n_hot)
            seen.extend((address(memory), n_hot))

    monkeypatch.setattr(packing, "LargePages", Pages)
    shapes = [(4, 32, 64), (16, 64), (2, 32, 64), (48, 64)]
    data = [WeightData("w", shape, DType.Q8_0, np.zeros(DType.Q8_0.nbytes(shape), np.uint8)) for shape in shapes]
    weights = [packed.QuantizedWeight(weight) for weight in data]
    packing.Packing(weights, 2).finish()
    start, n_hot = seen
    places = [int(w._address) - start for w in weights]
    assert places[1] == 0  # the smallest first
    assert places[3] == weights[1].nbytes
    assert min(places[0], places[2]) == n_hot == weights[3].nbytes + weights[1].nbytes


def test_memory_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    require_large_pages()
    monkeypatch.setattr(pages, "_DELAY", 0.2)
    memory = zeros(40 << 20)
    held = weakref.ref(memory)
    thread = pages.LargePages(memory, memory.nbytes).get_rest()
    del memory
    assert held() is None
    wait_for(thread)


def test_without_addresses_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    require_large_pages()
    monkeypatch.setattr(pages._libc()[1], "mmap", lambda *_: pages._FAILED)
    memory = zeros(40 << 20)
    wait_for(all_later(memory, memory.nbytes).get_rest())
    assert large_pages(memory) == 0
    np.testing.assert_array_equal(memory, np.arange(memory.size, dtype=np.uint8))


def test_large_pages_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    require_large_pages()
    monkeypatch.setattr(pages, "_FAST", 10.0)
    memory = zeros(40 << 20)
    fresh = pages.LargePages(memory, 0)
    request(fresh, 0, 1 << 20)
    request(fresh, 1 << 20, memory.nbytes)
    assert large_pages(memory) >= 20 << 20
    assert not memory.any()
    memory[:] = 1


def test_the_thread_that_writes_the_start_of_a_page_requests_it() -> None:
    memory = zeros(41 << 20)[4096:]
    fresh = pages.LargePages(memory, 0)
    fresh.native.fast = 2**62
    edges = [0, 1, 3 << 20, 4 << 20, 17 << 20, memory.nbytes]
    for start, stop in list(itertools.pairwise(edges))[::-1]:
        before = requested(fresh)
        request(fresh, start, stop)
        first, last = (-(-(address(memory) + edge) // LARGE) for edge in (start, stop))
        full = (address(memory) + memory.nbytes) // LARGE  # only the last page is small
        new = {page - -(-address(memory) // LARGE) for page in range(first, min(last, full))}
        assert requested(fresh) - before == new


def test_after_a_slow_page_more_and_more_are_small() -> None:
    fresh = pages.LargePages(memory := zeros(200 << 20), 0)
    fresh.native.fast = -1
    request(fresh, 0, memory.nbytes)
    assert requested(fresh) == {0, 9, 26, 59}


def test_small_memory_is_not_requested() -> None:
    fresh = pages.LargePages(memory := zeros(10 << 20), 0)
    request(fresh, 0, memory.nbytes)
    assert not requested(fresh)


def test_small_memory_gets_no_thread() -> None:
    assert pages.LargePages(zeros(1 << 20), 0).get_rest() is None


def test_without_a_thread_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pages.LargePages(zeros(40 << 20), 0).get_rest() is None
