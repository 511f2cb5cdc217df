"""Models of a few rows, made to meet every rule of the mixes: what llama.cpp made of them is tests/data/quantized.json.

Quantizing looks at names, shapes and a few keys, and at no sizes that would have to agree: so a model of 80 layers is
small here. All numbers come from a generator of its own, that no version of NumPy can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

__all__ = ["MODELS", "OPTIONS", "Tiny", "importance_of", "make"]

Array = np.ndarray[Any, Any]


class Tiny(NamedTuple):
    """keys: without the architecture's prefix. tensors: shape by name. dtype: of the matrices."""

    arch: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    dtype: str = "f32"


def numbers(n: int, seed: int) -> Array:
    """Bell-shaped, float32, by splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, 4 * n + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    uniform = (z >> np.uint64(40)).astype(np.float64) / (1 << 24)
    return (uniform.reshape(n, 4).sum(axis=1) - 2.0).astype(np.float32)


def _layers(n: int, columns: int, parts: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    made = {}
    for i in range(n):
        for part, shape in parts.items():
            made[f"blk.{i}.{part}.weight"] = shape or (columns,)
    return made


def _dense(n: int, columns: int = 256, rows: int = 2) -> dict[str, tuple[int, ...]]:
    matrix = (rows, columns)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return _layers(n, columns, {"attn_norm": (), **dict.fromkeys(names, matrix)})


def _experts(n: int, n_experts: int, columns: int = 256) -> dict[str, tuple[int, ...]]:
    shared = {"attn_norm": (), **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (2, columns))}
    routed = dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), (n_experts, 2, columns))
    return _layers(
        n, columns, {**shared, "ffn_gate_inp": (n_experts, columns), **routed, "ffn_down_shexp": (2, columns)}
    )


def _keys(n_layers: int, heads: Any = 8, kv_heads: Any = 8, columns: int = 256, **others: Any) -> dict[str, Any]:
    return {
        "context_length": 64,
        "embedding_length": columns,
        "feed_forward_length": columns,
        "block_count": n_layers,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        **others,
    }


def _outer(columns: int = 256, *, tied: bool = False) -> dict[str, tuple[int, ...]]:
    outer: dict[str, tuple[int, ...]] = {"token_embd.weight": (4, columns), "output_norm.weight": (columns,)}
    return outer if tied else {**outer, "output.weight": (4, columns)}


_BERT = {
    **_outer(tied=True),
    "position_embd.weight": (4, 256),
    "token_types.weight": (2, 256),
    "token_embd_norm.weight": (256,),
    "cls.weight": (2, 256),
    **_layers(8, 256, {"attn_qkv": (6, 256), "attn_output": (2, 256), "ffn_up": (2, 256), "ffn_down": (2, 256)}),
    "blk.0.attn_output.bias": (256,),
}
_HYBRID = {
    **_outer(tied=True),
    **_layers(4, 256, {"shortconv.conv": (256, 3), "shortconv.in_proj": (2, 256), "ffn_down": (2, 256)}),
    **_dense(2),
}
_LATENT = {
    **_outer(),
    **_layers(
        8,
        256,
        {
            "attn_kv_a_mqa": (2, 256),
            "attn_kv_b": (2, 256),
            "attn_k_b": (3, 2, 256),
            "attn_v_b": (3, 2, 256),
            "attn_q_a": (2, 256),
            "attn_output": (2, 256),
            "ffn_gate_inp": (4, 256),
            "ffn_down_exps": (4, 2, 256),
            "ffn_up_exps": (4, 2, 256),
        },
    ),
}

MODELS: dict[str, Tiny] = {
    "dense": Tiny("llama", _keys(24), {**_outer(), **_dense(24)}),
    "dense-f16": Tiny("qwen2", _keys(9), {**_outer(), **_dense(9)}, "f16"),
    "grouped-tied-bf16": Tiny("llama", _keys(17, 8, 2), {**_outer(tied=True), **_dense(17)}, "bf16"),
    "70b": Tiny("llama", _keys(80, 64, 8), {**_outer(), **_dense(80, rows=1 + 1)}),
    "eight-experts": Tiny("llama", _keys(8, 8, 2, expert_count=8, expert_used_count=2), {**_outer(), **_experts(8, 8)}),
    "four-experts": Tiny(
        "qwen3moe",
        _keys(10, 8, 4, expert_count=4, expert_used_count=2, expert_feed_forward_length=256),
        {**_outer(), **_experts(10, 4)},
    ),
    "odd-rows": Tiny(
        "llama", _keys(4, columns=288), {**_outer(288), **_dense(4, 288), "blk.1.ffn_down.weight": (2, 100)}
    ),
    "odd-rows-tied": Tiny("llama", _keys(3, columns=96), {**_outer(96, tied=True), **_dense(3, 96)}),
    "encoder": Tiny("bert", _keys(8), _BERT),
    "falcon": Tiny(
        "falcon",
        _keys(32, 8, 1),
        {
            **_outer(),
            **_layers(
                32, 256, {"attn_norm": (), **dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), (2, 256))}
            ),
        },
    ),
    "hybrid": Tiny("lfm2", _keys(4, 8, [0, 2, 0, 2], **{"shortconv.l_cache": 3}), _HYBRID),
    "latent": Tiny(
        "deepseek2",
        _keys(
            8,
            128,
            1,
            expert_count=4,
            expert_used_count=2,
            expert_shared_count=1,
            expert_feed_forward_length=256,
            leading_dense_block_count=1,
            **{"attention.kv_lora_rank": 64, "attention.q_lora_rank": 64, "attention.key_length_mla": 64},
        ),
        _LATENT,
    ),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "pure": {"pure": True},
    "leave output": {"leave_output": True},
    "output and embedding": {"output_type": "q5_k", "token_embedding_type": "q3_k"},
    "patterns": {"tensor_types": (("attn_v", "q8_0"), (r"blk\.[0-3]\.ffn", "iq4_nl"), ("attn_k", "bf16"))},
}
"""Ways to depart from q4_k_m, which are recorded of the model "dense"."""

_WRITTEN: dict[str, Callable[[gguf.GGUFWriter, str, Any], None]] = {
    "bool": lambda w, k, v: w.add_bool(k, v),
    "int": lambda w, k, v: w.add_uint32(k, v),
    "float": lambda w, k, v: w.add_float32(k, v),
    "str": lambda w, k, v: w.add_string(k, v),
    "list": lambda w, k, v: w.add_array(k, v),
}


def make(name: str, path: Path) -> Path:
    """Writes one of MODELS."""
    model = MODELS[name]
    writer = gguf.GGUFWriter(path, model.arch)
    writer.add_string("general.name", f"a tiny model: {name}")
    for key, value in model.keys.items():
        _WRITTEN[type(value).__name__](writer, f"{model.arch}.{key}", value)
    writer.add_file_type(1)  # not at the end, where both tools put theirs
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ü", ""])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    for tensor, values in _tensors(model):
        raw, dtype = _stored(values, model.dtype if values.ndim > 1 else "f32")
        writer.add_tensor(tensor, raw, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model: Tiny) -> Iterator[tuple[str, Array]]:
    for seed, (name, shape) in enumerate(model.tensors.items()):
        yield name, numbers(int(np.prod(shape)), seed).reshape(shape)


def _stored(values: Array, dtype: str) -> tuple[Array, gguf.GGMLQuantizationType | None]:
    if dtype == "bf16":
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16), gguf.GGMLQuantizationType.BF16
    return (values.astype(np.float16) if dtype == "f16" else values), None


def importance_of(name: str) -> dict[str, Array]:
    """An importance matrix for one of MODELS: float32 (matrices, columns) for each weight that is a matrix."""
    found = {}
    for seed, (tensor, shape) in enumerate(MODELS[name].tensors.items()):
        if len(shape) > 1:
            n = int(np.prod(shape[:-2])) * shape[-1]
            found[tensor] = (numbers(n, 1000 + seed) ** 2 + np.float32(0.01)).reshape(-1, shape[-1])
    return found
