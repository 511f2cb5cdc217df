"""Draw the recorded results as SVG, into docs/plots: the speed of each engine, and the share of the machine's limit.

    python benchmarks/plots.py

Each file of benchmarks/results holds the question (its title), the machine, the date, the command and the rows. A value
is [median, least, largest]. In a plot of speeds each group of bars is relative to its fastest engine.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TARGET = Path(__file__).parents[1] / "docs" / "plots"
WIDTH, LEFT, BAR, ROW = 820, 220, 400, 16
COLORS = {"hotshoe": "#d9480f", "llama.cpp": "#868e96", "ik_llama.cpp": "#adb5bd"}
OTHER = "#adb5bd"
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #212529 }
.title { font-weight: 600; font-size: 15px } .small { font-size: 11px; fill: #868e96 }
@media (prefers-color-scheme: dark) { text { fill: #e9ecef } .small { fill: #adb5bd } }
</style>"""


class Drawing:
    """Lines of an SVG; ``y`` is where the next one goes."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.y = 24
        self.text(8, result["title"], "title")
        self.y += 18
        self.text(8, f"{result['unit']}; {result['machine']}; {result['date']}", "small")
        self.y += 14

    def text(self, x: float, content: str, kind: str = "", anchor: str = "start") -> None:
        self.lines.append(f'<text x="{x}" y="{self.y}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>')

    def bar(self, name: str, share: float, label: str, color: str, label_at: float | None = None) -> None:
        """A bar of ``share`` of the full width, with a name before it and a label after it, or at ``label_at``."""
        self.y += ROW
        self.text(LEFT - 8, name, "", "end")
        width = round(BAR * share, 1)
        self.lines.append(f'<rect x="{LEFT}" y="{self.y - 10}" width="{width}" height="12" rx="2" fill="{color}"/>')
        self.text(LEFT + (width if label_at is None else BAR * label_at) + 6, label, "small")

    def rule(self, share: float) -> None:
        """A vertical line over the whole plot, at ``share`` of the full width."""
        x = LEFT + round(BAR * share, 1)
        ends = f'x1="{x}" y1="50" x2="{x}" y2="{self.y + 6}"'
        self.lines.append(f'<line {ends} stroke="#868e96" stroke-dasharray="3 3"/>')

    def svg(self) -> str:
        height = self.y + 16
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">'
        return "\n".join([head, STYLE, *self.lines, "</svg>", ""])


def draw(result: dict[str, Any]) -> str:
    """The SVG of one result: shares, one bar for each engine, or groups of engines."""
    drawing, rows = Drawing(result), result["rows"]
    if result["unit"] == "share":
        for row in rows:
            median = row["share"][0]
            drawing.bar(row["name"], median / 1.1, f"{median:.2f} of {row['limit']}", COLORS["hotshoe"], 1)
        drawing.rule(1 / 1.1)
    elif "speed" in rows[0]:
        most = max(row["speed"][0] for row in rows)
        for row in rows:
            color = COLORS["hotshoe"] if row["name"].startswith("hotshoe") else OTHER
            label = f"{row['speed'][0]:.0f}, least cosine {row['cosine']:.4f}"
            drawing.bar(row["name"], row["speed"][0] / most, label, color)
    else:
        for row in rows:
            drawing.y += 8
            speeds = {engine: row[engine][0] for engine in COLORS if row[engine]}
            name = row["name"]
            for engine, speed in speeds.items():
                drawing.bar(name, speed / max(speeds.values()), f"{speed:g} {engine}", COLORS[engine])
                name = ""  # only the group's first bar has it
    return drawing.svg()


def results() -> dict[str, dict[str, Any]]:
    """Every recorded result, by the name of its file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for name, result in results().items():
        (TARGET / f"{name}.svg").write_text(draw(result), encoding="utf-8")


if __name__ == "__main__":
    main()
