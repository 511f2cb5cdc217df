"""The same model in other forms that a GGUF file may have: each is an edit of all tensors, for ``rewrite``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import gguf
import numpy as np

from hotshoe_core.gguf import GGUFArray, GGUFFile
from tests.support.rewrite import Stored, rewrite

__all__ = ["dequantized", "joined", "scaled", "with_nextn"]

F32 = gguf.GGMLQuantizationType.F32
Tensors = dict[str, Stored]


def with_nextn(plain: Path, target: Path) -> Path:
    """The file with a drafting layer: the last layer again, and what all drafting layers have."""
    with GGUFFile(plain) as file:
        name, n = file.architecture, file.metadata.arch.require("block_count", int)
        arrays = {k: v.tolist() for k, v in file.metadata.arch.items() if isinstance(v, GGUFArray) and len(v) == n}

    def add(tensors: Tensors) -> None:
        last = {key: value for key, value in tensors.items() if key.startswith(f"blk.{n - 1}.")}
        tensors.update({key.replace(f"blk.{n - 1}.", f"blk.{n}."): value for key, value in last.items()})
        dim = tensors["token_embd.weight"][0].shape[1]
        tensors[f"blk.{n}.nextn.eh_proj.weight"] = (np.ones((dim, 2 * dim), np.float32), F32)
        tensors[f"blk.{n}.nextn.enorm.weight"] = (np.ones(dim, np.float32), F32)

    keys = {f"{name}.{key}": [*value, value[-1]] for key, value in arrays.items()}
    return rewrite(plain, target, keys | {f"{name}.block_count": n + 1, f"{name}.nextn_predict_layers": 1}, edit=add)


def dequantized(tensors: Tensors) -> None:
    """Store the values of all tensors as F32, as the gguf package reads them."""
    tensors.update({name: (gguf.dequantize(value, kind), F32) for name, (value, kind) in tensors.items()})


def scaled(tensors: Tensors, names: Iterable[str]) -> None:
    """Divide matrices by 2, 4 or 8, and add these factors as scales; each expert has its own factor."""
    for name in names:
        value, kind = tensors[name]
        factors = 2.0 ** (np.arange(len(value)) % 3 + 1) if value.ndim == 3 else np.array([2.0])
        shaped = factors.astype(np.float32).reshape(-1, *[1] * (value.ndim - 1))
        stem = name.removesuffix("weight")
        tensors[name] = ((value / shaped).astype(np.float32), kind)
        tensors[f"{stem}scale"] = (factors.astype(np.float32), F32)
        tensors[f"{stem}input_scale"] = (factors.astype(np.float32), F32)


def joined(*parts: str, whole: str) -> Callable[[Tensors], None]:
    """Put tensors of a layer one after another, on the last axis but one: biases on the last."""

    def join(tensors: Tensors) -> None:
        for name in list(tensors):
            found = re.fullmatch(rf"(blk\.\d+\.){parts[0]}\.(weight|bias)", name)
            names = [f"{found[1]}{part}.{found[2]}" for part in parts] if found else []
            if found and tensors.keys() >= set(names):
                values = [tensors.pop(each)[0] for each in names]
                axis = -1 if found[2] == "bias" else -2
                tensors[f"{found[1]}{whole}.{found[2]}"] = (np.concatenate(values, axis), F32)

    return join
