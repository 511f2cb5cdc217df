"""Write verses with the small model in this repository, on the best device of this machine.

    python examples/write.py                               three beginnings of ours
    python examples/write.py "In the land of" --seed 7     your own
    python examples/write.py --device reference            on another device

The model needs no download. models/README.md describes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import hotshoe

MODEL = Path(__file__).resolve().parent / "models" / "kjv-3m-q8_0.gguf"
BEGINNINGS = ("And God said", "My son, hear", "In those days")


def main() -> int:
    parser = argparse.ArgumentParser(description="Continue a text in the manner of the King James Bible.")
    parser.add_argument("beginning", nargs="*", default=BEGINNINGS)
    parser.add_argument("--device", help="a name or type that `hotshoe devices` lists")
    parser.add_argument("--verses", type=int, default=2, help="how many verses to write for each beginning")
    parser.add_argument("--seed", type=int, default=11, help="another seed gives another text")
    args = parser.parse_args()
    try:
        device = hotshoe.load_all().select(args.device)[0]
        # one thread: a model this small would wait for more threads longer than it computes. NumPy has its own threads
        n_threads = None if device.name == "reference" else 1
        with hotshoe.load_model(MODEL, args.device, task="text", n_threads=n_threads) as model:
            write(model, args.beginning, args.verses, args.seed)
    except hotshoe.HotshoeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def write(model, beginnings, n_verses, seed):
    n_tokens, seconds = 0, 0.0
    for beginning in beginnings:
        print(f"\n{beginning}", end="", flush=True)
        # each line is a verse; the model itself ends a chapter
        stream = model.stream(beginning, temperature=0.7, seed=seed, max_tokens=100 * n_verses)
        for piece in stream:
            if stream.completion.text.count("\n") >= n_verses:
                break
            print(piece, end="", flush=True)
        stream.close()
        print()
        n_tokens += len(stream.completion.tokens) - 1
        seconds += stream.completion.decode_seconds
    print(f"\ndevice: {model.why}")
    print(f"speed:  {n_tokens} tokens in {seconds:.2f} s, {n_tokens / seconds:.0f} tokens/s")


if __name__ == "__main__":
    sys.exit(main())
