"""HTML for notebooks: the tables and bars that ``_repr_html_`` methods return. No script, no style sheet, no address.

All texts are escaped: names of devices, files and weights come from files and drivers that others wrote. Colours are
readable on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from hotshoe_core.errors.text import format_bytes, printable

if TYPE_CHECKING:
    from hotshoe_core.contract.device import Device

__all__ = ["Html", "bar", "device_table", "memory_table", "table", "text"]

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0"
_WIDTH, _HEIGHT = 260, 12  # pixels


class Html(str):
    """Text that is HTML already, so that ``table`` does not escape it."""

    __slots__ = ()


def text(value: object) -> Html:
    """``value`` as escaped HTML. Control characters are written out, line ends become ``<br>``."""
    return Html("<br>".join(escape(printable(line)) for line in str(value).split("\n")))


def table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: object = "") -> Html:
    """A table with one line for each row. A cell of type Html is inserted without escaping; any other is escaped."""

    def line(cells: Sequence[object], tag: str) -> str:
        shown = (cell if isinstance(cell, Html) else text(cell) for cell in cells)
        return "<tr>" + "".join(f'<{tag} style="{_CELL}">{cell}</{tag}>' for cell in shown) + "</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if any(header) else ""
    title = f'<div style="padding-bottom:4px">{caption if isinstance(caption, Html) else text(caption)}</div>'
    body = "".join(line(row, "td") for row in rows)
    return Html(f"<div>{title if caption else ''}<table>{head}<tbody>{body}</tbody></table></div>")


def bar(amounts: Sequence[tuple[str, int]], available: int = 0) -> Html:
    """A horizontal bar of named amounts in bytes. With ``available`` the full width is that many bytes or, where the
    amounts need more, their sum, and a line marks where the available bytes end. The amounts stand in its tooltip.
    """
    needed = sum(size for _, size in amounts)
    whole = max(needed, available, 1)
    x, shapes = 0.0, []
    for (_, size), colour in zip(amounts, _COLOURS):
        width = _WIDTH * size / whole
        shapes.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="{_HEIGHT}" fill="{colour}"/>')
        x += width
    caption = ", ".join(f"{name} {format_bytes(size)}" for name, size in amounts)
    if available:
        caption += f"; available {format_bytes(available)}"
    if 0 < available < needed:
        x = _WIDTH * available / whole
        shapes.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}" stroke="#d62728" stroke-width="3"/>')
    return Html(
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><title>{text(caption)}</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#888" fill-opacity="0.25"/>{"".join(shapes)}</svg>'
    )


def memory_table(rows: Iterable[tuple[str, int, int, int, int]], caption: object = "", *, free: bool = False) -> Html:
    """Weights, cache and graph of each device, in bytes: rows of (device, weights, cache, graph, free).

    free: show the last column, the bytes that the device has left; 0 where they are not known.
    """
    kinds = ("weights", "cache", "graph")
    lines: list[list[object]] = []
    for device, *sizes, left in rows:
        shown = [format_bytes(size) for size in (*sizes, sum(sizes))]
        shown += [format_bytes(left) if left else "unknown"] if free else []
        lines.append([device, *shown, bar(list(zip(kinds, sizes)), left if free else 0)])
    names = [Html(f'<span style="color:{colour}">&#9632;</span> {kind}') for kind, colour in zip(kinds, _COLOURS)]
    return table(["device", *names, "total", *(["free"] if free else []), ""], lines, caption)


def device_table(devices: Iterable[Device], caption: object = "") -> Html:
    """Name, type, provider, memory and description of each device."""
    rows = []
    for d in devices:
        total, free = (format_bytes(n) if n else "unknown" for n in (d.memory_total, d.memory_free))
        memory = f"{free} of {total}" if d.memory_total or d.memory_free else "unknown"
        rows.append((d.name, d.type.value, d.provider, memory, d.description))
    return table(["device", "type", "provider", "free memory", "description"], rows, caption)
