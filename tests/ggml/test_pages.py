"""Large pages for packed weights."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml.cpu import pages
from hotshoe_ggml.transfer import address, zeros

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are asked for in Linux's way")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_LATER", 0.0)
    monkeypatch.setattr(pages, "_REST", (0, 0))


def large_pages(memory: np.ndarray) -> int:
    """Bytes of the mapping of this memory that are in large pages."""
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
        pytest.skip("this kernel makes them by and by")
    assert large_pages(memory) >= 20 << 20  # nobody promises all of them


def test_memory_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_LATER", 0.2)
    memory = zeros(40 << 20)
    held = weakref.ref(memory)
    thread = pages.enlarge_pages(memory)
    assert thread is not None
    del memory
    assert held() is None
    thread.join(10)
    assert not thread.is_alive()


def test_few_bytes_are_not_worth_it() -> None:
    assert pages.enlarge_pages(zeros(1 << 20)) is None


def test_where_no_thread_starts_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pages.enlarge_pages(zeros(40 << 20)) is None
