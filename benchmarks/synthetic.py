"""Make a GGUF file in the shape of Qwen2.5-0.5B with random weights: for measuring speed, not sense.

    python benchmarks/synthetic.py OUT.gguf [--dtype q4_0] [--layers 24]

dtype: f16, q8_0, q4_0 or q4_k_m (Q4_K, with Q6_K for the value and down projections of half of the layers and for the
embedding, as llama.cpp mixes them). Blocks are random bits with a scale that keeps activations in range.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

DTYPES = ("f16", "q8_0", "q4_0", "q4_k_m")
DIM, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 896, 4864, 14, 2, 64, 151_936
Q = gguf.GGMLQuantizationType
SCALES = {Q.Q4_0: [0], Q.Q8_0: [0], Q.Q4_K: [0, 2], Q.Q6_K: [208]}  # where in a block its half floats stand


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="q4_0")
    parser.add_argument("--layers", type=int, default=24)
    args = parser.parse_args()
    make(args.out, args.dtype, args.layers)
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.0f} MiB")
    return 0


def make(path: Path, dtype: str, n_layers: int = 24) -> Path:
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name(f"synthetic 0.5B {dtype}")
    for key, value in {
        "context_length": 32768, "embedding_length": DIM, "feed_forward_length": FFN, "block_count": n_layers,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
    }.items():  # fmt: skip
        writer.add_uint32(f"qwen2.{key}", value)
    writer.add_float32("qwen2.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen2.rope.freq_base", 1e6)
    add_vocabulary(writer)
    rng = np.random.default_rng(0)
    for name, shape in tensors(n_layers):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32) if "norm" in name else np.zeros(shape, np.float32))
        else:
            data, kind = random_weight(rng, shape, kind_of(name, dtype))
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(n_layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (VOCAB, DIM)
    yield "output_norm.weight", (DIM,)
    for i in range(n_layers):
        for name, shape in {
            "attn_norm.weight": (DIM,), "ffn_norm.weight": (DIM,),
            "attn_q.weight": (HEADS * HEAD_DIM, DIM), "attn_q.bias": (HEADS * HEAD_DIM,),
            "attn_k.weight": (KV_HEADS * HEAD_DIM, DIM), "attn_k.bias": (KV_HEADS * HEAD_DIM,),
            "attn_v.weight": (KV_HEADS * HEAD_DIM, DIM), "attn_v.bias": (KV_HEADS * HEAD_DIM,),
            "attn_output.weight": (DIM, HEADS * HEAD_DIM),
            "ffn_gate.weight": (FFN, DIM), "ffn_up.weight": (FFN, DIM), "ffn_down.weight": (DIM, FFN),
        }.items():  # fmt: skip
            yield f"blk.{i}.{name}", shape


def kind_of(name: str, dtype: str) -> gguf.GGMLQuantizationType:
    if dtype != "q4_k_m":
        return Q[dtype.upper()]
    if name.startswith("token_embd"):
        return Q.Q6_K
    even = int(name.split(".")[1]) % 2 == 0
    return Q.Q6_K if even and ("attn_v" in name or "ffn_down" in name) else Q.Q4_K


def random_weight(
    rng: np.random.Generator, shape: tuple[int, int], kind: gguf.GGMLQuantizationType
) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    if kind == Q.F16:
        return (rng.standard_normal(shape, np.float32) * 0.02).astype(np.float16), kind
    per_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape[1] % per_block:
        kind = Q.Q8_0  # as llama.cpp falls back where a row is no whole number of blocks
        per_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // per_block, n_bytes), np.uint8)
    scale = np.array([{Q.Q4_0: 0.004, Q.Q8_0: 0.0003}.get(kind, 0.0001)], np.float16).view(np.uint8)
    for at in SCALES[kind]:
        blocks[..., at : at + 2] = scale
    return blocks.reshape(shape[0], -1), kind


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Byte-level BPE with 256 letters and as many merges as Qwen2.5 has: each pair of letters, then triples."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    made = itertools.chain(itertools.product(letters, letters), itertools.product(letters, letters, letters))
    merges = ["".join(m[:-1]) + " " + m[-1] for m in itertools.islice(made, VOCAB - len(letters) - 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"])
    writer.add_token_types([1] * (VOCAB - 1) + [3])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(VOCAB - 1)


if __name__ == "__main__":
    sys.exit(main())
