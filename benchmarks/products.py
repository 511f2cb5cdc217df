"""Compare hotshoe's matrix products with ggml's, each with its best layout of the weights.

    python benchmarks/products.py [--types q4_0,q4_k] [--rows 1,8,128] [--threads 1] [--features 2048] [--outputs 8192]
                                  [--experts 64,8]

Prints GOP/s by type and number of rows (a multiplication and an addition are two operations) and the ratio; for one
row also GB/s of weights read, and at the end what hotshoe found about prefetching. The two take turns; the best of all
rounds counts. Few rows run over several weights, 96 MiB in all: like a model's weights, they fit into no cache. One
thread is measured in its own CPU time, which other programs disturb less. The weights are random bytes, since the time
does not depend on the values. With --experts N,USED each row goes through USED of N weights, as in a mixture of
experts; on average all are used equally.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

import hotshoe
from hotshoe_core import Backend, BackendParams, DType, ops
from hotshoe_core.contract.backend import WeightData

TYPES = "bf16,q4_0,q4_1,q5_0,q5_1,q8_0,iq4_nl,mxfp4,q2_k,q3_k,q4_k,q5_k,q6_k,iq4_xs"
MAX_BYTES = 96 << 20
FEW = 16  # from this number of rows on, arithmetic is the limit, and one weight is enough
MIN_SECONDS = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--rows", default="1,4,8,16,32,128,512")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--outputs", type=int, default=8192)
    parser.add_argument("--experts", type=lambda text: tuple(map(int, text.split(","))), metavar="N,USED")
    args = parser.parse_args()
    n_experts, n_used = args.experts or (0, 1)
    registry = hotshoe.load_all()
    own, ggml = (registry.open("cpu", BackendParams(n_threads=args.threads, repack=r)) for r in (True, "engine"))
    print(f"{args.threads} threads, {args.features} features, {args.outputs} outputs; GOP/s")
    if n_experts:
        print(f"for each of {n_experts} experts; {n_used} of them for each row")
    print(f"{'':9}{'rows':>5}{'hotshoe':>10}{'ggml':>10}{'ratio':>8}{'GB/s':>8}{'GB/s':>8}")
    for name in args.types.split(","):
        dtype = DType[name.upper()]
        shape: tuple[int, ...] = (args.outputs, args.features)
        if n_experts:
            shape = (n_experts, *shape)
        data = np.random.default_rng(0).integers(0, 56, dtype.nbytes(shape), np.uint8)  # so that scales are below 1
        data.setflags(write=False)  # like the pages of a mapped file
        for rows in map(int, args.rows.split(",")):
            n_weights = max(1, MAX_BYTES // data.nbytes) if rows < FEW else 1
            runs = [product(backend, dtype, shape, data, rows, n_weights, n_used) for backend in (own, ggml)]
            best = fastest(runs, time.thread_time if args.threads == 1 else time.perf_counter)
            work = 2 * rows * n_used * args.outputs * args.features * n_weights
            first, second = (work / seconds / 1e9 for seconds in best)
            line = f"{name:9}{rows:5}{first:10.1f}{second:10.1f}{first / second:8.2f}"
            if rows == 1:
                read = data.nbytes * n_weights / (n_experts or 1) * n_used
                line += "".join(f"{read / seconds / 1e9:8.1f}" for seconds in best)
            print(line, flush=True)
    for subject, found in own.tuning().items():
        print(f"{subject}: {found}")
    return 0


def product(
    backend: Backend, dtype: DType, shape: tuple[int, ...], data: np.ndarray, rows: int, n_weights: int, n_used: int
) -> Callable[[], object]:
    use = "linear" if len(shape) == 2 else "linear_experts"
    weights = backend.load([WeightData(f"w{i}", shape, dtype, data, (use,)) for i in range(n_weights)])
    context, rng = backend.new_context(), np.random.default_rng(1)
    x = context.input("x", (rows, shape[-1]), DType.F32)
    feeds = {x: rng.standard_normal((rows, shape[-1]), np.float32)}
    for i, weight in enumerate(weights.values()):
        if len(shape) == 2:
            context.forward(ops.linear(x, weight))
            continue
        scores = context.input(f"scores{i}", (rows, shape[0]))  # like a router's: each row has other experts
        feeds[scores] = rng.standard_normal((rows, shape[0]), np.float32)
        context.forward(ops.linear_experts(x[:, None], weight, scores.top_k(n_used)))

    def run() -> None:
        context.compute(feeds)

    run()
    return run


def fastest(runs: list[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """The seconds of each function: the least of all rounds. The functions take turns."""
    best, spent = [np.inf] * len(runs), 0.0
    while spent < MIN_SECONDS * len(runs):
        for i, run in enumerate(runs):
            start = clock()
            run()
            seconds = clock() - start
            best[i] = min(best[i], seconds)
            spent += seconds
    return best


if __name__ == "__main__":
    sys.exit(main())
