"""How fast this machine reads memory, which bounds decoding: a token reads every weight once.

    python benchmarks/bandwidth.py [--threads N]

Each thread ORs its part of 1 GiB together with NumPy, which does nothing but read; the best of five rounds is printed.
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
    parts = np.array_split(np.ones(1 << 27, np.uint64), n)
    best = 0.0
    with ThreadPoolExecutor(n) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - start))
    print(f"{best / 1e9:.1f} GB/s with {n} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
