"""Text that others wrote, made fit to be shown: no control character of it reaches a terminal or a log."""

from __future__ import annotations

__all__ = ["format_bytes", "legible", "printable", "shown"]


def printable(text: str, limit: int | None = None) -> str:
    r"""``text`` with every character that a terminal could act on written out: ``\x1b``, ``\n``, ``\u202e``.

    What ``str.isprintable`` accepts stays as it is, which is all of Unicode's letters and signs. ``limit``: the most
    characters to return; a longer text is cut and ends in "…".
    """
    if not text.isprintable():
        text = "".join(each if each.isprintable() else _escaped(each) for each in text)
    return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


def legible(text: str) -> str:
    """``printable``, line by line: what is meant to have several lines keeps them."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def shown(value: object, limit: int = 80) -> str:
    """``repr(value)``, printable and cut, of a value that others made; where it has no repr, its type."""
    try:
        return printable(repr(value), limit)
    except (Exception, SystemExit):  # its own __repr__; or an int of more digits than Python writes
        return printable(f"of type {type(value).__name__}, and cannot be shown", limit)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def format_bytes(n: int) -> str:
    """``1536`` as ``"1.5 KiB"``."""
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
