"""Change the folders that transformers writes to those of models whose code is not in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as safetensors

__all__ = ["interleaved", "joined", "renamed", "save"]

Weights = dict[str, np.ndarray[Any, Any]]


def renamed(folder: Path, config: dict[str, str], names: dict[str, str], **more: Any) -> Weights:
    """Rename keys of config.json, and give it ``more``. Return the tensors, with other parts in their names."""
    values = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps({config.get(key, key): value for key, value in values.items()}))
    weights = {}
    for name, value in safetensors.load_file(folder / "model.safetensors").items():
        for old, new in names.items():
            name = name.replace(old, new)
        weights[name] = value
    return weights


def save(weights: Weights, folder: Path) -> None:
    """Write the tensors of the folder."""
    # the package writes the bytes of a view as they lie in memory
    whole = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    safetensors.save_file(whole, folder / "model.safetensors", {"format": "pt"})


def joined(weights: Weights, parts: tuple[str, ...], whole: str) -> None:
    """Put the rows of tensors whose names end with ``parts`` into one tensor for each layer."""
    for name in [name for name in weights if name.endswith(parts[0])]:
        start = name.removesuffix(parts[0])
        weights[start + whole] = np.concatenate([weights.pop(start + part) for part in parts])


def interleaved(value: np.ndarray[Any, Any], n_heads: int) -> np.ndarray[Any, Any]:
    """Rows of queries or keys for RoPE over pairs (2i, 2i + 1), from rows for pairs (i, i + head_dim / 2)."""
    pairs = value.reshape(n_heads, 2, -1, *value.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(pairs.reshape(value.shape))
