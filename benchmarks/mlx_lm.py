"""Compare text generation on MLX with mlx-lm, interleaved in one run: prompts, given tokens, and texts.

    python benchmarks/mlx_lm.py [--device mlx:cpu] [--context 64] [--steps 16] [--layers 4] [--rounds 5] [--json]

Both have the shape of Qwen2.5-0.5B and random 4-bit weights in groups of 32. hotshoe reads a q4_0 file
(benchmarks/synthetic.py); the plugin converts its blocks to such groups. mlx-lm uses its own model class, with scales
and activations in float32; on a GPU also in float16 and bfloat16, and the best counts. Each engine has a process of
its own; they take turns. Ratios are taken round by round; above 1.0, hotshoe is faster. The defaults are for MLX's
CPU, which multiplies 4-bit weights slowly. On a GPU: --context 512 --steps 128 --layers 24.

Needs `pip install mlx-lm`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from peers import Job, Worker
from synthetic import SHAPES, make

DTYPES = {"cpu": ("float32",), "gpu": ("float16", "bfloat16", "float32")}  # on the CPU half precision takes minutes
COLUMNS = ("prompt", "decode", "write")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="mlx:cpu", help="mlx:cpu, or mlx:0 for Metal and CUDA")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    shape = replace(SHAPES["0.5b"], layers=args.layers)
    sizes = {
        "hidden_size": shape.dim, "num_hidden_layers": args.layers, "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "rms_norm_eps": 1e-6,
        "vocab_size": shape.vocab, "rope_theta": shape.rope_base, "tie_word_embeddings": True,
    }  # fmt: skip
    unit = "cpu" if args.device.endswith("cpu") else "gpu"
    engines = str(Path(__file__).with_name("engines.py"))
    decode = ["decode", args.context, args.steps]
    compiled = []
    with tempfile.TemporaryDirectory() as scratch:
        job = Job(make(Path(scratch) / "q4_0.gguf", "q4_0", shape, pure=True), 1, args.context + args.steps + 2)
        ours = {**job.arguments(), "device": args.device, "kv_dtype": "f32" if unit == "cpu" else "f16"}  # as mlx-lm's
        workers = {"hotshoe": Worker([sys.executable, engines, "hotshoe"], ours)}
        for dtype in DTYPES[unit]:
            options = {"sizes": sizes, "unit": unit, "dtype": dtype}
            workers[f"mlx-lm {dtype}"] = Worker([sys.executable, engines, "mlx-lm"], {**job.arguments(), **options})
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        for turn in range(args.rounds + 1):
            for name, worker in workers.items():
                values = dict(worker.ask(["prompt", args.context]))
                before = worker.ask(["compiled"])["compiled"] if name == "hotshoe" else 0
                values |= worker.ask(decode)
                values |= worker.ask(["write", args.context, args.steps])
                if turn:  # the first warms up
                    rows[name].append(values)
                    if name == "hotshoe":
                        compiled.append(worker.ask(["compiled"])["compiled"] - before)
        for worker in workers.values():
            worker.close()
    report = {n: {c: statistics.median(v[c] for v in values) for c in COLUMNS} for n, values in rows.items()}
    ratios = {
        c: statistics.median(
            ours[c] / max(rows[name][i][c] for name in rows if name != "hotshoe")
            for i, ours in enumerate(rows["hotshoe"])
        )
        for c in COLUMNS
    }
    report["ratio to the best"] = ratios
    traced = max(compiled)
    if args.json:
        print(json.dumps(report | {"graphs compiled while decoding": traced}, indent=2))
        return 0
    print(f"{'tokens/s':20}" + "".join(f"{c:>10}" for c in COLUMNS))
    for name, row in report.items():
        print(f"{name:20}" + "".join(f"{row[c]:>10.2f}" for c in COLUMNS))
    print(f"graphs compiled while decoding: {traced:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
