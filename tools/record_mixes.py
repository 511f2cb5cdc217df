"""Record which type llama.cpp's quantizer gives to each tensor: tests/data/llamacpp-mixes.json.

    python3 -m venv /tmp/llama
    /tmp/llama/bin/pip install llama-cpp-python==0.3.36 gguf
    /tmp/llama/bin/python -m tools.record_mixes

The models have the shapes of benchmarks/synthetic.py, made narrow: the types depend on names, layers, the ratio of
heads, and on whether a row is a multiple of the block. A single type is that of all layers; otherwise each type has
its layers.
"""

from __future__ import annotations

import ctypes
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf

from benchmarks.synthetic import BASE, SHAPES, Recurrent, file_type, make

TARGET = Path(__file__).resolve().parent.parent / "tests" / "data" / "llamacpp-mixes.json"
NARROW = {
    "0.5b": replace(SHAPES["0.5b"], vocab=300, ffn=256),
    "1b": replace(SHAPES["1b"], vocab=300, dim=256, ffn=512, heads=8, kv_heads=2, head_dim=32),
    "3b": replace(SHAPES["3b"], vocab=300, dim=256, ffn=512, heads=6, kv_heads=2, head_dim=32),
    "8b": replace(SHAPES["8b"], vocab=300, dim=256, ffn=512, heads=8, kv_heads=2, head_dim=32),
    "moe": replace(SHAPES["moe"], vocab=300, dim=256, heads=8, kv_heads=1, head_dim=32, ffn=256),
    "moe64": replace(SHAPES["moe64"], vocab=300, dim=256, heads=8, kv_heads=8, head_dim=32, ffn=256),
    "gpt-oss": replace(SHAPES["gpt-oss"], vocab=300, dim=288, heads=8, kv_heads=1, head_dim=32, ffn=288),
    "qwen3.5": replace(
        SHAPES["qwen3.5"], vocab=300, dim=256, heads=8, kv_heads=2, ffn=512, recurrent=Recurrent(256, 32, 8, 8, 4)
    ),
    "qwen3.5moe": replace(
        SHAPES["qwen3.5moe"], vocab=300, dim=256, heads=8, kv_heads=1, ffn=256, recurrent=Recurrent(512, 32, 16, 8, 4)
    ),
    "mamba2": replace(SHAPES["mamba2"], vocab=300, dim=256, layers=8, recurrent=Recurrent(512, 32, 8, 1)),
}


def main() -> None:
    """Write the file."""
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, shape in NARROW.items():
            plain = make(Path(scratch) / "f16.gguf", "f16", shape)
            for dtype in BASE:
                path = quantize(plain, Path(scratch) / "quantized.gguf", dtype)
                lines.append(f"  {json.dumps(f'{name} {dtype}')}: {json.dumps(types(path))}")
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def quantize(source: Path, target: Path, dtype: str) -> Path:
    """Quantize ``source`` to a file type by llama.cpp."""
    import llama_cpp as l

    params: Any = l.llama_model_quantize_default_params()
    params.ftype = file_type(dtype)
    if l.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not quantize {source} to {dtype}")
    return target


def types(path: Path) -> dict[str, str | dict[str, list[int]]]:
    """The type of all matrices of one name, or the layers of each type."""
    found: dict[str, dict[str, list[int]]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if len(tensor.shape) == 1 or not tensor.name.endswith(".weight"):
            continue
        *block, name, _ = tensor.name.split(".")
        layers = found.setdefault(name, {}).setdefault(tensor.tensor_type.name, [])
        layers += [int(n) for n in block[1:]]
    return {
        name: next(iter(kinds)) if len(kinds) == 1 else {kind: sorted(n) for kind, n in kinds.items()}
        for name, kinds in sorted(found.items())
    }


if __name__ == "__main__":
    main()
