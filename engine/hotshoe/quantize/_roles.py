"""The role of a tensor, from its name in a GGUF file, and whether it may be quantized at all."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from hotshoe_core.tensors.dtypes import DType

__all__ = ["Role", "may_quantize", "role_of"]


class Role(enum.Enum):
    """Roles of tensors that the mixes distinguish."""

    OUTPUT = enum.auto()
    EMBEDDING = enum.auto()
    QUERIES_KEYS_VALUES = enum.auto()
    LATENT = enum.auto()  # keys and values of latent attention
    VALUES = enum.auto()
    KEYS = enum.auto()
    QUERIES = enum.auto()
    ATTENTION_OUTPUT = enum.auto()
    UP = enum.auto()
    GATE = enum.auto()
    DOWN = enum.auto()
    OTHER = enum.auto()

    @property
    def is_values(self) -> bool:
        """True if the tensor contains the value matrix of attention, the matrix most sensitive to errors."""
        return self in (Role.VALUES, Role.QUERIES_KEYS_VALUES, Role.LATENT)


_NAMED = {
    "output.weight": Role.OUTPUT,
    "token_embd.weight": Role.EMBEDDING,
    "per_layer_token_embd.weight": Role.EMBEDDING,
}
_WITH_PART = {
    "attn_qkv.weight": Role.QUERIES_KEYS_VALUES,
    "attn_kv_b.weight": Role.LATENT,
    "attn_v.weight": Role.VALUES,
    "attn_k.weight": Role.KEYS,
    "attn_q.weight": Role.QUERIES,
    "attn_output.weight": Role.ATTENTION_OUTPUT,
    "ffn_up": Role.UP,
    "ffn_gate": Role.GATE,
    "ffn_down": Role.DOWN,
}


def role_of(name: str) -> Role:
    """The role of the tensor with this name."""
    if name in _NAMED:
        return _NAMED[name]
    return next((role for part, role in _WITH_PART.items() if part in name), Role.OTHER)


def _any_of(parts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, parts)))


# Matrices that are small, or whose errors affect everything after them. llama.cpp does not quantize them.
_KEPT = _any_of(
    (
        "_norm.weight",
        *("ffn_gate_inp.weight", "ffn_gate_tid2eid.weight"),  # routers of experts
        *("altup", "laurel", "per_layer_model_proj"),  # Gemma 3n
        *("ssm_conv1d", "shortconv.conv.weight"),
        *("indexer.k_proj.weight", "indexer.q_proj.weight"),  # sparse attention's choice of keys
        *(f"time_mix_{part}.weight" for part in ("first", *(f"{p}{i}" for p in "wva" for i in range(3)), "g1", "g2")),
        *(f"time_mix_{part}.weight" for part in ("decay_w1", "decay_w2", "lerp_fused")),  # RWKV
        *("attn_rel_b.weight", ".rel_pos", ".position_embd", "sam.pos_embd"),
        *("sam.neck.", "sam.net_", ".patch_embd", ".patch_merger"),  # images
        *("a.rvq.codebook", "mm.a.code_embd"),  # sounds
    )
)
_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})
_KEPT_OF = {
    "glm5-next": _any_of(
        (
            *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj"),
            *("indexer_compressor_gate", "indexer_compressor_ape"),
            *("ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight", "ssm_g_b.weight", "ssm_beta.weight"),
            *("attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight"),
        )
    )
}


def may_quantize(name: str, shape: tuple[int, ...], dtype: DType, architecture: str) -> bool:
    """True if the tensor is a weight that gets the type of the file. Other tensors keep their type."""
    if dtype.is_integer or dtype is DType.F64:
        return False
    while shape and shape[0] == 1:  # (1, n) is a vector
        shape = shape[1:]
    if len(shape) < 2 or not name.endswith("weight") or name in _KEPT_NAMES:
        return False
    kept = _KEPT_OF.get(architecture)
    return not _KEPT.search(name) and (kept is None or not kept.search(name))
