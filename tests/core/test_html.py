"""What notebooks show: tables and bars, with every text of others escaped."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from hotshoe_core import BackendMemory, Device, DeviceType, Memory
from hotshoe_core.contract.html import bar, memory_table, table

HOSTILE = "<script>alert(1)</script>\x1b[2J\"'&"


class Page(HTMLParser):
    """The tags, attribute names and texts of a page; ``open`` must be empty in the end."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("br", "rect", "line"):
            self.open.append(tag)
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_texts_are_escaped() -> None:
    page = Page(table([HOSTILE], [[HOSTILE]], HOSTILE) + bar([(HOSTILE, 3)]))
    assert not page.open
    assert "script" not in page.tags
    assert "".join(page.texts).count("<script>alert(1)</script>\\x1b[2J\"'&") == 4


@pytest.mark.parametrize(("available", "lines"), [(0, 0), (1000, 0), (100, 1)])
def test_a_bar_marks_where_the_room_ends(available: int, lines: int) -> None:
    page = Page(bar([("weights", 300), ("cache", 200)], available))
    assert page.tags.count("line") == lines
    assert page.tags.count("rect") == 3
    assert "weights 300 B, cache 200 B" in page.texts[0]


def test_memory_has_a_row_for_each_device() -> None:
    memory = BackendMemory()
    memory.on("cuda:0").weights[0] = Memory(3 << 20)
    memory.on("cpu").cache[0] = Memory(1 << 20)
    page = Page(memory._repr_html_())
    assert page.tags.count("tr") == 3
    assert {"cuda:0", "3.0 MiB", "cpu", "1.0 MiB"} <= set(page.texts)
    assert repr(memory) == "<BackendMemory: cuda:0 3.0 MiB, cpu 1.0 MiB>"
    memory.fail("cpu", "cache", 1 << 20, 0)
    assert repr(memory) == "<BackendMemory: cuda:0 3.0 MiB, cpu 2.0 MiB FAILED>"
    assert repr(BackendMemory()) == "<BackendMemory: nothing allocated>"


def test_free_memory_that_is_not_known_is_called_unknown() -> None:
    assert "unknown" in memory_table([("npu:0", 1, 2, 3, 0)], free=True)
    assert "unknown" not in memory_table([("npu:0", 1, 2, 3, 0)])


def test_a_device_is_short() -> None:
    device = Device("npu:0", DeviceType.ACCEL, "acme", "acme", "Acme <N> 1", 2 << 30, 1 << 30)
    assert repr(device) == "<Device npu:0: Acme <N> 1 (acme)>"
    assert {"npu:0", "accel", "1.0 GiB of 2.0 GiB", "Acme <N> 1"} <= set(Page(device._repr_html_()).texts)


def test_html_is_imported_when_it_is_shown() -> None:
    code = "import sys, hotshoe_core.contract.device, hotshoe_core.contract.memory; print('html' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
