"""Compare how long the vocabulary of a GGUF file takes: until it is read, and until a first text is encoded.

    python benchmarks/vocabulary.py [--text TEXT] [--rounds 9] [--llama-python PYTHON] FILE...

Each time is measured in a new process, after the imports, with the file in the page cache; the engines take turns.
hotshoe reads the tokenizer only. --llama-python names an interpreter that has llama-cpp-python, which opens the file
with vocab_only. Prints medians and ranges in milliseconds. A ratio above 1.0 means that hotshoe is faster. The two
engines must give the same ids.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

TEXT = "The quick brown fox jumps over the lazy dog, and 1,024 other things happen: größer, 你好 🦙"

HOTSHOE = """
import json, sys, time
import numpy, tokenizers, hotshoe.loading
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.gguf import GGUFFile
path, text = sys.argv[1:]
begun = time.perf_counter()
with GGUFFile(path) as file:
    tokenizer = load_tokenizer(file.metadata)
loaded = time.perf_counter()
ids = tokenizer.encode(text)
print(json.dumps({"load": loaded - begun, "encode": time.perf_counter() - loaded, "ids": ids}))
"""

LLAMA = """
import json, sys, time
import llama_cpp
path, text = sys.argv[1:]
llama_cpp.llama_backend_init()
begun = time.perf_counter()
params = llama_cpp.llama_model_default_params()
params.vocab_only = True
model = llama_cpp.llama_model_load_from_file(path.encode(), params)
vocab = llama_cpp.llama_model_get_vocab(model)
loaded = time.perf_counter()
ids = (llama_cpp.llama_token * 4096)()
n = llama_cpp.llama_tokenize(vocab, text.encode(), len(text.encode()), ids, 4096, True, True)
if n < 0:
    sys.exit(f"the text has {-n} tokens; expected at most 4096")
print(json.dumps({"load": loaded - begun, "encode": time.perf_counter() - loaded, "ids": ids[:n]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--llama-python", metavar="PYTHON")
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    args = parser.parse_args()
    programs = {"hotshoe": (sys.executable, HOTSHOE)}
    if args.llama_python:
        programs["llama.cpp"] = (args.llama_python, LLAMA)
    for path in args.files:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        ids = {}
        for i in range(args.rounds + 1):  # the first one warms up
            for name, (python, code) in programs.items():
                found = run([python, "-c", code, str(path), args.text])
                ids[name] = found["ids"]
                if i:
                    times[name].append((1000 * found["load"], 1000 * (found["load"] + found["encode"])))
        if len(set(map(tuple, ids.values()))) > 1:
            sys.exit(f"{path}: the ids differ: {ids}")
        print(path.name)
        for name, values in times.items():
            loaded, encoded = (shown(column) for column in zip(*values, strict=True))
            line = f"  {name:10}  loaded {loaded} ms, text encoded {encoded} ms"
            if name != "hotshoe":
                ratios = [theirs[1] / ours[1] for theirs, ours in zip(values, times["hotshoe"], strict=True)]
                line += f", ratio {shown(ratios, 2)}"
            print(line, flush=True)


def run(command: list[str]) -> dict[str, list[int]]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.stderr.strip()[-400:]}")
    found: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(values: list[float] | tuple[float, ...], digits: int = 0) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
