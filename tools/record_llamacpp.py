"""Record what llama.cpp continues 20 prompts with: tests/data/kjv-llamacpp.json, for tests that need no llama.cpp.

    python3 -m venv /tmp/llama
    CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf
    /tmp/llama/bin/python -m tools.record_llamacpp

Greedy: always the best token, also past the end of a text. least_margin is how near the second best logit ever came.
Flash attention and a cache of f16 are llama.cpp's own defaults, and hotshoe's; llama-cpp-python's has it off, which
rounds queries and probabilities to f16 and so decides some near ties otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.as_f16 import as_f16

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
TARGET = ROOT / "tests" / "data" / "kjv-llamacpp.json"
N_TOKENS = 128
PROMPTS = (
    "And God said",
    "In the beginning",
    "The LORD is my shepherd;",
    "Blessed are the",
    "And it came to pass in those days,\n",
    "These are the names of the sons of",
    "My son, hear the instruction of thy father,",
    "Jesus answered and said unto them,",
    "A",
    "And the",
    "The quick brown fox jumps over the lazy dog.",
    "Once upon a time there was a little girl who",
    "def fibonacci(n):\n    return",
    "What is the capital of France? The capital of France is",
    "1 2 3 4 5 6 7 8 9 10",
    "SELECT name, price FROM products WHERE",
    "Größe und Weiße: naïve façade, 東京 🚀",
    "Dear Sir or Madam,\n\nI am writing to you about",
    "!!! ??? ... ,,, ;;; :::",
    "He that hath ears to hear, let him hear.\n" * 12,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record llama.cpp's greedy continuations.")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--target", type=Path, default=TARGET)
    parser.add_argument("--flash-attention", choices=("on", "off"), default="on")  # llama.cpp's own default
    parser.add_argument("--cache", choices=("f16", "f32"), default="f16")
    args = parser.parse_args()
    import llama_cpp

    kind = {"f16": llama_cpp.GGML_TYPE_F16, "f32": llama_cpp.GGML_TYPE_F32}[args.cache]
    settings: dict[str, Any] = {"n_ctx": 512, "n_threads": 2, "n_threads_batch": 2, "verbose": False}
    settings |= {"flash_attn": args.flash_attention == "on", "type_k": kind, "type_v": kind}
    prompts: list[dict[str, Any]] = [{"text": text} for text in PROMPTS]
    with tempfile.TemporaryDirectory() as scratch:
        for dtype, path in (("q8_0", args.model), ("f16", as_f16(args.model, Path(scratch) / "f16.gguf"))):
            model = llama_cpp.Llama(str(path), **settings)
            for prompt in prompts:
                prompt["ids"] = model.tokenize(prompt["text"].encode(), add_bos=True, special=False)
                tokens, margins = continuation(model, prompt["ids"])
                prompt[dtype] = {"tokens": tokens, "least_margin": round(min(margins), 5)}
            model.close()
    origin = {
        "engine": f"llama-cpp-python {llama_cpp.__version__}, built natively on {platform.machine()}",
        "command": "python -m tools.record_llamacpp",
        "settings": f"greedy; cache {args.cache}; flash attention {args.flash_attention}",
    }
    text = ",\n".join(json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    args.target.write_text(f'{{"origin": {json.dumps(origin)},\n"prompts": [\n{text}\n]}}\n', encoding="utf-8")


def continuation(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    model.reset()
    tokens: list[int] = []
    margins = []
    batch = ids
    for _ in range(N_TOKENS):
        model.eval(batch)
        logits = np.ctypeslib.as_array(model._ctx.get_logits_ith(-1), (model.n_vocab(),))
        second, best = np.partition(logits, -2)[-2:]
        batch = [int(logits.argmax())]
        tokens += batch
        margins.append(float(best - second))
    return tokens, margins


if __name__ == "__main__":
    main()
