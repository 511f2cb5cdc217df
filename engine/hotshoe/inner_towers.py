"""Encoders of pictures inside the file of their text model, as Ollama published them, with the names of mmproj files.

Source: the table in llama/compat of Ollama's repository. Nothing is copied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hotshoe_core.gguf import GGUFFile

__all__ = ["inner_tower"]

_HALF = [0.5, 0.5, 0.5]


class _Inner(NamedTuple):
    """The encoder in files of one architecture."""

    kind: str
    """The type of the projector."""
    defaults: Mapping[str, Any]
    """The values of keys that such files lack."""
    tensors: Mapping[str, str]
    """Other names of tensors: regular expressions, and what replaces them."""


_KNOWN = {
    "gemma3": _Inner(
        "gemma3",
        {"use_gelu": True, "vision.image_mean": _HALF, "vision.image_std": _HALF},
        {
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
}


def inner_tower(file: GGUFFile) -> GGUFFile | None:
    """Return the encoder in the file of a text model as a file of its own, opened again; None if it has none."""
    known = _KNOWN.get(file.architecture)
    if known is None or "v.blk.0.attn_q.weight" not in file.tensors:
        return None
    opened = GGUFFile(file.path)
    arch = file.architecture
    vision = {
        key: f"clip.{key.removeprefix(f'{arch}.')}" for key in opened.metadata if key.startswith(f"{arch}.vision.")
    }
    values: dict[str, Any] = dict.fromkeys(key for key in opened.metadata if key not in vision)
    values |= {f"clip.{key}": value for key, value in known.defaults.items() if f"clip.{key}" not in vision.values()}
    values |= {
        "general.architecture": "clip",
        "clip.projector_type": known.kind,
        "clip.vision.projection_dim": file.metadata.arch.get("embedding_length"),
    }
    tensors = {}
    for name, info in opened.tensors.items():
        if name.startswith(("v.", "mm.")):
            for pattern, new in known.tensors.items():
                name = re.sub(pattern, new, name)
            tensors[name] = info._replace(name=name)
    return opened.changed(opened.metadata.changed(vision, values), tensors)
