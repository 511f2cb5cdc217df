"""`python -m tests.fuzz MINUTES [SEED]`: random graphs for so long. Each batch in a child: a crash names its seed."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter

BATCH = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first graph")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.batch is not None:
        return run_batch(args.device, args.seed, args.batch, args.nodes)
    outcomes: Counter[str] = Counter()
    end, seed = time.monotonic() + 60 * args.minutes, args.seed
    while time.monotonic() < end:
        command = [sys.executable, "-m", "tests.fuzz", "0", "--seed", str(seed), "--nodes", str(args.nodes)]
        command += ["--device", args.device, "--batch", str(BATCH)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            lines, code = done.stdout.splitlines(), done.returncode
        except subprocess.TimeoutExpired as expired:
            output = expired.stdout or b""
            lines, code = (output if isinstance(output, str) else output.decode()).splitlines(), -signal.SIGALRM
        seen = [line.split(" ", 2) for line in lines]
        for _, outcome, *rest in (each for each in seen if len(each) > 1):
            outcomes[outcome] += 1
            if outcome != "same":
                print(outcome, *rest, flush=True)
        if code < 0:  # the seed that was begun last
            outcomes["crash"] += 1
            last = seen[-1][0] if seen else seed
            print(f"crash: signal {-code} at seed {last}, {args.nodes} nodes", flush=True)
            seed = int(last) + 1
        else:
            seed += BATCH
    print(", ".join(f"{n} {name}" for name, n in outcomes.most_common()), f"(seeds {args.seed} to {seed - 1})")
    return 0 if outcomes.keys() <= {"same"} else 1


def run_batch(device: str, first: int, n: int, nodes: int) -> int:
    from hotshoe_core.reference import open_reference
    from hotshoe_loader import load_all
    from tests.fuzz.search import DifferenceError, check

    with load_all().open(device) as backend, open_reference() as reference:
        for seed in range(first, first + n):
            print(seed, end=" ", flush=True)
            try:
                check(backend, reference, seed, nodes)
                print("same", flush=True)
            except DifferenceError as error:
                print("different", error, flush=True)
            except Exception as error:
                print(type(error).__name__, f"seed {seed}: {' '.join(str(error).split())[:300]}", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
