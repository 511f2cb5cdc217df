"""Text generation against llama.cpp (through llama-cpp-python) on the same file, interleaved in one run.

    python benchmarks/generate.py [--dtypes q4_0,q8_0] [--file F.gguf] [--context 512] [--steps 32] [--sequences 8]
                                  [--rounds 5] [--threads N] [--llama-python PYTHON] [--json]

Without --file, files in the shape of Qwen2.5-0.5B are made (benchmarks/synthetic.py). Each engine lives in a process of
its own, since two ggml libraries in one do not agree; they take turns, so that a slow moment of the machine hits both.
--llama-python names an interpreter that has llama-cpp-python, built natively (CMAKE_ARGS=-DGGML_NATIVE=ON); without it,
only hotshoe is measured. Ratios are taken round by round and their median is printed: above 1.0, hotshoe is better.

prefill    tokens/s of a prompt of --context tokens
decode     tokens/s of --steps tokens after it, one by one
many       tokens/s of all --sequences sequences together, each with a context of a quarter of --context
first      seconds from the import of the package to the first token of a text, in a fresh process
generate   decode by the whole way (sampling with the default filters, text, stop texts), relative to the plain loop
peak       the largest resident size of the process
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
path, n_threads, context, steps, n = sys.argv[1], *map(int, sys.argv[2:])
draw = np.random.default_rng(0).integers
tokens = draw(0, 150_000, context + steps).tolist()
rows = draw(0, 150_000, (n, context + steps)).tolist()
clock = time.perf_counter
{open}
print("{{}}", flush=True)
for line in sys.stdin:
    report = {{}}
    {measure}
    report["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(report), flush=True)
"""

HOTSHOE = {
    "single": {
        "open": """
import hotshoe
params = hotshoe.BackendParams(n_threads=n_threads)
model = hotshoe.load_model(path, "cpu", n_ctx=context + steps + 1, params=params)
""",
        "measure": """
    model.forget()
    with model.sequence() as sequence:
        start = clock(); sequence.append(*tokens[:context]); report["prefill"] = context / (clock() - start)
        start = clock()
        for token in tokens[context:]:
            sequence.append(token)
        raw = clock() - start
    report["decode"] = steps / raw
    done = model.generate(tokens[:context], max_tokens=steps + 1, seed=0, stop=["nowhere in the text"])
    if done.finish_reason == "length":
        report["generate"] = raw / done.decode_seconds
""",
    },
    "many": {
        "open": """
import hotshoe
params, runner = hotshoe.BackendParams(n_threads=n_threads), hotshoe.RunnerParams(n_sequences=n)
model = hotshoe.load_model(path, "cpu", n_ctx=context + steps, params=params, runner=runner)
""",
        "measure": """
    model.forget()
    many = [model.sequence() for _ in rows]
    model.extend((s, row[:context]) for s, row in zip(many, rows))
    start = clock()
    for i in range(context, context + steps):
        model.extend((s, [row[i]]) for s, row in zip(many, rows))
    report["many"] = n * steps / (clock() - start)
    for s in many:
        s.close()
""",
    },
    "first": "import hotshoe\n"
    "model = hotshoe.load_model(path, 'cpu', n_ctx=600, params=hotshoe.BackendParams(n_threads=n_threads))\n"
    "model.generate('The quick brown fox jumps', max_tokens=1, temperature=0)",
}
LLAMA_CPP = {
    "single": {
        "open": """
from llama_cpp import Llama
model = Llama(path, n_ctx=context + steps + 1, n_threads=n_threads, n_threads_batch=n_threads, verbose=False)
""",
        "measure": """
    model.reset()
    start = clock(); model.eval(tokens[:context]); report["prefill"] = context / (clock() - start)
    start = clock()
    for token in tokens[context:]:
        model.eval([token])
    report["decode"] = steps / (clock() - start)
""",
    },
    "many": {
        "open": """
import llama_cpp as l
quiet = l.llama_log_callback(lambda *_: None)
l.llama_log_set(quiet, None)
model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
params = l.llama_context_default_params()
params.n_ctx, params.n_seq_max = n * (context + steps), n
params.n_threads = params.n_threads_batch = n_threads
ctx = l.llama_init_from_model(model, params)
batch = l.llama_batch_init(512, 0, 1)
def decode(entries):  # (token, position, sequence, whether logits are wanted)
    batch.n_tokens = len(entries)
    for i, (token, position, sequence, wanted) in enumerate(entries):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
        batch.seq_id[i][0], batch.logits[i] = sequence, wanted
    assert l.llama_decode(ctx, batch) == 0
    l.llama_get_logits(ctx)[0]
""",
        "measure": """
    l.llama_memory_clear(l.llama_get_memory(ctx), True)
    for s, row in enumerate(rows):
        decode([(token, i, s, i == context - 1) for i, token in enumerate(row[:context])])
    start = clock()
    for i in range(context, context + steps):
        decode([(row[i], i, s, True) for s, row in enumerate(rows)])
    report["many"] = n * steps / (clock() - start)
""",
    },
    "first": "from llama_cpp import Llama\n"
    "model = Llama(path, n_ctx=600, n_threads=n_threads, n_threads_batch=n_threads, verbose=False)\n"
    "model.eval(model.tokenize(b'The quick brown fox jumps'))\n"  # create_completion goes on to the end of a character
    "model.detokenize([model.sample(temp=0)])",
}
FIRST = """
import sys, time
path, n_threads = sys.argv[1], int(sys.argv[2])
start = time.perf_counter()
{code}
print(time.perf_counter() - start)
"""
LESS_IS_BETTER = ("first", "peak")
COLUMNS = ("prefill", "decode", "many", "first", "generate", "peak")


