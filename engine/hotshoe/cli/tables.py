"""Lines on stdout: tables, bars and wrapped text. On a terminal headers are bold; in a pipe all is plain text."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from hotshoe_core.errors.text import printable

__all__ = ["bar", "show", "show_json", "table", "wrap"]

_TEXT_WIDTH = 80
_TABLE_WIDTH = 1 << 20  # columns; a line is never cut: a script that reads the output needs whole names
_JUSTIFY = {"<": "left", ">": "right"}


class _StyledLine(str):
    """A line that may hold codes for bold text, and in which all other text is printable."""

    __slots__ = ()


def show(lines: Iterable[str]) -> None:
    """Print lines. Characters that a terminal cannot show, or would act on, are written as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        safe = line if isinstance(line, _StyledLine) else printable(line)
        sys.stdout.write(safe.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def show_json(report: dict[str, Any]) -> None:
    """Print an object as JSON in ASCII."""
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str, gap: int = 2) -> list[str]:
    """The lines of a table. ``align`` has one character for each column: "<" for left, ">" for right.

    gap: spaces between two columns. An empty ``head`` leaves out the line of headers. Cells are made printable.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=bool(head), header_style="bold")
    for name, side in zip(head or [""] * len(align), align, strict=True):
        grid.add_column(Text(name), justify=_JUSTIFY[side], no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(file=sys.stdout, width=_TABLE_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(grid, soft_wrap=True)
    return [_StyledLine(line.rstrip()) for line in capture.get().splitlines()]


def bar(used: int, total: int, width: int = 20) -> str:
    """How much of ``total`` is used: ``[#####...............]  25 %``. Above 100 % the bar is full."""
    share = used / total
    filled = min(width, round(share * width))
    return f"[{'#' * filled}{'.' * (width - filled)}] {share:>4.0%}"


def wrap(text: str, indent: str = "", then: str | None = None) -> list[str]:
    """Lines of at most 80 columns: the first begins with ``indent``, the others with ``then`` (default: the same).

    Words are never broken: users copy paths and commands from here.
    """
    return textwrap.wrap(
        text,
        _TEXT_WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )
