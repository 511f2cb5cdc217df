"""Text generation on MLX against mlx-lm, interleaved in one run: prompts, and token by token.

    python benchmarks/mlx_lm.py [--device mlx:cpu] [--context 64] [--steps 16] [--layers 4] [--rounds 5] [--json]

Both have the shape of Qwen2.5-0.5B and random weights of 4 bits in groups of 32: hotshoe from a q4_0 file
(benchmarks/synthetic.py), whose blocks the plugin lays out as such groups; mlx-lm by its own model class, with scales
and activations in float32 and, on a GPU, in float16 and bfloat16 too, of which the best counts. Each engine lives in a
process of its own and they take turns. Ratios are taken round by round; above 1.0, hotshoe is better. The defaults are
for MLX's CPU, which multiplies 4-bit weights slowly; on a GPU: --context 512 --steps 128 --layers 24.

Needs `pip install mlx-lm`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generate import Engine
from synthetic import DIM, FFN, HEADS, KV_HEADS, VOCAB, make

HOTSHOE = {
    "open": """
import hotshoe
model = hotshoe.load_model(path, {device!r}, n_ctx=context + steps + 1)
""",
    "measure": """
    model.forget()
    with model.sequence() as sequence:
        start = clock(); sequence.append(*tokens[:context]); report["prefill"] = context / (clock() - start)
        before = model.backend.counters.compiled
        start = clock()
        for token in tokens[context:]:
            sequence.append(token)
        report["decode"] = steps / (clock() - start)
        report["traced"] = model.backend.counters.compiled - before
""",
}
MLX_LM = {
    "open": """
import mlx.core as mx, mlx.nn as nn
from mlx_lm.models import cache, qwen2
mx.set_default_device(mx.{unit})
model = qwen2.Model(qwen2.ModelArgs(model_type="qwen2", **{shape!r}))
model.set_dtype(mx.{dtype})
nn.quantize(model, group_size=32, bits=4)
mx.eval(model.parameters())
""",
    "measure": """
    kept = cache.make_prompt_cache(model)
    start = clock()
    model(mx.array([tokens[:context - 1]]), cache=kept)  # as mlx-lm's generate does: logits of the last token only
    mx.eval([layer.state for layer in kept])
    np.array(model(mx.array([[tokens[context - 1]]]), cache=kept)[0, -1].astype(mx.float32))
    report["prefill"] = context / (clock() - start)
    start = clock()
    for token in tokens[context:]:
        np.array(model(mx.array([[token]]), cache=kept)[0, -1].astype(mx.float32))
    report["decode"] = steps / (clock() - start)
""",
}
DTYPES = {"cpu": ("float32",), "gpu": ("float16", "bfloat16", "float32")}  # on the CPU half precision takes minutes
COLUMNS = ("prefill", "decode")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="mlx:cpu", help="mlx:cpu, or mlx:0 for Metal and CUDA")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args()
    shape = {
        "hidden_size": DIM, "num_hidden_layers": args.layers, "intermediate_size": FFN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-6, "vocab_size": VOCAB, "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }  # fmt: skip
    unit = "cpu" if args.device.endswith("cpu") else "gpu"
    with tempfile.TemporaryDirectory() as scratch:
        path = make(Path(scratch) / "q4_0.gguf", "q4_0", args.layers)
        sizes = (1, args.context, args.steps, 1)
        codes = {"hotshoe": {k: v.replace("{device!r}", repr(args.device)) for k, v in HOTSHOE.items()}}
        for dtype in DTYPES[unit]:
            words = {"{unit}": unit, "{shape!r}": repr(shape), "{dtype}": dtype}
            codes[f"mlx-lm {dtype}"] = {k: _filled(v, words) for k, v in MLX_LM.items()}
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in codes}
        engines = {name: Engine(sys.executable, code, path, *sizes) for name, code in codes.items()}
        for turn in range(args.rounds + 1):
            for name, engine in engines.items():
                values = engine.measure()
                if turn:  # the first warms up
                    rows[name].append(values)
        for engine in engines.values():
            engine.close()
    report = {n: {c: statistics.median(v[c] for v in values) for c in COLUMNS} for n, values in rows.items()}
    ratios = {
        c: statistics.median(
            ours[c] / max(rows[name][i][c] for name in rows if name != "hotshoe")
            for i, ours in enumerate(rows["hotshoe"])
        )
        for c in COLUMNS
    }
    report["ratio to the best"] = ratios
    traced = max(values["traced"] for values in rows["hotshoe"])
    if args.json:
        print(json.dumps(report | {"graphs compiled while decoding": traced}, indent=2))
        return 0
    print(f"{'tokens/s':20}" + "".join(f"{c:>10}" for c in COLUMNS))
    for name, row in report.items():
        print(f"{name:20}" + "".join(f"{row[c]:>10.2f}" for c in COLUMNS))
    print(f"graphs compiled while decoding: {traced:.0f}")
    return 0


def _filled(code: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        code = code.replace(name, value)
    return code


if __name__ == "__main__":
    sys.exit(main())
