"""Dialects: files that have other names for keys and tensors. ``translate`` gives them GGUF's names, without a copy.

Ollama published models of its own engine in such files. Source: the table in llama/compat of its repository, and its
converters. A dialect is a row of DIALECTS.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hotshoe_core.gguf import GGUFArray, GGUFFile

__all__ = ["DIALECTS", "Dialect", "Translation", "translate"]

T = TypeVar("T")
Value = Any | Callable[[GGUFFile], Any]
"""A value of a key, or a function that gives it; None leaves the key as it is."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_CUT = ("tokens", "scores", "token_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What one kind of file says differently.

    Keys are without the name of the architecture, except those that begin with "tokenizer.".
    """

    arch: str
    """``general.architecture`` of such files."""
    marks: tuple[str, ...] = ()
    """A file is in this dialect if a key or a tensor matches one of these globs, or if the key after "!" is missing.
    (): every file of this architecture."""
    becomes: str | Callable[[GGUFFile], str] = ""
    """The architecture in GGUF, if it has another name there."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Other names of keys."""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    """The values of keys that such files lack."""
    values: Mapping[str, Value] = field(default_factory=dict)
    """The values of keys that are wrong in such files, or mean something else."""
    dropped: Mapping[str, tuple[Any, ...] | str] = field(default_factory=dict)
    """Keys that say nothing beyond the others if they have one of these values; () for any value. A text names the key
    that says the same, and which the file must have too."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Tensors with too many rows: they have as many as another tensor has."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Other names of tensors: regular expressions, and what replaces them."""


class Translation(NamedTuple):
    """A file with GGUF's names, and how it was translated."""

    file: GGUFFile
    dialect: str = ""
    """Whose dialect, and of which architecture; "" if the file has GGUF's names already."""
    n_keys: int = 0
    """Keys that were renamed, added, changed or removed."""
    n_tensors: int = 0
    """Tensors that were renamed."""


def translate(file: GGUFFile) -> Translation:
    """Return the file with GGUF's names. Closing it closes ``file``."""
    arch = file.metadata.get("general.architecture", None, str)
    if all(dialect.arch != arch for dialect in DIALECTS):
        return Translation(file)
    found = Translation(_unread(file))  # keys that are looked at here do not count as read
    for dialect in DIALECTS:
        if found.file.metadata.get("general.architecture") == dialect.arch and _speaks(found.file, dialect):
            now = _translate(found.file, dialect)
            found = Translation(now.file, "", found.n_keys + now.n_keys, found.n_tensors + now.n_tensors)
    if not (found.n_keys or found.n_tensors):
        return Translation(file)
    return found._replace(dialect=f"Ollama's {arch}", file=_unread(found.file))


def _unread(file: GGUFFile) -> GGUFFile:
    return file.changed(file.metadata.changed({}, {}), file.tensors)


def _speaks(file: GGUFFile, dialect: Dialect) -> bool:
    keys = {key.removeprefix(f"{dialect.arch}.") for key in file.metadata}
    for mark in dialect.marks:
        if mark[1:] not in keys if mark[0] == "!" else fnmatch.filter([*keys, *file.tensors], mark):
            return True
    return not dialect.marks


