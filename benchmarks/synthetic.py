"""Make a GGUF file in the shape of a well-known model, with random weights, to measure speed.

    python benchmarks/synthetic.py OUT.gguf [--shape 0.5b] [--dtype q4_0] [--layers N] [--nextn]

shape: 0.5b (Qwen2.5-0.5B), 1b (Llama-3.2-1B), 3b (Llama-3.2-3B), 8b (Llama-3.1-8B), mamba2 (mamba2-1.3b) or qwen3.5
(Qwen 3.5 with 2 billion parameters, not the sizes of a published file: gated delta nets, and attention in every fourth
layer). Of mixtures only some layers are made, so that they fit into the memory of a small machine: moe (Qwen3-30B-A3B:
128 experts, 8 for each token; 8 of 48 layers), moe64 (64 experts of 1,024, 8 for each token, as in OLMoE-1B-7B, with
Qwen3's attention; 8 of 16), gpt-oss (gpt-oss-20b: 32 experts, 4 for each token; 4 of 24) and qwen3.5moe
(Qwen3.5-35B-A3B: 256 experts, 8 for each token; 4 of 40). The rows of 0.5b have 896 elements: no multiple of 256, so
most of its "q4_k_m" has other types, as in the real file.

dtype: f16, f16_from_f32, bf16, q4_0, q8_0, q4_k_m, q5_k_m, q6_k, iq4_xs or mxfp4 (experts; the rest has Q8_0). Each
tensor has the type that llama.cpp's quantizer gives it in a file of this kind. f16 has only numbers of BF16, as the
file of a model that was published in BF16, which most are; f16_from_f32 has others, too. Blocks are random bits; their
scales give values a mean of 0 and a deviation of 0.03.

--nextn: with one more layer, which drafts tokens (only qwen3.5 and qwen3.5moe).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np

Kind = gguf.GGMLQuantizationType
DEVIATION = 0.03
POOL_BYTES = 8 << 20


@dataclass(frozen=True)
class Recurrent:
    """The sizes of recurrent layers, whose convolutions see four tokens."""

    inner: int
    state: int
    heads: int
    groups: int
    interval: int = 0
    """Every so many layers, one has attention; 0: none."""

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.state


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
    recurrent: Recurrent | None = None
    nextn: bool = False
    """Whether there is one more layer, which drafts tokens."""


SHAPES = {
    "0.5b": Shape("qwen2", 896, 24, 14, 2, 64, 4864, 151_936, "qwen2", 1e6, tied=True),
    "1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128_256, "llama-bpe", 5e5, tied=True),
    "3b": Shape("llama", 3072, 28, 24, 8, 128, 8192, 128_256, "llama-bpe", 5e5, tied=True),
    "8b": Shape("llama", 4096, 32, 32, 8, 128, 14336, 128_256, "llama-bpe", 5e5, tied=False),
    "moe": Shape("qwen3moe", 2048, 8, 32, 4, 128, 768, 151_936, "qwen2", 1e6, False, experts=128, experts_used=8),
    "moe64": Shape("qwen3moe", 2048, 8, 16, 16, 128, 1024, 50_304, "qwen2", 1e4, False, experts=64, experts_used=8),
    "gpt-oss": Shape("gpt-oss", 2880, 4, 64, 8, 64, 2880, 201_088, "gpt-4o", 1.5e5, False, experts=32, experts_used=4),
    "qwen3.5": Shape(
        "qwen35", 2048, 24, 8, 2, 256, 6144, 248_320, "qwen35", 1e7, True, recurrent=Recurrent(2048, 128, 16, 16, 4)
    ),
    "qwen3.5moe": Shape(
        "qwen35moe",
        *(2048, 4, 16, 2, 256, 512, 248_320, "qwen35", 1e7, False),
        experts=256,
        experts_used=8,
        recurrent=Recurrent(4096, 128, 32, 16, 4),
    ),
    "mamba2": Shape("mamba2", 2048, 48, 0, 0, 0, 0, 50_288, "gpt-2", 0, True, recurrent=Recurrent(4096, 128, 64, 1)),
}
BASE = {
    "f16": Kind.F16,
    "f16_from_f32": Kind.F16,
    "bf16": Kind.BF16,
    "q4_0": Kind.Q4_0,
    "q8_0": Kind.Q8_0,
    "q4_k_m": Kind.Q4_K,
    "q5_k_m": Kind.Q5_K,
    "q6_k": Kind.Q6_K,
    "iq4_xs": Kind.IQ4_XS,
    "mxfp4": Kind.MXFP4,
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
CONSTANT = {"ssm_a": -1.0, "ssm_d": 1.0}
"""Of recurrent layers: the decay of the state, and how much of the input is passed on."""
WINDOWS = {"gemma3": 1024, "gpt-oss": 128}
SECTIONS = {"qwen2vl": [16, 24, 24, 0], "qwen35": [11, 11, 10, 0], "qwen35moe": [11, 11, 10, 0]}
Tensors: TypeAlias = dict[str, tuple[int, ...]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--dtype", choices=DTYPES, default="q4_0")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--nextn", action="store_true")
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.nextn and not shape.architecture.startswith("qwen35"):
        parser.error(f"--nextn is for qwen3.5 and qwen3.5moe, not for {args.shape}")
    make(args.out, args.dtype, replace(shape, layers=args.layers or shape.layers, nextn=args.nextn))
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
        if (value := constant(name, size)) is not None:
            data = np.full(size, value, np.float32)
        else:
            if kind not in pools:
                pools[kind] = random_blocks(kind, of_bf16=dtype == "f16")
            data = np.resize(pools[kind], (int(np.prod(size)) // gguf.GGML_QUANT_SIZES[kind][0], pools[kind].shape[1]))
        writer.write_tensor_data(data)
    writer.close()
    unfinished.replace(path)
    return path


def constant(name: str, size: tuple[int, ...]) -> float | None:
    """The value of all elements of a tensor; None if they are random."""
    if "norm" in name:
        return 1.0
    return CONSTANT.get(name.split(".")[-1], 0.0 if len(size) == 1 else None)


def add_metadata(writer: gguf.GGUFWriter, dtype: str, shape: Shape) -> None:
    arch = shape.architecture
    writer.add_name(f"synthetic {dtype}")
    writer.add_file_type(file_type(dtype))
    sizes = {
        "context_length": 32768,
        "embedding_length": shape.dim,
        "feed_forward_length": shape.ffn * (shape.experts_used or 1),
        "block_count": shape.layers + shape.nextn,
        "vocab_size": shape.vocab,
    }
    if shape.heads:
        sizes |= {
            "attention.head_count": shape.heads,
            "attention.head_count_kv": shape.kv_heads,
            "attention.key_length": shape.head_dim,
            "attention.value_length": shape.head_dim,
            "rope.dimension_count": shape.head_dim // (4 if arch.startswith("qwen35") else 1),
        }
        writer.add_float32(f"{arch}.rope.freq_base", shape.rope_base)
    if shape.experts:
        sizes["expert_count"] = shape.experts
        sizes["expert_used_count"] = shape.experts_used
        sizes["expert_feed_forward_length"] = shape.ffn
    if arch == "qwen35moe":
        sizes["expert_shared_feed_forward_length"] = shape.ffn
    if arch in WINDOWS:
        sizes["attention.sliding_window"] = WINDOWS[arch]
    if shape.recurrent:
        sizes |= {
            "ssm.conv_kernel": 4,
            "ssm.inner_size": shape.recurrent.inner,
            "ssm.state_size": shape.recurrent.state,
            "ssm.time_step_rank": shape.recurrent.heads,
            "ssm.group_count": shape.recurrent.groups,
        }
        if shape.recurrent.interval:
            sizes["full_attention_interval"] = shape.recurrent.interval
    if shape.nextn:
        sizes["nextn_predict_layers"] = 1
    if arch in SECTIONS:
        writer.add_array(f"{arch}.rope.dimension_sections", SECTIONS[arch])
    for key, value in sizes.items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)


def file_type(dtype: str) -> gguf.LlamaFileType:
    name = {"f16_from_f32": "F16", "mxfp4": "MXFP4_MOE"}.get(dtype, dtype.upper())
    return gguf.LlamaFileType[f"MOSTLY_{name}"]


def tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape of each tensor, rows first."""
    yield "token_embd.weight", (shape.vocab, shape.dim)
    yield "output_norm.weight", (shape.dim,)
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.dim)
    for i in range(shape.layers):
        is_recurrent = shape.recurrent and (i + 1) % (shape.recurrent.interval or shape.layers + 1)
        mixer = recurrent(shape) if is_recurrent else attention(shape)
        for name, size in {"attn_norm.weight": (shape.dim,), **mixer, **mlp(shape)}.items():
            yield f"blk.{i}.{name}", size
    if shape.nextn:
        own = {f"nextn.{name}.weight": (shape.dim,) for name in ("enorm", "hnorm", "shared_head_norm")}
        own["nextn.eh_proj.weight"] = (shape.dim, 2 * shape.dim)
        for name, size in {"attn_norm.weight": (shape.dim,), **attention(shape), **mlp(shape), **own}.items():
            yield f"blk.{shape.layers}.{name}", size


