"""Attention over a cache of f16 alone, hotshoe's own and ggml's, in the shape of Qwen2.5-0.5B's 24 layers.

    python benchmarks/attention.py [--threads N] [--rounds 40]

Prints milliseconds for all layers, the least of all rounds, which take turns. Between them 64 MiB are written, so that
keys and values are not in the processor's caches, as after the weights of a step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

import hotshoe
from hotshoe_core import Backend, BackendParams, DType, ops

LAYERS, HEADS, KV_HEADS, DIM = 24, 14, 2, 64


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    registry = hotshoe.load_all()
    own, ggml = (registry.open("cpu", BackendParams(n_threads=args.threads, flash_attention=f)) for f in ("auto", "on"))
    print(f"{'':44}{'hotshoe':>9}{'ggml':>9}")
    for name, mask in cases():
        rounds = [attention(backend, mask) for backend in (own, ggml)]
        junk, best = np.zeros(64 << 20, np.uint8), [np.inf, np.inf]
        for _ in range(args.rounds):
            for i, once in enumerate(rounds):
                junk += 1
                start = time.perf_counter()
                once()
                best[i] = min(best[i], time.perf_counter() - start)
        print(f"{name:44}{best[0] * 1e3:9.2f}{best[1] * 1e3:9.2f}", flush=True)
    return 0


def cases() -> list[tuple[str, np.ndarray]]:
    """Names, and which keys each query sees: (queries, keys)."""
    eight = np.arange(8)[:, None]
    return [
        ("one query, 512 keys", np.ones((1, 512), bool)),
        ("one query, 2048 keys", np.ones((1, 2048), bool)),
        ("8 sequences, 160 keys each", np.arange(1280) // 160 == eight),
        ("8 sequences, 160 keys each, interleaved", np.arange(1280) % 8 == eight),
        ("a prompt of 512", np.tri(512, dtype=bool)),
    ]


def attention(backend: Backend, seen: np.ndarray) -> Callable[[], None]:
    n, m = seen.shape
    context = backend.new_context()
    x = query = context.input("q", (n, HEADS, DIM), DType.F32)
    mask = context.input("mask", (n, m), DType.F16)
    for layer in range(LAYERS):
        k, v = (backend.state((m, KV_HEADS * DIM), DType.F16, f"{name}{layer}", layer) for name in "kv")
        k, v = (t.reshape(m, KV_HEADS, DIM) for t in (k, v))
        x = ops.attention(x, k, v, mask, scale=DIM**-0.5)
    context.forward(x)
    feeds = {
        query: np.random.default_rng(0).standard_normal((n, HEADS, DIM), np.float32),
        mask: np.where(seen, 0, -np.inf).astype(np.float16),
    }
    return lambda: context.compute(feeds)


if __name__ == "__main__":
    sys.exit(main())