def _translate(file: GGUFFile, dialect: Dialect) -> Translation:
    becomes = dialect.becomes(file) if callable(dialect.becomes) else dialect.becomes
    metadata, old, arch = file.metadata, dialect.arch, becomes or dialect.arch

    def whole(key: str, arch: str) -> str:
        return key if key.startswith("tokenizer.") else f"{arch}.{key}"

    renamed = {k: f"{arch}{k.removeprefix(old)}" for k in metadata if becomes and k.startswith(f"{old}.")}
    renamed |= {whole(k, old): whole(new, arch) for k, new in dialect.keys.items() if whole(k, old) in metadata}
    now = {renamed.get(key, key): metadata[key] for key in metadata}
    values = {whole(k, arch): v for k, v in dialect.defaults.items() if whole(k, arch) not in now}
    values |= {whole(k, arch): v for k, v in dialect.values.items()}
    values = {key: value(file) if callable(value) else value for key, value in values.items()}
    values = {key: value for key, value in values.items() if value is not None and now.get(key) != value}
    for key, known in dialect.dropped.items():
        name = whole(key, arch)
        if isinstance(known, str):
            said = whole(known, arch) in now.keys() | values.keys()
        else:
            said = not known or now.get(name) in known
        if said and name in now and name not in values:
            values[name] = None
    if becomes:
        values["general.architecture"] = becomes
    tensors = {}
    for name, info in file.tensors.items():
        other = name
        for pattern, new in dialect.tensors.items():
            other = re.sub(pattern, new, other)
        name = name if other in file.tensors else other
        n = next(iter(file.tensors[dialect.rows[name]].shape), 0) if dialect.rows.get(name) in file.tensors else 0
        if 0 < n < (*info.shape, 0)[0]:
            info = info._replace(shape=(n, *info.shape[1:]), nbytes=info.nbytes // info.shape[0] * n)
        tensors[name] = info._replace(name=name)
    n_tensors = len(tensors.keys() - file.tensors.keys())
    changed = file.changed(metadata.changed(renamed, values), tensors)
    return Translation(changed, "", len(renamed.keys() | values.keys()), n_tensors)


# What the rows below need to know of a file


def _key(file: GGUFFile, key: str, type: type[T]) -> T | None:
    """The value of a key of the file's architecture, or None. Raises ModelFileError if it has another type."""
    return file.metadata.arch.get(key, None, type)


def _size(axis: int, name: str) -> Callable[[GGUFFile], int | None]:
    """The size of an axis of a tensor, or None if the file lacks it."""
    return lambda file: next(iter(file.tensors[name].shape[axis:]), None) if name in file.tensors else None


def _first(key: str, tensor: str) -> Callable[[GGUFFile], GGUFArray | None]:
    """An array of the vocabulary, with one item for each row of a tensor: what follows are tokens of pictures."""

    def get(file: GGUFFile) -> GGUFArray | None:
        array, info = file.metadata.get(key), file.tensors.get(tensor)
        if info is None or not info.shape or not isinstance(array, GGUFArray) or len(array) <= info.shape[0]:
            return None
        return array.first(info.shape[0])

    return get


def _vocabulary(tensor: str) -> dict[str, Value]:
    return {(key := f"tokenizer.ggml.{name}"): _first(key, tensor) for name in _CUT}


def _sections(*keys: str, default: list[int] | None = None) -> Callable[[GGUFFile], list[int] | None]:
    """Four sections of M-RoPE, from the first key that the file has, which may leave out a last zero."""

    def get(file: GGUFFile) -> list[int] | None:
        found = next((value for key in keys if (value := _key(file, key, list)) is not None), default)
        return None if found is None else [*found, 0, 0, 0, 0][:4]

    return get


def _sections_of_qwen3(file: GGUFFile) -> list[int] | None:
    """24, 20 and 20 of the 64 pairs of a head."""
    n = (_key(file, "attention.key_length", int) or 0) // 2
    return [n - 2 * (5 * n // 16), 5 * n // 16, 5 * n // 16, 0] if n else None


def _largest(key: str) -> Callable[[GGUFFile], int | None]:
    """The largest number of an array: those of layers without attention are 0."""

    def get(file: GGUFFile) -> int | None:
        value = file.metadata.arch.get(key)
        return max(value, default=None) if isinstance(value, GGUFArray) and value.type.code else None

    return get


def _pre(name: str) -> Callable[[GGUFFile], str | None]:
    """A pre-tokenizer, if the file names none."""
    return lambda file: name if file.metadata.get("tokenizer.ggml.pre") in (None, "", "default") else None


def _pre_of_llama3(file: GGUFFile) -> str | None:
    tokens, found = file.metadata.get("tokenizer.ggml.tokens"), _pre("llama-bpe")(file)
    # last, because it decodes all tokens
    is_llama3 = found and isinstance(tokens, GGUFArray) and len(tokens) > 128_009 and tokens[128_009] == "<|eot_id|>"
    return found if is_llama3 else None


def _long(value: Value) -> Callable[[GGUFFile], Any]:
    """A value for models with the longest contexts of Gemma 3."""
    return lambda file: value if (_key(file, "context_length", int) or 0) >= 131_072 else None


def _charsmap(file: GGUFFile) -> list[int] | None:
    """Characters of a base64 text, to bytes."""
    array = file.metadata.get("tokenizer.ggml.precompiled_charsmap")
    if not isinstance(array, GGUFArray) or array.type.label != "str":
        return None
    try:
        return list(base64.b64decode("".join(array), validate=True))
    except (binascii.Error, ValueError):
        return None  # the tokenizer reports it


def _stop(number: int) -> Callable[[GGUFFile], int | None]:
    """A token that ends a turn: one of ``eos_token_ids``."""

    def get(file: GGUFFile) -> int | None:
        ids = file.metadata.get("tokenizer.ggml.eos_token_ids")
        return int(ids[number]) if isinstance(ids, GGUFArray) and ids.type.code and len(ids) > number else None

    return get


def _rotated(file: GGUFFile) -> int | None:
    n, part = _key(file, "attention.key_length", int), _key(file, "rope.partial_rotary_factor", float)
    return None if n is None else int(n * (1.0 if part is None or not 0 < part <= 1 else part))


_EACH_LAYER = "per_layer_token_embd.weight"


def _too_long(file: GGUFFile) -> bool:
    """Whether the vocabulary has tokens of pictures and sound, which have no row in the embedding of each layer."""
    tokens, info = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get(_EACH_LAYER)
    return isinstance(tokens, GGUFArray) and info is not None and len(tokens) > (*info.shape, len(tokens))[0]


def _token_types(file: GGUFFile) -> list[int] | None:
    """The types of tokens, with those of bytes (6), and unused ones that are normal (1)."""
    tokens, types = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if tokens.type.label != "str" or not isinstance(types, GGUFArray):
        return None
    if not types.type.code or len(types) != len(tokens):
        return None
    known = (6 if _BYTE.fullmatch(token) else 1 if token.startswith("<unused") else 0 for token in tokens)
    found = [new or old for new, old in zip(known, types, strict=True)]
    return found[: file.tensors[_EACH_LAYER].shape[0]]


def _mla_key_length(file: GGUFFile) -> int | None:
    rank, rotated = (_key(file, key, int) for key in ("attention.kv_lora_rank", "rope.dimension_count"))
    return None if rank is None or rotated is None else rank + rotated


_YARN = {f"rope.scaling.{name}": f"rope.scaling.yarn_{name}" for name in ("beta_fast", "beta_slow")}
_PICTURES = dict.fromkeys(
    (
        *("image_token_id", "image_token_index", "image_start_token_id", "image_end_token_id", "spatial_merge_size"),
        *("video_token_id", "video_start_token_id", "video_end_token_id"),
        *("vision_start_token_id", "vision_end_token_id"),
    ),
    (),
)
_QWEN35: dict[str, Any] = {
    "marks": ("*.ssm_dt", "ssm.v_head_reordered", "rope.mrope_interleaved", "image_token_id", "mtp.*", "v.*"),
    "keys": {"norm_top_k_prob": "expert_weights_norm"},
    "values": {
        "attention.head_count_kv": _largest("attention.head_count_kv"),
        "rope.dimension_sections": _sections("rope.dimension_sections", "mrope_sections"),
    },
    "dropped": _PICTURES
    | {
        "ssm.v_head_reordered": (True,),
        "rope.mrope_interleaved": (True,),
        "mrope_sections": "rope.dimension_sections",
        "rope.mrope_section": "rope.dimension_sections",
    },
    "tensors": {r"\.ssm_dt$": ".ssm_dt.bias"},
}
_QWEN3VL: dict[str, Any] = {
    "defaults": {
        "rope.dimension_sections": _sections_of_qwen3,
        "n_deepstack_layers": lambda file: len(_key(file, "vision.deepstack_visual_indexes", list) or ()),
    },
    "dropped": _PICTURES,
}
DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        arch="gemma3",
        marks=("mm.*", "v.*", "rope.global.freq_base", "rope.local.freq_base", "!attention.layer_norm_rms_epsilon"),
        keys={"rope.global.freq_base": "rope.freq_base", "rope.local.freq_base": "rope.freq_base_swa", **_YARN}
        | {"rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor"},
        defaults={
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "rope.scaling.type": _long("linear"),
            "rope.scaling.factor": _long(8.0),
        },
        values=_vocabulary("token_embd.weight"),
    ),
    Dialect(
        arch="gemma3",
        marks=("dense.0.weight",),
        becomes="gemma-embedding",
        defaults={
            "rope.freq_base_swa": 1e4,
            "dense_2_feat_in": _size(1, "dense.0.weight"),
            "dense_2_feat_out": _size(0, "dense.0.weight"),
            "dense_3_feat_in": _size(1, "dense.1.weight"),
            "dense_3_feat_out": _size(0, "dense.1.weight"),
        },
        dropped={"attention.causal": (False,), "attention.sliding_window_pattern": ()},
        tensors={r"^dense\.0\.": "dense_2.", r"^dense\.1\.": "dense_3.", r"^norm\.": "output_norm."},
    ),
    Dialect(arch="bert", values={"tokenizer.ggml.precompiled_charsmap": _charsmap}),
    Dialect(
        arch="gemma3n",
        values=_vocabulary(_EACH_LAYER)
        | {
            "tokenizer.ggml.model": lambda f: "llama" if _too_long(f) else None,
            "tokenizer.ggml.token_type": lambda f: _token_types(f) if _too_long(f) else None,
        },
        rows={"token_embd.weight": _EACH_LAYER},
    ),
    Dialect(
        arch="gemma4",
        values={
            "tokenizer.ggml.model": lambda f: "gemma4" if f.metadata.get("tokenizer.ggml.model") == "llama" else None
        },
        tensors={r"\.ffn_gate_inp\.per_expert_scale$": ".ffn_down_exps.scale"},
    ),
    Dialect(arch="qwen35", **_QWEN35),
    Dialect(arch="qwen35moe", **_QWEN35),
    Dialect(
        arch="qwen3next",
        marks=("*.ssm_dt",),
        keys={"norm_top_k_prob": "expert_weights_norm"},
        values={"attention.head_count_kv": _largest("attention.head_count_kv")},
        tensors={r"\.ssm_dt$": ".ssm_dt.bias"},
    ),
    Dialect(
        arch="laguna",
        marks=("rope.swa.*", "*.attn_g.weight"),
        keys={f"rope.swa.{name}": f"rope.{name}_swa" for name in ("dimension_count", "freq_base")} | _YARN,
        dropped={
            "attention.layer_types": "attention.sliding_window_pattern",
            "attention.sink_enabled": (False,),
            "attention.gating_type": (1,),
            "attention.qk_norm": (True,),
            "decoder_sparse_step": (1,),
            "dense_layers": "leading_dense_block_count",
            "rope.partial_rotary_factor": "rope.dimension_count",
            "rope.swa.partial_rotary_factor": "rope.dimension_count_swa",
            "rope.swa.scaling.type": ("linear", "none", "default"),
            "rope.swa.scaling.factor": (1.0,),
        },
        tensors={r"\.attn_g\.weight$": ".attn_gate.weight"},
    ),
    Dialect(
        arch="gptoss",
        becomes="gpt-oss",
        defaults={
            "expert_feed_forward_length": _size(1, "blk.0.ffn_gate_exps.weight"),
            "rope.scaling.type": "yarn",
        },
        values={"tokenizer.ggml.pre": "gpt-4o"},
        tensors={
            r"\.attn_out\.": ".attn_output.",
            r"\.attn_sinks$": ".attn_sinks.weight",
            r"\.ffn_norm\.": ".post_attention_norm.",
        },
    ),
    Dialect(
        arch="lfm2",
        marks=("output_norm.weight",),
        values={"tokenizer.ggml.pre": "lfm2", "feed_forward_length": _size(0, "blk.0.ffn_gate.weight")},
    ),
    # the factor is that of sine and cosine together, as in transformers; Ollama's engine applied YaRN's own in addition
    Dialect(arch="olmo3", becomes="olmo2", keys={"rope.scaling.attn_factor": "rope.scaling.yarn_attn_factor"}),
    Dialect(
        arch="mistral3",
        marks=("v.*", "mm.*", "rope.scaling.beta_fast", "rope.scaling.mscale_all_dim", "rope.scaling_beta"),
        keys={
            **_YARN,
            "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
            "rope.scaling_beta": "attention.temperature_scale",
        },
        values={"tokenizer.ggml.pre": _pre("tekken")},
        dropped=_PICTURES | {"rope.scaling.mscale": (1.0,)},
    ),
    Dialect(
        arch="glm4moelite",
        becomes="deepseek2",
        defaults={
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "tokenizer.ggml.eot_token_id": _stop(1),
            "tokenizer.ggml.eom_token_id": _stop(2),
        },
        values={
            # a head's sizes, which DeepSeek's keys give for a key and a value of the cache
            "attention.key_length_mla": lambda file: _key(file, "attention.key_length", int),
            "attention.value_length_mla": lambda file: _key(file, "attention.value_length", int),
            "attention.head_count_kv": 1,
            "attention.key_length": _mla_key_length,
            "attention.value_length": lambda file: _key(file, "attention.kv_lora_rank", int),
            "tokenizer.ggml.pre": "glm4",
        },
    ),
    Dialect(
        arch="qwen25vl",
        becomes="qwen2vl",
        defaults={
            "rope.dimension_sections": _sections("rope.mrope_section", "rope.dimension_sections", default=[16, 24, 24])
        },
        dropped=_PICTURES | {"rope.mrope_section": "rope.dimension_sections"},
    ),
    Dialect(arch="qwen3vl", **_QWEN3VL),
    Dialect(arch="qwen3vlmoe", **_QWEN3VL),
    Dialect(
        arch="glmocr",
        becomes="glm4",
        defaults={
            "rope.dimension_sections": _sections("rope.mrope_section"),
            "rope.dimension_count": _rotated,
        },
        values={"tokenizer.ggml.pre": "chatglm-bpe"},
        dropped=_PICTURES
        | {"rope.mrope_section": "rope.dimension_sections", "rope.partial_rotary_factor": "rope.dimension_count"},
        tensors={
            r"\.attn_out\.": ".attn_output.",
            r"\.post_attn_norm\.": ".post_attention_norm.",
            r"\.post_ffn_norm\.": ".post_ffw_norm.",
        },
    ),
    Dialect(
        arch="nemotron_h_omni",
        becomes=lambda file: "nemotron_h_moe" if _key(file, "expert_count", int) else "nemotron_h",
        tensors={r"\.ffn_latent_in\.": ".ffn_latent_down.", r"\.ffn_latent_out\.": ".ffn_latent_up."},
    ),
    Dialect(
        arch="nemotron_h_moe",
        marks=("*.ffn_latent_in.weight",),
        defaults={"moe_latent_size": lambda file: _latent(file)},
        tensors={r"\.ffn_latent_in\.": ".ffn_latent_down.", r"\.ffn_latent_out\.": ".ffn_latent_up."},
    ),
    Dialect(
        arch="llama",
        values={"tokenizer.ggml.pre": _pre_of_llama3},
    ),
)


def _latent(file: GGUFFile) -> int | None:
    return next((t.shape[0] for name, t in file.tensors.items() if name.endswith(".ffn_latent_in.weight")), None)
