"""Draw a picture of shapes, and ask a tiny model what it shows.

    python examples/look.py                  a picture of ours
    python examples/look.py --seed 7         another one
    python examples/look.py --save a.png     also write the picture, to look at it yourself
    python examples/look.py --device reference

The model has 0.9 million parameters and knows five questions; tools/train_shapes.py made it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from shapes import ANSWERS, draw, random_scene

import hotshoe

MODEL = Path(__file__).resolve().parent / "models" / "shapes-q8_0.gguf"  # its encoder is the mmproj file next to it


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw shapes, and ask a model what they are.")
    parser.add_argument("--seed", type=int, default=5, help="draws another picture; default: 5")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the picture")
    parser.add_argument("--device", help="a name or type that `hotshoe devices` lists")
    args = parser.parse_args()
    scene = random_scene(random.Random(args.seed))
    picture = draw(scene)
    if args.save:
        picture.save(args.save)
    try:
        with hotshoe.load_model(MODEL, args.device) as model:
            look(model, picture, scene)
    except hotshoe.HotshoeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def look(model, picture, scene):
    print("drawn: ", *(f"{shape} at ({shape.x}, {shape.y})" for shape in scene.shapes), sep="  ")
    n_right, began = 0, time.perf_counter()
    for question, true_answer in ANSWERS.items():
        content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
        answer = model.chat([{"role": "user", "content": content}], temperature=0, max_tokens=30).text.strip()
        right = answer == true_answer(scene)
        n_right += right
        print(f"\nyou:    {question}\nmodel:  {answer}{'' if right else f'   (wrong: {true_answer(scene)})'}")
    seconds = time.perf_counter() - began
    print(f"\n{n_right} of {len(ANSWERS)} answers are right, {seconds:.2f} s; the picture was computed once")
    print(f"device: {model.why}")


if __name__ == "__main__":
    sys.exit(main())
