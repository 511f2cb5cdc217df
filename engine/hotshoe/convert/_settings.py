"""Settings: the content of config.json, which remembers what a converter read, so that nothing in it is ignored."""

from __future__ import annotations

from typing import Any

__all__ = ["ARITHMETIC", "ROPE_HARMLESS", "Settings", "unread_arithmetic"]

_ROPE = ("rope_parameters", "rope_scaling")
_EXPERT_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_OF_EXPERTS = {"decoder_sparse_step", "first_k_dense_replace", "mlp_only_layers", "moe_layer_freq", "n_group"} | {
    "norm_topk_prob",
    "routed_scaling_factor",
    "scoring_func",
}
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")

ARITHMETIC: dict[str, tuple[Any, ...]] = {
    "alibi": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "attention_chunk_size": (),
    "attention_multiplier": (),
    "attention_out_multiplier": (1.0,),
    "attn_logit_softcapping": (0.0,),
    "attn_output_gate": (False,),
    "attn_temperature_tuning": (False, 0),
    "clip_qkv": (),
    "decoder_sparse_step": (1,),
    "embedding_multiplier": (1.0,),
    "final_logit_softcapping": (0.0,),
    "first_k_dense_replace": (0,),
    "is_causal": (True,),
    "key_multiplier": (1.0,),
    "lm_head_multiplier": (1.0,),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "mlp_multipliers": ([1.0, 1.0],),
    "mlp_only_layers": ([],),
    "moe_layer_freq": (1,),
    "mup_enabled": (False,),
    "n_group": (0, 1),
    "no_rope_layer_interval": (),
    "no_rope_layers": ([],),
    "norm_topk_prob": (),
    "num_kv_shared_layers": (0,),
    "parallel_attn": (False,),
    "partial_rotary_factor": (1.0,),
    "position_embedding_type": ("absolute", "rope", "rotary"),  # tensors tell absolute positions from RoPE
    "qk_layernorm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1.0,),
    "rope_interleave": (False,),
    "rope_local_base_freq": (),
    "rotary_pct": (1.0,),
    "routed_scaling_factor": (1.0,),
    "router_logit_softcapping": (0.0,),
    "scale_depth": (),
    "scale_emb": (1, 1.0),
    "scoring_func": ("softmax",),
    "ssm_in_multiplier": (1.0,),
    "ssm_multipliers": ([1.0] * 5,),
    "swiglu_limit": (),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
"""Settings that change the arithmetic, but no tensor, and the values that change nothing, besides none at all."""

ROPE_HARMLESS = {
    "type": "the name of rope_type in older versions",
    "rope_theta": "read under this name, or the converter has a base of its own",
    "original_max_position_embeddings": "only some scalings use it, and they read it",
    "max_position_embeddings": "a copy of the setting outside",
    "mrope_interleaved": "orders the positions of pictures; those of text are equal",
    "finetuned": "says how the model was trained",
}
"""Settings of RoPE that need not be read, and why."""
_ROPE_NEUTRAL = {"truncate": (True,), "partial_rotary_factor": (1.0,), "factor": (1.0,)}


class Settings(dict[str, Any]):
    """A JSON object that remembers which of its keys were read. Objects inside it do so too."""

    __slots__ = ("_read",)

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({k: Settings(v) if isinstance(v, dict) else v for k, v in values.items()})
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or ``default``."""
        self._read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._read.add(str(key))
        return super().__contains__(key)

    def renamed(self, names: dict[str, str]) -> Settings:
        """A copy in which a key that ``names`` has as a value has another name, that of the entry."""
        copy = Settings(dict(self))
        copy |= {name: copy.pop(old) for name, old in names.items() if old in self}
        copy._read = set(self._read)
        return copy

    def unread(self) -> dict[str, Any]:
        """The keys with a value that no code has read, and their values."""
        return {k: v for k, v in self.items() if k not in self._read and v is not None}


def unread_arithmetic(config: Settings) -> list[str]:
    """The settings of config.json that change the arithmetic and that no code has read, as "name is value"."""
    unread = config.unread()
    found = [f"{key} is {value!r}" for key, value in unread.items() if _matters(key, value, config)]
    if unread.keys() & set(_ACTIVATIONS) and not {k for k in config if k not in unread} & set(_ACTIVATIONS):
        found += [f"{key} is {unread[key]!r}" for key in _ACTIVATIONS if key in unread]
    for name in _ROPE:
        if name not in unread and isinstance(settings := config.get(name), Settings):
            found += [f"{name}: {problem}" for problem in _rope_problems(settings)]
    return found


def _matters(key: str, value: Any, config: Settings) -> bool:
    if key == "sliding_window":
        used, limit = config.get("use_sliding_window") is not False, config.get("max_position_embeddings") or 0
        return used and not (type(value) is type(limit) is int and value >= limit)
    if key == "layer_types":
        return not isinstance(value, list) or value != ["full_attention"] * len(value)
    if key in _OF_EXPERTS and not any(config.get(count) for count in _EXPERT_COUNTS):
        return False
    return key in ARITHMETIC and value not in ARITHMETIC[key]


def _rope_problems(settings: Settings) -> list[str]:
    inner = [value for value in settings.values() if isinstance(value, Settings)]
    unread = {k: v for k, v in settings.unread().items() if k not in ROPE_HARMLESS and not isinstance(v, Settings)}
    return [
        *(f"{key} is {value!r}" for key, value in unread.items() if value not in _ROPE_NEUTRAL.get(key, ())),
        *(problem for values in inner for problem in _rope_problems(values)),
    ]
