"""A progress bar on stderr, if stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["bar"]


@contextlib.contextmanager
def bar(label: str) -> Iterator[Callable[[float], None]]:
    """A context manager whose value is a function: call it with the fraction done, 0 to 1."""
    if not sys.stderr.isatty():
        yield lambda fraction: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)
