"""Products with quantized weights alone: hotshoe's own, and ggml's with the best layout that it has.

    python benchmarks/products.py [--types q4_0,q4_k] [--rows 1,8,128] [--threads 1] [--features 2048] [--outputs 8192]

Prints GOP/s (a multiplication and an addition are two) by type and number of rows, each the best of all rounds, which
take turns, and their ratio; for one row also GB/s of weights read. Few rows run over several weights, 96 MiB in all,
which no cache holds, as the weights of a model. One thread is measured in its own CPU time, which what else runs
disturbs less. The weights are random bytes: products take the same time whatever they hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

import hotshoe
from hotshoe_core import Backend, BackendParams, DType, ops
from hotshoe_core.backend import WeightData

TYPES = "q4_0,q4_1,q5_0,q5_1,q8_0,iq4_nl,mxfp4,q2_k,q3_k,q4_k,q5_k,q6_k,iq4_xs"
MOST_BYTES = 96 << 20
FEW = 16  # rows from which on arithmetic is the limit, and one weight will do
LEAST_SECONDS = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--rows", default="1,4,8,16,32,128,512")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--outputs", type=int, default=8192)
    args = parser.parse_args()
    registry = hotshoe.load_all()
    own, ggml = (registry.open("cpu", BackendParams(n_threads=args.threads, repack=r)) for r in (True, "engine"))
    print(f"{args.threads} threads, {args.features} features, {args.outputs} outputs; GOP/s")
    print(f"{'':9}{'rows':>5}{'hotshoe':>10}{'ggml':>10}{'ratio':>8}{'GB/s':>8}{'GB/s':>8}")
    for name in args.types.split(","):
        dtype, shape = DType[name.upper()], (args.outputs, args.features)
        data = np.random.default_rng(0).integers(0, 56, dtype.nbytes(shape), np.uint8)  # scales are numbers below 1
        for rows in map(int, args.rows.split(",")):
            n_weights = max(1, MOST_BYTES // data.nbytes) if rows < FEW else 1
            runs = [product(backend, dtype, shape, data, rows, n_weights) for backend in (own, ggml)]
            best = fastest(runs, time.thread_time if args.threads == 1 else time.perf_counter)
            work = 2 * rows * shape[0] * shape[1] * n_weights
            first, second = (work / seconds / 1e9 for seconds in best)
            line = f"{name:9}{rows:5}{first:10.1f}{second:10.1f}{first / second:8.2f}"
            if rows == 1:
                line += "".join(f"{data.nbytes * n_weights / seconds / 1e9:8.1f}" for seconds in best)
            print(line, flush=True)
    return 0


def product(
    backend: Backend, dtype: DType, shape: tuple[int, ...], data: np.ndarray, rows: int, n_weights: int
) -> Callable[[], object]:
    weights = backend.load([WeightData(f"w{i}", shape, dtype, data, ("linear",)) for i in range(n_weights)])
    context = backend.new_context()
    x = context.input("x", (rows, shape[1]), DType.F32)
    for weight in weights.values():
        context.forward(ops.linear(x, weight))
    feeds = {x: np.random.default_rng(1).standard_normal((rows, shape[1]), np.float32)}

    def run() -> None:
        context.compute(feeds)

    run()
    return run


def fastest(runs: list[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """Seconds of each, the least of rounds in which they take turns."""
    best, spent = [np.inf] * len(runs), 0.0
    while spent < LEAST_SECONDS * len(runs):
        for i, run in enumerate(runs):
            start = clock()
            run()
            seconds = clock() - start
            best[i] = min(best[i], seconds)
            spent += seconds
    return best


if __name__ == "__main__":
    sys.exit(main())
