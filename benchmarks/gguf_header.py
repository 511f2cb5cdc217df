"""Compare opening a GGUF file with a large vocabulary: hotshoe's reader and gguf.GGUFReader, interleaved.

    python benchmarks/gguf_header.py [--tokens 151936] [--rounds 3] [--json]

The program makes the file: as many tokens and merges as Qwen2, of the same average lengths (9 and 10 bytes), token
types, scores, and a few tensors. "open" parses the header and decodes no array. "open + decode" also makes Python
lists of all tokens, merges, types and scores, which GGUFReader does not do when it opens a file.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from hotshoe_core.gguf import GGUFArray, GGUFFile

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def make_file(path: Path, n_tokens: int) -> None:
    rng = random.Random(0)

    def word(mean: float) -> str:
        letters = "".join(rng.choices(LETTERS, k=max(1, min(60, round(rng.lognormvariate(0, 0.45) * mean)))))
        return f"Ġ{letters}" if rng.random() < 0.5 else letters

    writer = gguf.GGUFWriter(path, "qwen2")
    for key, value in {"block_count": 24, "context_length": 32768, "embedding_length": 896}.items():
        writer.add_uint32(f"qwen2.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([word(7.3) for _ in range(n_tokens)])
    writer.add_token_types([1] * n_tokens)
    writer.add_token_scores([0.0] * n_tokens)
    writer.add_token_merges([f"{word(3.2)} {word(3.2)}" for _ in range(n_tokens)])
    for i in range(24):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(896, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(path: Path) -> None:
    GGUFFile(path).close()


def ours_decoded(path: Path) -> None:
    with GGUFFile(path) as file:
        for value in file.metadata.values():
            if isinstance(value, GGUFArray):
                value.tolist()


def theirs(path: Path) -> None:
    gguf.GGUFReader(path)


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """The milliseconds of each reader in each round. Each round runs all readers, one after the other."""
    contenders: dict[str, Callable[[Path], None]] = {
        "hotshoe open": ours,
        "hotshoe open + decode": ours_decoded,
        "gguf.GGUFReader open": theirs,
    }
    ours(path)  # loads the file into the page cache, and NumPy's first use is not measured
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run(path)
            times[name].append(1000 * (time.perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="time opening a GGUF file with a large vocabulary")
    parser.add_argument("--tokens", type=int, default=151_936, help="how many tokens and merges (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        make_file(path, args.tokens)
        size = path.stat().st_size
        times = measure(path, args.rounds)
    medians = {name: statistics.median(t) for name, t in times.items()}
    base = medians["hotshoe open"]
    if args.json:
        result = {
            "tokens": args.tokens,
            "file_bytes": size,
            "rounds": args.rounds,
            "median_ms": medians,
            "times_ms": times,
        }
        print(json.dumps(result, indent=2))
        return
    print(f"{args.tokens:,} tokens and merges, {size:,} bytes, median of {args.rounds} rounds")
    for name, ms in medians.items():
        print(f"  {name:<22} {ms:9.1f} ms  {ms / base:8.1f}x")


if __name__ == "__main__":
    main()
