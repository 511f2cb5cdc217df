"""Pictures of shapes: what examples/look.py draws, and what its model was trained on (tools/train_shapes.py)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from PIL import Image, ImageDraw

__all__ = ["ANSWERS", "COLORS", "SHAPES", "SIDE", "Scene", "Shape", "draw", "random_scene"]

SIDE = 112  # pixels
SHAPES = ("circle", "square", "triangle")
COLORS = {
    "red": (210, 40, 40),
    "green": (40, 150, 60),
    "blue": (40, 70, 200),
    "yellow": (235, 195, 30),
}
_NUMBERS = ("No", "One", "Two")


class Shape(NamedTuple):
    """A shape, its color, its centre and half of its size, in pixels."""

    kind: str
    color: str
    x: int
    y: int
    radius: int

    def __str__(self) -> str:
        return f"a {self.color} {self.kind}"


class Scene(NamedTuple):
    """One or two shapes, from left to right, on a plain background."""

    shapes: tuple[Shape, ...]
    background: tuple[int, int, int] = (245, 245, 245)


def random_scene(draws: random.Random) -> Scene:
    """A scene of which no two shapes have the same kind, so that each can be asked for."""
    n = draws.randint(1, 2)
    places = sorted(draws.sample(range(2), n))
    kinds, colors = draws.sample(SHAPES, n), [draws.choice(list(COLORS)) for _ in range(n)]
    shapes = tuple(
        Shape(kind, color, 30 + 52 * place + draws.randint(-4, 4), draws.randint(28, SIDE - 28), draws.randint(17, 22))
        for kind, color, place in zip(kinds, colors, places, strict=True)
    )
    grey = draws.randint(215, 255)
    return Scene(shapes, (grey, grey, draws.randint(215, 255)))


def draw(scene: Scene) -> Image.Image:
    """Draw a scene, SIDE pixels wide and high."""
    large = Image.new("RGB", (4 * SIDE, 4 * SIDE), scene.background)  # made smaller afterwards, for smooth edges
    canvas = ImageDraw.Draw(large)
    for shape in scene.shapes:
        x, y, r, fill = 4 * shape.x, 4 * shape.y, 4 * shape.radius, COLORS[shape.color]
        if shape.kind == "circle":
            canvas.ellipse((x - r, y - r, x + r, y + r), fill)
        elif shape.kind == "square":
            canvas.rectangle((x - r, y - r, x + r, y + r), fill)
        else:
            canvas.polygon(((x, y - r), (x - r, y + r), (x + r, y + r)), fill)
    return large.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _all(scene: Scene) -> str:
    """The shapes from left to right: "A red circle and a blue square."."""
    text = " and ".join(map(str, scene.shapes))
    return f"{text[0].upper()}{text[1:]}."


def _color_of(kind: str) -> Callable[[Scene], str]:
    def answer(scene: Scene) -> str:
        found = next((shape.color.capitalize() for shape in scene.shapes if shape.kind == kind), None)
        return f"{found}." if found else f"There is no {kind}."

    return answer


ANSWERS: dict[str, Callable[[Scene], str]] = {
    "What do you see, from left to right?": _all,
    "How many shapes are there?": lambda scene: f"{_NUMBERS[len(scene.shapes)]}.",
    **{f"What color is the {kind}?": _color_of(kind) for kind in SHAPES},
}
"""The questions that the model knows, and their true answers."""
