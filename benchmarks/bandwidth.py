"""Measure how fast this machine reads memory, which limits decoding: each token reads every weight once.

    python benchmarks/bandwidth.py [--threads N]

Each thread reduces its part of 1 GiB by a bitwise OR in NumPy, which only reads. Prints the best of five rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    n = parser.parse_args().threads
    print(f"{bandwidth(n) / 1e9:.1f} GB/s with {n} threads")
    return 0


def bandwidth(n_threads: int, rounds: int = 5) -> float:
    """Bytes per second that so many threads read together: the best of all rounds."""
    parts = np.array_split(np.ones(1 << 27, np.uint64), n_threads)
    best = 0.0
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    sys.exit(main())
