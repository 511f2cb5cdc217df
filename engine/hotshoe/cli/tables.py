"""Tables on stdout: aligned columns, bold headers on a terminal, plain text in a pipe. A line is never cut."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

__all__ = ["table"]

_WIDTH = 1 << 20  # columns; a script that reads the output needs whole names
_JUSTIFY = {"<": "left", ">": "right"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str, gap: int = 2) -> list[str]:
    """The lines of a table. ``align`` has one character for each column: "<" for left, ">" for right.

    gap: spaces between two columns. Cells must be printable. An empty ``head`` leaves out the line of headers.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=bool(head), header_style="bold")
    for name, side in zip(head or [""] * len(align), align, strict=True):
        grid.add_column(Text(name), justify=_JUSTIFY[side], no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(file=sys.stdout, width=_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(grid, soft_wrap=True)
    return [line.rstrip() for line in capture.get().splitlines()]
