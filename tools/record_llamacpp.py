"""Record llama.cpp's continuations of 48 prompts, tests/data/kjv-llamacpp.json, for tests without llama.cpp.

    python3 -m venv /tmp/llama
    CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf
    /tmp/llama/bin/python -m tools.record_llamacpp

Greedy: always the best token, also after the end of a text. least_margin is the smallest distance of the second best
logit. The tokens are those of llama.cpp's defaults: flash attention and a cache of f16. Its other settings compute the
same, but round in other places, so near ties fall differently: settled is the number of tokens that all four agree on.
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
SETTINGS = [(flash, cache) for flash in (True, False) for cache in ("f16", "f32")]  # the first is llama.cpp's default
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
    "And the LORD spake unto Moses, saying,",
    "Now there was a man",
    "Verily, verily, I say unto you,",
    "The words of",
    "And it shall come to pass in that day,",
    "Praise ye the LORD.",
    "The burden of",
    "For God so loved the world,",
    "Woe unto",
    "And he said unto them,",
    "Thus saith the LORD of hosts;",
    "Vanity of vanities, saith the Preacher,",
    "Thou shalt not",
    "Paul, an apostle",
    "And I saw",
    "A wise son",
    "O give thanks unto the LORD;",
    "Now in the first year of",
    "And the king said",
    "Behold,",
    "Then answered",
    "There was also",
    "And the children of Israel",
    "My beloved is",
    "Hear, O Israel:",
    "Grace be unto you, and peace,",
    "And David",
    "The earth was without form, and void;",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record llama.cpp's greedy continuations.")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--target", type=Path, default=TARGET)
    args = parser.parse_args()
    import llama_cpp

    prompts: list[dict[str, Any]] = [{"text": text} for text in PROMPTS]
    with tempfile.TemporaryDirectory() as scratch:
        for dtype, path in (("q8_0", args.model), ("f16", as_f16(args.model, Path(scratch) / "f16.gguf"))):
            for flash, cache in SETTINGS:
                kind = {"f16": llama_cpp.GGML_TYPE_F16, "f32": llama_cpp.GGML_TYPE_F32}[cache]
                settings = {"n_ctx": 512, "n_threads": 2, "n_threads_batch": 2, "verbose": False}
                model = llama_cpp.Llama(str(path), flash_attn=flash, type_k=kind, type_v=kind, **settings)
                for prompt in prompts:
                    prompt["ids"] = model.tokenize(prompt["text"].encode(), add_bos=True, special=False)
                    note(prompt, dtype, *continuation(model, prompt["ids"]))
                model.close()
    origin = {
        "engine": f"llama-cpp-python {llama_cpp.__version__}, built natively on {platform.machine()}",
        "command": "python -m tools.record_llamacpp",
        "settings": "greedy; flash attention, cache f16; settled: as without flash attention and with a cache of f32",
    }
    text = ",\n".join(json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    args.target.write_text(f'{{"origin": {json.dumps(origin)},\n"prompts": [\n{text}\n]}}\n', encoding="utf-8")


def note(prompt: dict[str, Any], dtype: str, tokens: list[int], margins: list[float]) -> None:
    """The first setting gives the tokens, the others reduce the number of settled tokens."""
    if dtype not in prompt:
        prompt[dtype] = {"tokens": tokens, "least_margin": round(min(margins), 5), "settled": len(tokens)}
    same = [a == b for a, b in zip(prompt[dtype]["tokens"], tokens)]
    prompt[dtype]["settled"] = min(prompt[dtype]["settled"], (*same, False).index(False))


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
