"""Prefill and decode against llama.cpp (through llama-cpp-python) on the same file, interleaved in one run.

    python benchmarks/generate.py [--dtypes q4_0,q8_0] [--file F.gguf] [--context 512] [--steps 32] [--rounds 5]
                                  [--threads N] [--llama-python PYTHON] [--json]

Without --file, files in the shape of Qwen2.5-0.5B are made (benchmarks/synthetic.py). Each engine lives in a process of
its own, since two ggml libraries in one do not agree; they take turns, so that a slow moment of the machine hits both.
--llama-python names an interpreter that has llama-cpp-python, built natively (CMAKE_ARGS=-DGGML_NATIVE=ON); without it,
only hotshoe is measured. Ratios are taken round by round and their median is printed: above 1.0, hotshoe is faster.
Peak memory is the largest resident size of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORKER = """
import json, resource, sys, time
import numpy as np
path, n_threads, n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start = time.perf_counter()
{open}
tokens = np.random.default_rng(0).integers(0, 150_000, n_ctx).tolist()
loaded = time.perf_counter() - start
print(json.dumps({{"loaded": loaded}}), flush=True)
for line in sys.stdin:
    context, steps = json.loads(line)
    times = []
    start = time.perf_counter()
    {prefill}
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for i in range(steps):
        {step}
    decode = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({{"prefill": context / prefill, "decode": steps / decode, "peak": peak}}), flush=True)
"""
HOTSHOE = {
    "open": "import hotshoe; model = hotshoe.load_model(path, 'cpu', n_threads, n_ctx)",
    "prefill": "model._rewind([]); model._next(tokens[:context])",
    "step": "model._next(tokens[: context + i + 1])",
}
LLAMA_CPP = {
    "open": "from llama_cpp import Llama\n"
    "model = Llama(path, n_ctx=n_ctx, n_threads=n_threads, n_threads_batch=n_threads, verbose=False)",
    "prefill": "model.reset(); model.eval(tokens[:context])",
    "step": "model.eval([tokens[context + i]])",
}


class Engine:
    """A process that loads a file and then measures when told to."""

    def __init__(self, python: str, code: dict[str, str], path: Path, n_threads: int, n_ctx: int) -> None:
        command = [python, "-c", WORKER.format(**code), str(path), str(n_threads), str(n_ctx)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.loaded = self._read()["loaded"]

    def measure(self, context: int, steps: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([context, steps]) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of an engine ended with code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="q4_0,q8_0,q4_k_m,f16")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-python", metavar="PYTHON")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        report = {}
        for dtype in [str(args.file)] if args.file else args.dtypes.split(","):
            path = args.file or make(Path(scratch) / f"{dtype}.gguf", dtype)
            report[dtype] = compare(path, args)
            if not args.file:
                path.unlink()
            if not args.json:
                show(dtype, report[dtype])
    if args.json:
        print(json.dumps(report, indent=2))
    return 0


def make(path: Path, dtype: str) -> Path:
    subprocess.run(
        [sys.executable, Path(__file__).with_name("synthetic.py"), path, "--dtype", dtype],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return path


def compare(path: Path, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    n_ctx = args.context + args.steps + 8
    engines = {"hotshoe": Engine(sys.executable, HOTSHOE, path, args.threads, n_ctx)}
    if args.llama_python:
        engines["llama.cpp"] = Engine(args.llama_python, LLAMA_CPP, path, args.threads, n_ctx)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for turn in range(args.rounds + 1):
        for name, engine in engines.items():
            row = engine.measure(args.context, args.steps)
            if turn:  # the first warms up
                rows[name].append(row)
    out = {}
    for name, engine in engines.items():
        out[name] = {k: statistics.median(r[k] for r in rows[name]) for k in ("prefill", "decode", "peak")}
        out[name]["load"] = engine.loaded
        engine.close()
    if "llama.cpp" in rows:
        pairs = list(zip(rows["hotshoe"], rows["llama.cpp"], strict=True))
        out["ratio"] = {k: statistics.median(a[k] / b[k] for a, b in pairs) for k in ("prefill", "decode", "peak")}
        out["ratio"]["load"] = out["llama.cpp"]["load"] / out["hotshoe"]["load"]
    return out


def show(dtype: str, table: dict[str, dict[str, float]]) -> None:
    print(f"{dtype:8} {'prefill/s':>10} {'decode/s':>9} {'load s':>7} {'peak MiB':>9}")
    for name, row in table.items():
        if name == "ratio":
            print(f"  {name:10} {row['prefill']:6.2f} {row['decode']:9.2f} {row['load']:7.2f} {row['peak']:9.2f}")
        else:
            peak = row["peak"] / 2**20
            print(f"  {name:10} {row['prefill']:6.1f} {row['decode']:9.1f} {row['load']:7.2f} {peak:9.0f}")


if __name__ == "__main__":
    sys.exit(main())
