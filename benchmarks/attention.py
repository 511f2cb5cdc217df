"""Compare hotshoe's attention over a cache with ggml's, by default in the shape of Qwen2.5-0.5B's 24 layers.

    python benchmarks/attention.py [--heads 14,2,64] [--layers 24] [--kv-dtypes f16,q8_0] [--only PART] [--sinks]
                                   [--threads N] [--rounds 40]

--heads: heads of queries, heads of keys, elements of a head: 32,8,64 is Llama-3.2-1B (16 layers), 4,1,256 Gemma 3 1B
(26 layers). --only: the cases with this text in their names. Prints milliseconds for all layers. The two take turns;
the least of all rounds counts. Before each run 64 MiB are written, so that keys and values are not in the processor's
caches, as in a real step, which reads all weights in between.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import hotshoe
from hotshoe_core import Backend, BackendParams, DType, Tensor, ops


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=_heads, default="14,2,64")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--kv-dtypes", default="f16")
    parser.add_argument("--only", default="")
    parser.add_argument("--sinks", action="store_true")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    heads, kv_heads, dim = args.heads
    registry = hotshoe.load_all()
    own, ggml = (registry.open("cpu", BackendParams(n_threads=args.threads, flash_attention=f)) for f in ("auto", "on"))
    print(f"{'':50}{'hotshoe':>9}{'ggml':>9}{'ratio':>7}")
    chosen = [(name, seen) for name, seen in cases() if args.only in name]
    for dtype, (name, seen) in itertools.product(map(DType.parse, args.kv_dtypes.split(",")), chosen):
        shape = Shape(args.layers, heads, kv_heads, dim, dtype, args.sinks)
        rounds = [attention(backend, shape, seen) for backend in (own, ggml)]
        junk, best = np.zeros(64 << 20, np.uint8), [np.inf, np.inf]
        for _ in range(args.rounds):
            for i, once in enumerate(rounds):
                junk += 1
                start = time.perf_counter()
                once()
                best[i] = min(best[i], time.perf_counter() - start)
        label = f"{dtype.name.lower()}, {name}"
        print(f"{label:50}{best[0] * 1e3:9.2f}{best[1] * 1e3:9.2f}{best[1] / best[0]:7.2f}", flush=True)
    return 0


def _heads(text: str) -> tuple[int, int, int]:
    try:
        heads, kv_heads, dim = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers, such as 32,8,64") from None
    if min(heads, kv_heads, dim) < 1 or heads % kv_heads:
        raise argparse.ArgumentTypeError(f"{text!r}: {heads} heads of queries cannot share {kv_heads} of keys")
    return heads, kv_heads, dim


class Shape(NamedTuple):
    layers: int
    heads: int
    kv_heads: int
    dim: int
    kv_dtype: DType
    sinks: bool


def cases() -> list[tuple[str, np.ndarray]]:
    """The name of each case, and which keys each query sees: (queries, keys)."""
    eight = np.arange(8)[:, None]
    return [
        ("one query, 512 keys", np.ones((1, 512), bool)),
        ("one query, 2048 keys", np.ones((1, 2048), bool)),
        ("one query, 8192 keys", np.ones((1, 8192), bool)),
        *((f"{n} queries of a text, 2048 keys", np.tri(n, 2048, 2048 - n, dtype=bool)) for n in (2, 4, 8, 16, 32, 64)),
        ("8 sequences, 160 keys each", np.arange(1280) // 160 == eight),
        ("8 sequences, 160 keys each, interleaved", np.arange(1280) % 8 == eight),
        ("a prompt of 512", np.tri(512, dtype=bool)),
    ]


def attention(backend: Backend, shape: Shape, seen: np.ndarray) -> Callable[[], None]:
    n, m = seen.shape
    context = backend.new_context()
    x = query = context.input("q", (n, shape.heads, shape.dim), DType.F32)
    if reads_lists := backend.cache_config().reads_lists:
        given: tuple[np.ndarray, ...] = lists(seen)
    else:
        given = (np.where(seen, 0, -np.inf).astype(np.float16),)
    inputs = [context.input(f"{i}", a.shape, DType.I32 if reads_lists else DType.F16) for i, a in enumerate(given)]
    attend = ops.cached_attention if reads_lists else ops.attention
    sinks = backend.state((shape.heads,), DType.F32, "sinks", 0) if shape.sinks else None
    size = (m, shape.kv_heads * shape.dim)
    states = [backend.state(size, shape.kv_dtype, name, i) for i in range(shape.layers) for name in "kv"]
    write(backend, states)
    for layer in range(shape.layers):
        k, v = (t.reshape(m, shape.kv_heads, shape.dim) for t in states[2 * layer : 2 * layer + 2])
        x = attend(x, k, v, *inputs, sinks, scale=shape.dim**-0.5)
    context.forward(x)
    feeds = {query: np.random.default_rng(0).standard_normal(query.shape, np.float32), **dict(zip(inputs, given))}
    return lambda: context.compute(feeds)


def write(backend: Backend, states: list[Tensor]) -> None:
    """Fill them with numbers: pages that nobody has written are one page of zeros, which stays in the caches."""
    with backend.new_context() as context:
        rows, at = context.input("rows", states[0].shape), context.input("at", (states[0].shape[0],), DType.I32)
        for state in states:
            context.update(state, state.set_rows(at, rows))
        numbers = np.random.default_rng(1).standard_normal(rows.shape, np.float32)
        context.compute({rows: numbers, at: np.arange(len(numbers))})


def lists(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cells and ranges of ``cached_attention``: a query that sees all that the one before sees goes on its list."""
    cells: list[int] = []
    ranges: list[tuple[int, int, int]] = []
    start = 0
    for row in seen:
        mine = np.flatnonzero(row).tolist()
        if mine[: len(cells) - start] != cells[start:]:
            start = len(cells)
        cells[start:] = mine
        ranges.append((start, start, len(cells)))
    return np.array(cells, np.int32), np.array(ranges, np.int32)


if __name__ == "__main__":
    sys.exit(main())
