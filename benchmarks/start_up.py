"""What starting costs: each step in a fresh interpreter, less the interpreter's own start.

    python benchmarks/start_up.py [--rounds 15] [--json]

The budgets are those of the design: `import hotshoe` 25 ms, and load_all 60 ms after NumPy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

STEPS = {
    "import hotshoe": "import hotshoe",
    "import numpy": "import numpy",
    "load_all(), first": "import hotshoe; hotshoe.load_all()",
    "load_all(), after numpy": "import numpy; start(); import hotshoe; hotshoe.load_all()",
    "import hotshoe, load_model": "import hotshoe; hotshoe.load_model",
}
PRELUDE = """
import time
def start():
    global t
    t = time.perf_counter()
start()
{code}
print(1000 * (time.perf_counter() - t))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="time the first steps of a program that uses hotshoe")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in STEPS}
    for _ in range(args.rounds):
        for name, code in STEPS.items():
            command = [sys.executable, "-c", PRELUDE.format(code=code)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            times[name].append(float(done.stdout))
    if args.json:
        print(json.dumps({name: statistics.median(values) for name, values in times.items()}, indent=2))
        return
    print(f"{'ms':28} {'median':>7} {'least':>7}")
    for name, values in times.items():
        print(f"{name:28} {statistics.median(values):7.1f} {min(values):7.1f}")


if __name__ == "__main__":
    main()
