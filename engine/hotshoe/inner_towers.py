"""Encoders of pictures inside the file of their text model, as Ollama published them, with the names of mmproj files.

Source: the converters of Ollama's repository, and the table in its llama/compat. Weights that such files hold in
another order are rearranged when they are loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotshoe_core import DType
from hotshoe_core.errors import ModelFileError, UnknownArchitectureError
from hotshoe_core.gguf import GGUFArray, GGUFFile
from hotshoe_core.gguf import TensorInfo as Info

__all__ = ["inner_tower"]

_HALF = [0.5, 0.5, 0.5]
_MOST_LAYERS = 1000
_CLIP = {
    "vision.image_mean": [0.48145466, 0.4578275, 0.40821073],
    "vision.image_std": [0.26862954, 0.26130258, 0.27577711],
}
_CHANNELS = {"vision.num_channels": (0, 3)}
_PATCHES = {
    r"^v\.patch_embd_0\.weight$": "v.patch_embd.weight",
    r"^v\.patch_embd_1\.weight$": "v.patch_embd.weight.1",
}
_FRAMES = {"vision.temporal_patch_size": (2,), "vision.rope.freq_base": (10_000.0,)}

Tensors = dict[str, Info]
Value = Any | Callable[[GGUFFile], Any]
"""A value of a key, or a function that gives it; None for no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inner:
    """The encoder in files of one architecture. Keys are without the name of the architecture."""

    kind: str
    """The type of the projector."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Other names of keys."""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    """The values of keys that such files lack."""
    dropped: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Keys that say nothing if they have one of these values; () for any value."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Other names of tensors: regular expressions, and what replaces them."""
    rearrange: Callable[[GGUFFile, Tensors], None] | None = None
    """Changes the tensors that are more than renamed. Gets the file, and its tensors by their new names."""


def _number(file: GGUFFile, key: str) -> int:
    return file.metadata.arch.require(key, int)


def _numbers(file: GGUFFile, key: str) -> list[int]:
    value = file.metadata.arch.get(key)
    if not isinstance(value, GGUFArray) or not all(type(number) is int for number in value):
        raise file.metadata.arch.error(key, "expected an array of whole numbers")
    return list(value)


def _n_layers(file: GGUFFile) -> int:
    key = "vision.block_count"
    n = _number(file, key)
    if not 1 <= n <= _MOST_LAYERS:
        raise file.metadata.arch.error(key, f"{n}; expected 1 to {_MOST_LAYERS}")
    return n


