"""Make a GGUF file in the shape of a well-known model, with random weights, to measure speed.

    python benchmarks/synthetic.py OUT.gguf [--shape 0.5b] [--dtype q4_0] [--layers N]

shape: 0.5b (Qwen2.5-0.5B), 1b (Llama-3.2-1B), 3b (Llama-3.2-3B), 8b (Llama-3.1-8B), moe (Qwen3-30B-A3B: 128 experts, 8
for each token; 8 of its 48 layers, so that it fits into the memory of a small machine) or moe64 (64 experts of 1,024, 8
for each token, as in OLMoE-1B-7B, with Qwen3's attention; 8 of its 16 layers). The rows of 0.5b have 896 elements:
no multiple of 256, so most of its "q4_k_m" has other types, as in the real file.

dtype: f16, bf16, q4_0, q8_0, q4_k_m, q5_k_m, q6_k or iq4_xs. Each tensor has the type that llama.cpp's quantizer
gives it in a file of this kind. Blocks are random bits; their scales give values a mean of 0 and a deviation of 0.03.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
DEVIATION = 0.03
POOL_BYTES = 8 << 20


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; ``ffn`` is the width of an expert if the model has experts."""

    architecture: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    pre_tokenizer: str
    rope_base: float
    tied: bool
    experts: int = 0
    experts_used: int = 0
    special: tuple[str, ...] = ()
    """Special tokens at the end of the vocabulary, before the end of text."""


SHAPES = {
    "0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, 151_936, "qwen2", 1e6, tied=True),
    "1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128_256, "llama-bpe", 5e5, tied=True),
    "3b": Shape("llama", 3072, 28, 24, 8, 128, 8192, 128_256, "llama-bpe", 5e5, tied=True),
    "8b": Shape("llama", 4096, 32, 32, 8, 128, 14336, 128_256, "llama-bpe", 5e5, tied=False),
    "moe": Shape("qwen3moe", 2048, 8, 32, 4, 128, 768, 151_936, "qwen2", 1e6, False, experts=128, experts_used=8),
    "moe64": Shape("qwen3moe", 2048, 8, 16, 16, 128, 1024, 50_304, "qwen2", 1e4, False, experts=64, experts_used=8),
}
BASE = {
    "f16": Kind.F16,
    "bf16": Kind.BF16,
    "q4_0": Kind.Q4_0,
    "q8_0": Kind.Q8_0,
    "q4_k_m": Kind.Q4_K,
    "q5_k_m": Kind.Q5_K,
    "q6_k": Kind.Q6_K,
    "iq4_xs": Kind.IQ4_XS,
}
DTYPES = tuple(BASE)
# the type for rows that are not a multiple of 256
FALLBACK = {Kind.Q4_K: Kind.Q5_0, Kind.Q5_K: Kind.Q5_1, Kind.Q6_K: Kind.Q8_0, Kind.IQ4_XS: Kind.IQ4_NL}
# the offsets of a block's half floats, and the factor of each that gives its values a mean of 0
SCALES = {
    Kind.Q4_0: {0: 1.0},
    Kind.Q5_0: {0: 1.0},
    Kind.Q5_1: {0: 1.0, 2: -15.5},
    Kind.Q8_0: {0: 1.0},
    Kind.Q4_K: {0: 1.0, 2: 7.5},
    Kind.Q5_K: {0: 1.0, 2: 15.5},
    Kind.Q6_K: {208: 1.0},
    Kind.IQ4_NL: {0: 1.0},
    Kind.IQ4_XS: {0: 1.0},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--dtype", choices=DTYPES, default="q4_0")
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    make(args.out, args.dtype, replace(shape, layers=args.layers) if args.layers else shape)
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.0f} MiB")
    return 0


