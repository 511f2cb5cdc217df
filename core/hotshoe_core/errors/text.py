"""Make foreign text safe to show: escape control characters before they reach a terminal or a log."""

from __future__ import annotations

__all__ = ["format_bytes", "legible", "printable", "shown"]


def printable(text: str, limit: int | None = None) -> str:
    r"""Escape every character that a terminal could act on: ``\x1b``, ``\n``, ``\u202e``.

    Characters that ``str.isprintable`` accepts do not change; these are all letters and signs of Unicode. ``limit``:
    the most characters to return; a longer text is cut and ends in "…".
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else _escaped(character) for character in text)
    return text if limit is None or len(text) <= limit else f"{text[: limit - 1]}…"


def legible(text: str) -> str:
    """Escape as ``printable`` does, but keep line breaks."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def shown(value: object, limit: int = 80) -> str:
    """``repr(value)``, escaped and cut to ``limit`` characters. If the repr fails, a text that names the type."""
    try:
        return printable(repr(value), limit)
    except (Exception, SystemExit):  # from its __repr__, or an int with more digits than Python prints
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