def attention(shape: Shape) -> Tensors:
    arch, dim = shape.architecture, shape.dim
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    gated = 2 if arch.startswith("qwen35") else 1
    found: Tensors = {
        "attn_q.weight": (gated * q, dim),
        "attn_k.weight": (kv, dim),
        "attn_v.weight": (kv, dim),
        "attn_output.weight": (dim, q),
    }
    if arch in ("qwen2", "qwen2vl", "gpt-oss"):
        found |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if arch == "gpt-oss":
        found |= {"attn_output.bias": (dim,), "attn_sinks.weight": (shape.heads,)}
    if arch in ("qwen3moe", "gemma3", "qwen35", "qwen35moe"):
        found |= {"attn_q_norm.weight": (shape.head_dim,), "attn_k_norm.weight": (shape.head_dim,)}
    return found


def recurrent(shape: Shape) -> Tensors:
    sizes, dim = shape.recurrent, shape.dim
    assert sizes is not None
    common: Tensors = {
        "ssm_conv1d.weight": (sizes.channels, 4),
        "ssm_dt.bias": (sizes.heads,),
        "ssm_out.weight": (dim, sizes.inner),
    }
    if shape.architecture == "mamba2":
        return common | {
            "ssm_in.weight": (sizes.inner + sizes.channels + sizes.heads, dim),
            "ssm_conv1d.bias": (sizes.channels,),
            "ssm_a": (sizes.heads, 1),
            "ssm_d": (sizes.heads, 1),
            "ssm_norm.weight": (sizes.groups, sizes.inner // sizes.groups),
        }
    return common | {
        "attn_qkv.weight": (sizes.channels, dim),
        "attn_gate.weight": (sizes.inner, dim),
        "ssm_beta.weight": (sizes.heads, dim),
        "ssm_alpha.weight": (sizes.heads, dim),
        "ssm_a": (sizes.heads,),
        "ssm_norm.weight": (sizes.inner // sizes.heads,),
    }


def mlp(shape: Shape) -> Tensors:
    arch, dim, ffn, experts = shape.architecture, shape.dim, shape.ffn, shape.experts
    if not ffn:
        return {}
    late = arch.startswith("qwen35") or arch == "gpt-oss"  # the norm before the MLP has the other name there
    found: Tensors = {"post_attention_norm.weight" if late else "ffn_norm.weight": (dim,)}
    if arch == "gemma3":
        found |= {"post_attention_norm.weight": (dim,), "post_ffw_norm.weight": (dim,)}
    matrices: Tensors = {"gate": (ffn, dim), "up": (ffn, dim), "down": (dim, ffn)}
    if not experts:
        return found | {f"ffn_{name}.weight": size for name, size in matrices.items()}
    found["ffn_gate_inp.weight"] = (experts, dim)
    found |= {f"ffn_{name}_exps.weight": (experts, *size) for name, size in matrices.items()}
    if arch == "gpt-oss":
        found["ffn_gate_inp.bias"] = (experts,)
        found |= {f"ffn_{name}_exps.bias": (experts, rows) for name, (rows, _) in matrices.items()}
    if arch == "qwen35moe":
        found["ffn_gate_inp_shexp.weight"] = (dim,)
        found |= {f"ffn_{name}_shexp.weight": size for name, size in matrices.items()}
    return found


def kind_of(name: str, size: tuple[int, ...], dtype: str, shape: Shape) -> Kind:
    """The type that llama.cpp's quantizer gives to this tensor in a file of ``dtype``, without an importance matrix."""
    kind = BASE[dtype]
    if constant(name, size) is not None or name.endswith(".bias") or "ffn_gate_inp" in name or "conv1d" in name:
        return Kind.F32
    if kind in (Kind.F16, Kind.BF16):
        return kind
    if dtype == "mxfp4":
        return kind if "_exps" in name else Kind.Q8_0
    if name == "output.weight" or (shape.tied and name == "token_embd.weight"):
        if kind is not Kind.Q8_0:
            kind = Kind.Q6_K
    elif name.startswith("blk."):
        i, n = int(name.split(".")[1]), shape.layers
        value, down = "attn_v" in name or "attn_qkv" in name, "ffn_down" in name
        if dtype in ("q4_k_m", "q5_k_m") and (value or down):
            if i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2:
                kind = Kind.Q6_K
        elif dtype == "iq4_xs" and ((value and shape.heads >= 4 * shape.kv_heads) or (down and i < n // 8)):
            kind = Kind.Q5_K
    return FALLBACK[kind] if size[-1] % gguf.GGML_QUANT_SIZES[kind][0] else kind


def random_blocks(kind: Kind, *, of_bf16: bool) -> np.ndarray[Any, Any]:
    """Some MiB of blocks, (n, elements or bytes of a block). Tensors repeat them; n is odd, so that rows differ.

    of_bf16: F16 has only numbers of BF16.
    """
    rng = np.random.default_rng(0)
    if kind in (Kind.F32, Kind.F16, Kind.BF16):
        values = rng.standard_normal(((POOL_BYTES >> 2) + 1, 1), np.float32) * np.float32(DEVIATION)
        if kind is Kind.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        if kind is Kind.F16 and of_bf16:
            values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return values.astype(np.float16) if kind is Kind.F16 else values
    n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (POOL_BYTES // n_bytes | 1, n_bytes), np.uint8)
    if kind is Kind.MXFP4:  # scales are powers of two: three of four are 2 ** -7, the others 2 ** -6
        blocks[:, 0] = rng.choice([120, 120, 120, 121], len(blocks))
        return blocks
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