def make(path: Path, dtype: str, shape: Shape = SHAPES["0.5b"], *, pure: bool = False) -> Path:
    """Write the file; ``path`` exists only when the file is complete. ``pure``: all matrices have the type itself."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(unfinished, shape.architecture)
    add_metadata(writer, dtype, shape)
    add_vocabulary(writer, shape)
    planned = [(name, size, kind_of(name, size, dtype, shape)) for name, size in tensors(shape)]
    if pure:
        planned = [(name, size, kind if len(size) == 1 else BASE[dtype]) for name, size, kind in planned]
    for name, size, kind in planned:
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(size, dtype=np.int64)) // per_block * block_bytes
        writer.add_tensor_info(name, size, np.dtype(np.float32), n_bytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pools: dict[Kind, np.ndarray[Any, Any]] = {}
    for name, size, kind in planned:
        if len(size) == 1:
            data = np.full(size, "norm" in name, np.float32)
        else:
            if kind not in pools:
                pools[kind] = random_blocks(kind)
            data = np.resize(pools[kind], (int(np.prod(size)) // gguf.GGML_QUANT_SIZES[kind][0], pools[kind].shape[1]))
        writer.write_tensor_data(data)
    writer.close()
    unfinished.replace(path)
    return path


def add_metadata(writer: gguf.GGUFWriter, dtype: str, shape: Shape) -> None:
    writer.add_name(f"synthetic {dtype}")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{dtype.upper()}"])
    sizes = {
        "context_length": 32768,
        "embedding_length": shape.dim,
        "feed_forward_length": shape.ffn * (shape.experts_used or 1),
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": shape.vocab,
    }
    if shape.experts:
        sizes["expert_count"] = shape.experts
        sizes["expert_used_count"] = shape.experts_used
        sizes["expert_feed_forward_length"] = shape.ffn
    if shape.architecture == "gemma3":
        sizes["attention.sliding_window"] = 1024
    if shape.architecture == "qwen2vl":
        writer.add_array("qwen2vl.rope.dimension_sections", [16, 24, 24, 0])
    for key, value in sizes.items():
        writer.add_uint32(f"{shape.architecture}.{key}", value)
    writer.add_float32(f"{shape.architecture}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{shape.architecture}.rope.freq_base", shape.rope_base)


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape of each tensor, rows first."""
    dim, ffn, experts = shape.dim, shape.ffn, shape.experts
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocab, dim)
    yield "output_norm.weight", (dim,)
    if not shape.tied:
        yield "output.weight", (shape.vocab, dim)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (dim,),
        "ffn_norm.weight": (dim,),
        "attn_q.weight": (q, dim),
        "attn_k.weight": (kv, dim),
        "attn_v.weight": (kv, dim),
        "attn_output.weight": (dim, q),
    }
    if shape.architecture in ("qwen2", "qwen2vl"):
        block |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if shape.architecture in ("qwen3moe", "gemma3"):
        block |= {"attn_q_norm.weight": (shape.head_dim,), "attn_k_norm.weight": (shape.head_dim,)}
    if shape.architecture == "gemma3":
        block |= {"post_attention_norm.weight": (dim,), "post_ffw_norm.weight": (dim,)}
    if experts:
        block |= {
            "ffn_gate_inp.weight": (experts, dim),
            "ffn_gate_exps.weight": (experts, ffn, dim),
            "ffn_up_exps.weight": (experts, ffn, dim),
            "ffn_down_exps.weight": (experts, dim, ffn),
        }
    else:
        block |= {"ffn_gate.weight": (ffn, dim), "ffn_up.weight": (ffn, dim), "ffn_down.weight": (dim, ffn)}
    for i in range(shape.layers):
        for name, size in block.items():
            yield f"blk.{i}.{name}", size


def kind_of(name: str, size: tuple[int, ...], dtype: str, shape: Shape) -> Kind:
    """The type that llama.cpp's quantizer gives to this tensor in a file of ``dtype``, without an importance matrix."""
    kind = BASE[dtype]
    if len(size) == 1 or "ffn_gate_inp" in name:
        return Kind.F32
    if kind in (Kind.F16, Kind.BF16):
        return kind
    if name == "output.weight" or (shape.tied and name == "token_embd.weight"):
        if kind is not Kind.Q8_0:
            kind = Kind.Q6_K
    elif name.startswith("blk."):
        i, n = int(name.split(".")[1]), shape.layers
        value, down = "attn_v" in name, "ffn_down" in name
        if dtype in ("q4_k_m", "q5_k_m") and (value or down):
            if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2:
                kind = Kind.Q6_K
        elif dtype == "iq4_xs" and ((value and shape.heads >= 4 * shape.kv_heads) or (down and i < n // 8)):
            kind = Kind.Q5_K
    return FALLBACK[kind] if size[-1] % gguf.GGML_QUANT_SIZES[kind][0] else kind


def random_blocks(kind: Kind) -> np.ndarray[Any, Any]:
    """Some MiB of blocks, (n, elements or bytes of a block). Tensors repeat them; n is odd, so that rows differ."""
    rng = np.random.default_rng(0)
    if kind in (Kind.F32, Kind.F16, Kind.BF16):
        values = rng.standard_normal(((POOL_BYTES >> 2) + 1, 1), np.float32) * np.float32(DEVIATION)
        if kind is Kind.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(np.float16) if kind is Kind.F16 else values
    n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (POOL_BYTES // n_bytes | 1, n_bytes), np.uint8)
    set_scales(blocks, kind, 1.0)
    set_scales(blocks, kind, DEVIATION / gguf.dequantize(blocks[:4096], kind).std())
    return blocks


def set_scales(blocks: np.ndarray[Any, Any], kind: Kind, scale: float) -> None:
    for at, factor in SCALES[kind].items():
        blocks[:, at : at + 2] = np.array([scale * factor], np.float16).view(np.uint8)


def add_vocabulary(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Add a byte-level BPE: 256 letters, one merge for each pair of letters, then for triples, and an end of text."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    made = itertools.chain(itertools.product(letters, letters), itertools.product(letters, letters, letters))
    special = [*shape.special, "<|endoftext|>"]
    merges = ["".join(m[:-1]) + " " + m[-1] for m in itertools.islice(made, shape.vocab - len(letters) - len(special))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(shape.pre_tokenizer)
    writer.add_token_list([*letters, *(merge.replace(" ", "") for merge in merges), *special])
    writer.add_token_types([1] * (shape.vocab - len(special)) + [3] * len(special))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(shape.vocab - 1)


if __name__ == "__main__":
    sys.exit(main())