class Engine:
    """A process that loads a file and then measures when told to."""

    def __init__(self, python: str, code: Any, path: Path, n_threads: int, context: int, steps: int, n: int) -> None:
        command = [python, "-c", WORKER.format(**code), str(path), *map(str, (n_threads, context, steps, n))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def measure(self) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
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
    parser.add_argument("--sequences", type=int, default=8)
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
    """Medians by engine and column, and the ratios of the pairs."""
    engines = {"hotshoe": (sys.executable, HOTSHOE)}
    if args.llama_python:
        engines["llama.cpp"] = (args.llama_python, LLAMA_CPP)
    rows: dict[str, dict[str, list[float]]] = {name: {} for name in engines}

    def note(name: str, values: dict[str, float]) -> None:
        for column, value in values.items():
            rows[name].setdefault(column, []).append(value)

    for mode, context in (("single", args.context), ("many", args.context // 4)):
        running = {
            name: Engine(python, code[mode], path, args.threads, context, args.steps, args.sequences)
            for name, (python, code) in engines.items()
        }
        for turn in range(args.rounds + 1):
            for name, engine in running.items():
                values = engine.measure()
                if mode == "many":
                    del values["peak"]  # with --sequences caches: another matter
                if turn:  # the first warms up
                    note(name, values)
        for engine in running.values():
            engine.close()
    # both packages are compiled to bytecode: pip does it when it installs one, a checkout's first run does it here
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for turn in range(args.rounds + 1):
        for name, (python, code) in engines.items():
            command = [python, "-c", FIRST.format(code=code["first"]), str(path), str(args.threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            if turn:
                note(name, {"first": float(done.stdout.split()[-1])})
    out = {name: {c: statistics.median(v) for c, v in columns.items()} for name, columns in rows.items()}
    if "llama.cpp" in rows:
        out["ratio"] = {}
        for column, theirs in rows["llama.cpp"].items():
            pairs = [(a, b) for a, b in zip(rows["hotshoe"][column], theirs, strict=True)]
            better = [b / a if column in LESS_IS_BETTER else a / b for a, b in pairs]
            out["ratio"][column] = statistics.median(better)
    return out


def show(dtype: str, table: dict[str, dict[str, float]]) -> None:
    print(f"{dtype:12}" + "".join(f"{c:>10}" for c in COLUMNS))
    for name, row in table.items():
        cells = {c: f"{row[c] / 2**20:.0f} MiB" if c == "peak" and name != "ratio" else f"{row[c]:.2f}" for c in row}
        print(f"  {name:10}" + "".join(f"{cells.get(c, ''):>10}" for c in COLUMNS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