def _made(info: Info, name: str, shape: tuple[int, ...], data: Callable[[], Any]) -> Info:
    return info._replace(name=name, shape=shape, nbytes=info.nbytes * math.prod(shape) // (info.size or 1), made=data)


# Qwen


def _period(file: GGUFFile) -> int:
    """The n for which every n-th layer sees the whole picture."""
    key, n = "vision.fullatt_block_indexes", _n_layers(file)
    layers = _numbers(file, key)
    period = layers[0] + 1 if layers else 0
    if period < 1 or layers != list(range(period - 1, n, period)):
        raise file.metadata.arch.error(key, f"{layers}; expected every n-th of {n} layers")
    return period


def _split_frames(file: GGUFFile, tensors: Tensors) -> None:
    """One convolution over two frames, (out * in, 2, h, w), to one for each frame, (out, in, h, w)."""
    name = "v.patch_embd.weight"
    info = tensors.get(name)
    if info is None or len(info.shape) != 4 or info.shape[0] % 3 or info.shape[1] != 2 or info.dtype.block_size > 1:
        raise ModelFileError(
            f"tensor v.patch_embed.weight is {'missing' if info is None else list(info.shape)}; expected "
            "(3 * channels, 2, height, width)",
            path=file.path,
            hint="get the file again, or give the encoder as a file of its own (mmproj)",
        )
    rows, _, h, w = info.shape

    def frame(number: int) -> Callable[[], Any]:
        return lambda: file.data("v.patch_embed.weight").reshape(rows, 2, -1)[:, number].reshape(-1)

    for number, target in enumerate((name, f"{name}.1")):
        tensors[target] = _made(info, target, (rows // 3, 3, h, w), frame(number))


def _deepstack(file: GGUFFile) -> list[int]:
    key = "vision.deepstack_visual_indexes"
    array = file.metadata.arch.get(key)
    return _numbers(file, key) if isinstance(array, GGUFArray) and len(array) else []


def _qwen3(file: GGUFFile, tensors: Tensors) -> None:
    _split_frames(file, tensors)
    layers = _deepstack(file)
    for name in [name for name in tensors if name.startswith("v.deepstack_merger.")]:
        number, rest = name.removeprefix("v.deepstack_merger.").split(".", 1)
        if number.isdigit() and int(number) < len(layers):
            new = f"v.deepstack.{layers[int(number)]}.{rest}"
            tensors[new] = tensors.pop(name)._replace(name=new)


def _deepstack_layers(file: GGUFFile) -> list[bool]:
    layers = _deepstack(file)
    return [i in layers for i in range(_n_layers(file))]


def _half(key: str) -> Callable[[GGUFFile], int | None]:
    return lambda file: (file.metadata.arch.get(key, None, int) or 0) // 2 or None


def _first_axis(name: str) -> Callable[[GGUFFile], int | None]:
    return lambda file: next(iter(file.tensors[name].shape), None) if name in file.tensors else None


_QWEN3 = _Inner(
    kind="qwen3vl_merger",
    keys={"vision.shortest_edge": "vision.image_min_pixels", "vision.longest_edge": "vision.image_max_pixels"},
    defaults={
        "use_gelu": True,
        "vision.image_mean": _HALF,
        "vision.image_std": _HALF,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.feed_forward_length": _first_axis("v.blk.0.mlp.linear_fc1.weight"),
        "vision.image_size": lambda file: (
            math.isqrt(_first_axis("v.pos_embed.weight")(file) or 1) * _number(file, "vision.patch_size")
        ),
        "vision.is_deepstack_layers": _deepstack_layers,
    },
    dropped=_CHANNELS
    | _FRAMES
    | {"vision.deepstack_visual_indexes": (), "vision.image_min_pixels": (0,), "vision.image_max_pixels": (0,)},
    tensors={
        r"^v\.merger\.norm\.": "v.post_ln.",
        r"^v\.merger\.linear_fc1\.": "mm.0.",
        r"^v\.merger\.linear_fc2\.": "mm.2.",
        r"^v\.pos_embed\.": "v.position_embd.",
        r"^v\.patch_embed\.": "v.patch_embd.",
        r"\.norm([12])\.": r".ln\1.",
        r"\.mlp\.linear_fc1\.": ".ffn_up.",
        r"\.mlp\.linear_fc2\.": ".ffn_down.",
        r"^(v\.deepstack_merger\.\d+)\.linear_fc": r"\1.fc",
    },
    rearrange=_qwen3,
)


# Mistral


def _interleave_heads(file: GGUFFile, tensors: Tensors) -> None:
    """The rows of queries and keys, from RoPE pairs (i, i + head_dim / 2) to (2i, 2i + 1)."""
    n_heads = _number(file, "vision.attention.head_count")

    def reordered(name: str) -> Callable[[], Any]:
        rows = file.tensors[name].shape[0]
        return lambda: file.data(name).reshape(n_heads, 2, rows // n_heads // 2, -1).swapaxes(1, 2).reshape(-1)

    for name in [name for name in tensors if re.fullmatch(r"v\.blk\.\d+\.attn_[qk]\.weight", name)]:
        info = tensors[name]
        if n_heads < 1 or len(info.shape) != 2 or info.shape[0] % (2 * n_heads):
            raise ModelFileError(
                f"tensor {name} is {list(info.shape)}, which {n_heads} heads of an even size do not divide",
                path=file.path,
                hint="get the file again",
            )
        tensors[name] = _made(info, name, info.shape, reordered(name))


# Gemma 4

_CLIPPED = [f"{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down")]


def _unpack_limits(file: GGUFFile, tensors: Tensors) -> None:
    """The limits of linear layers: four numbers each, in one tensor. Some files also have a tensor for each."""
    packed = tensors.pop("v.clamp_data", None)
    if packed is None or "v.blk.0.attn_q.input_min" in tensors:
        return
    n_layers, ends = _n_layers(file), ("input_min", "input_max", "output_min", "output_max")
    if packed.dtype is not DType.F32 or packed.shape != ((n_layers * len(_CLIPPED) + 1) * len(ends),):
        raise ModelFileError(
            f"tensor v.clamp_data is {packed.dtype.name}{list(packed.shape)}; expected four F32 numbers for each of "
            f"the linear layers in {n_layers} layers, and four more",
            path=file.path,
            hint="get the file again",
        )
    offset = packed.offset
    for layer in range(n_layers):
        for part in _CLIPPED:
            for end in ends:
                name = f"v.blk.{layer}.{part.removesuffix('.weight')}.{end}"
                tensors[name] = packed._replace(name=name, shape=(1,), nbytes=4, offset=offset)
                offset += 4


_KNOWN: Mapping[str, _Inner] = {
    "gemma3": _Inner(
        kind="gemma3",
        defaults={"use_gelu": True, "vision.image_mean": _HALF, "vision.image_std": _HALF},
        dropped=_CHANNELS,
        tensors={
            r"^v\.patch_embedding\.": "v.patch_embd.",
            r"^v\.position_embedding\.": "v.position_embd.",
            r"^v\.post_layernorm\.": "v.post_ln.",
            r"\.layer_norm([12])\.": r".ln\1.",
            r"\.attn_output\.": ".attn_out.",
            r"\.mlp\.fc1\.": ".ffn_up.",
            r"\.mlp\.fc2\.": ".ffn_down.",
            r"^mm\.mm_": "mm.",
        },
    ),
    "gemma4": _Inner(
        kind="gemma4v",
        defaults={"vision.image_size": 224, "vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3},
        dropped=_CHANNELS,
        rearrange=_unpack_limits,
    ),
    "glmocr": _Inner(
        kind="glm4v",
        keys={
            "vision.intermediate_size": "vision.feed_forward_length",
            "vision.attention.layer_norm_rms_epsilon": "vision.attention.layer_norm_epsilon",
        },
        defaults={
            "use_silu": True,
            # the file counts the pixels of two equal frames
            "vision.image_min_pixels": _half("vision.min_pixels"),
            "vision.image_max_pixels": _half("vision.max_pixels"),
            **_CLIP,
        },
        dropped=_FRAMES | dict.fromkeys(("vision.out_hidden_size", "vision.min_pixels", "vision.max_pixels"), ()),
        tensors=_PATCHES,
    ),
    "mistral3": _Inner(
        kind="pixtral",
        keys={
            "spatial_merge_size": "vision.spatial_merge_size",
            "vision.rope.freq_base": "rope.freq_base",
            "vision.attention.key_length": "vision.attention.head_dim",
        },
        defaults={"use_silu": True, "vision.attention.layer_norm_epsilon": 1e-5, **_CLIP},
        dropped=_CHANNELS | {"vision.attention.head_dim": (0,)},
        tensors={
            r"^v\.patch_conv\.": "v.patch_embd.",
            r"^v\.encoder_norm\.": "v.pre_ln.",
            r"\.attn_output\.": ".attn_out.",
            r"\.attn_norm\.": ".ln1.",
            r"\.ffn_norm\.": ".ln2.",
            r"^mm\.linear_([12])\.": r"mm.\1.",
            r"^mm\.norm\.": "mm.input_norm.",
            r"^mm\.patch_merger\.merging_layer\.": "mm.patch_merger.",
        },
        rearrange=_interleave_heads,
    ),
    "mllama": _Inner(
        kind="mllama",
        defaults=_CLIP,
        # the names of the first files, whose encoder is a file of its own
        tensors={r"\.ln1\.": ".attn_norm.", r"\.ln2\.": ".ffn_norm.", r"\.attn_out\.": ".attn_output."},
    ),
    "qwen25vl": _Inner(
        kind="qwen2.5vl_merger",
        defaults={
            "use_silu": True,
            "vision.image_size": 560,
            "vision.n_wa_pattern": _period,
            "vision.feed_forward_length": _first_axis("v.blk.0.ffn_up.weight"),
            **_CLIP,
        },
        dropped=_CHANNELS
        | _FRAMES
        | {"vision.fullatt_block_indexes": (), "vision.window_size": (112,), "vision.spatial_patch_size": (0, 14)},
        tensors={
            r"^v\.merger\.ln_q\.": "v.post_ln.",
            r"^v\.merger\.mlp\.": "mm.",
            **_PATCHES,
        },
    ),
    "qwen3vl": _QWEN3,
    "qwen3vlmoe": _QWEN3,
    "qwen35": _QWEN3,
    "qwen35moe": _QWEN3,
}


def inner_tower(file: GGUFFile) -> GGUFFile | None:
    """Return the encoder in the file of a text model as a file of its own, opened again; None if it has none.

    Raises UnknownArchitectureError if hotshoe cannot read the encoder of such files; ModelFileError if it is damaged.
    """
    if not any(name.startswith("v.") for name in file.tensors):
        return None
    opened = GGUFFile(file.path)
    try:
        return _with_names(opened)
    except BaseException:
        opened.close()
        raise


def _with_names(opened: GGUFFile) -> GGUFFile:
    arch = opened.architecture
    known = _KNOWN.get(arch)
    if known is None:
        raise UnknownArchitectureError(
            f"{opened.path}: hotshoe reads no encoder of pictures inside files of {arch[:40]!r}",
            hint="get the model as two files, as llama.cpp has it: text and mmproj; hotshoe reads the encoders inside "
            f"files of {', '.join(sorted(_KNOWN))}",
        )
    own = {key.removeprefix(f"{arch}."): key for key in opened.metadata if key.startswith(f"{arch}.")}
    wanted = {key: whole for key, whole in own.items() if key.startswith("vision.") or key in known.keys}
    renamed = {whole: f"clip.{known.keys.get(key, key)}" for key, whole in wanted.items()}
    values: dict[str, Any] = dict.fromkeys(key for key in opened.metadata if key not in renamed)
    for key, value in known.defaults.items():
        if f"clip.{key}" not in renamed.values():
            values[f"clip.{key}"] = value(opened) if callable(value) else value
    for whole, new in renamed.items():
        neutral = known.dropped.get(new.removeprefix("clip."))
        if neutral is not None and (not neutral or opened.metadata[whole] in neutral):
            values[new] = None
    values |= {
        "general.architecture": "clip",
        "clip.projector_type": known.kind,
    }
    if "clip.vision.projection_dim" not in renamed.values():
        values["clip.vision.projection_dim"] = _number(opened, "embedding_length")
    tensors: Tensors = {}
    for name, info in opened.tensors.items():
        if name.startswith(("v.", "mm.")) and not name.startswith("mm.a."):
            for pattern, new in known.tensors.items():
                name = re.sub(pattern, new, name)
            tensors[name] = info._replace(name=name)
    if known.rearrange is not None:
        known.rearrange(opened, tensors)
    return opened.changed(opened.metadata.changed(renamed, values), tensors)
