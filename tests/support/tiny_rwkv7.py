"""A tiny RWKV-7 with random weights: as flash-linear-attention saves it, and as RWKV's own package reads it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny_bert import write_safetensors

__all__ = ["CONFIG", "IDS", "TEXTS", "make_rwkv7", "published"]

Array = np.ndarray[Any, Any]

CONFIG: dict[str, Any] = {
    "architectures": ["RWKV7ForCausalLM"],
    "model_type": "rwkv7",
    "hidden_act": "sqrelu",
    "hidden_size": 128,
    "head_dim": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 192,
    "norm_eps": 1e-5,
    "norm_first": True,
    "norm_bias": True,
    "decay_low_rank_dim": 16,
    "a_low_rank_dim": 12,
    "v_low_rank_dim": 8,
    "gate_low_rank_dim": 20,
    "vocab_size": 300,
    "attn": None,
    "tie_word_embeddings": False,
}
IDS = [int(i) for i in np.random.default_rng(2).integers(2, 250, 40)]
TEXTS = [
    "the theory: he said 'hello'\n\n\n\nand left\n\n",
    "\\n is not a newline, \n is",
    "世界 und Ähnliches, ä世",
    "\x00\x7f\x80ÿ tabs\t\r\n",
    "",
]
_RANKS = {"w": 16, "a": 12, "v": 8, "g": 20}


def _drawn(name: str, *shape: int) -> Array:
    """Weights that follow from the name alone: matrices keep the length of a vector, norms are near 1."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    scale = 0.3 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
    return (noise * scale + ("norm.weight" in name)).astype(np.float32)


def weights() -> dict[str, Array]:
    """The tensors by the names of flash-linear-attention."""
    dim, heads, ff, vocab = 128, 2, 192, 300
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (vocab, dim),
        "model.norm.weight": (dim,),
        "model.norm.bias": (dim,),
        "lm_head.weight": (vocab, dim),
    }
    for i in range(3):
        layer = f"model.layers.{i}."
        for norm in ("attn_norm", "ffn_norm", "attn.g_norm", *(["pre_norm"] if i == 0 else [])):
            shapes |= {f"{layer}{norm}.weight": (dim,), f"{layer}{norm}.bias": (dim,)}
        shapes |= {f"{layer}attn.x_{x}": (1, 1, dim) for x in "rwkvag"}
        shapes |= {f"{layer}attn.{x}_proj.weight": (dim, dim) for x in "rkvo"}
        for x, rank in _RANKS.items():
            if x == "v" and i == 0:
                continue
            shapes[f"{layer}attn.{x}_lora.lora.0.weight"] = (rank, dim)
            shapes[f"{layer}attn.{x}_lora.lora.2.weight"] = (dim, rank)
            if x != "g":
                shapes[f"{layer}attn.{x}_lora.lora.2.bias"] = (dim,)
        shapes |= {f"{layer}attn.k_k": (dim,), f"{layer}attn.k_a": (dim,), f"{layer}attn.r_k": (heads, 64)}
        shapes |= {f"{layer}ffn.x_k": (dim,)}
        shapes |= {f"{layer}ffn.key.weight": (ff, dim), f"{layer}ffn.value.weight": (dim, ff)}
    return {name: _drawn(name, *shape) for name, shape in shapes.items()}


def make_rwkv7(folder: Path, **changes: Any) -> Path:
    """Write the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    write_safetensors(folder / "model.safetensors", weights())
    tokens: list[Any] = [bytes([i]) if i > 127 else chr(i) for i in range(256)]
    tokens += [" the", "he", "the", "\n\n\n", "\n\n", "ä", "世界", b"\xe4\xb8", "'", "\\n"]
    tokens = list(dict.fromkeys(tokens))
    sizes = [len(t if isinstance(t, bytes) else t.encode()) for t in tokens]
    lines = [f"{i} {token!r} {size}\n" for i, (token, size) in enumerate(zip(tokens, sizes), 1)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def published() -> dict[str, Array]:
    """The same tensors by the names, and with the axes, of RWKV's own files."""
    names = {"model.embeddings": "emb", "model.norm": "ln_out", "lm_head": "head", "model.layers.": "blocks."}
    names |= {".pre_norm": ".ln0", "attn.g_norm": "att.ln_x", ".attn_norm": ".ln1", ".ffn_norm": ".ln2"}
    names |= {"attn.r_proj": "att.receptance", "attn.k_proj": "att.key", "attn.v_proj": "att.value"}
    names |= {"attn.o_proj": "att.output", ".attn.": ".att."}
    found: dict[str, Array] = {}
    for name, value in weights().items():
        for theirs, own in names.items():
            name = name.replace(theirs, own)
        for part, own in ((".lora.0.weight", "1"), (".lora.2.weight", "2"), (".lora.2.bias", "0")):
            if name.endswith(part):
                name, value = name.replace(f"_lora{part}", own), value.T
        found[name] = value
    return found
