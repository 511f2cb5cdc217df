"""Row: a tiny model that reads pictures. Every test in this folder runs for every row."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from hotshoe.nn.vision import Prepared, Tower
from tests.families.row import Row, make_folder
from tests.support.rewrite import Stored
from tests.support.tiny_text import make_tokenizer

__all__ = ["SIZES", "TowerRow", "found", "picture", "sound", "with_tokens"]

Array = np.ndarray[Any, Any]

SIZES = ((84, 112), (61, 333), (225, 57))
"""Heights and widths of the pictures: an even one, and odd ones that are wide and high."""


@dataclass(frozen=True)
class TowerRow:
    """A tiny model that reads pictures, and what is known of it."""

    whole: Row
    """The whole model: its class in transformers, its text architecture, and its config with ``vision_config``."""

    kind: str
    """The type of the projector, ``clip.projector_type``."""

    processor: str
    """The class of transformers that processes pictures with Pillow, "module:class"."""

    tokens: tuple[str, ...]
    """Special tokens of the vocabulary. The first one stands for the rows of a picture."""

    ids: Mapping[str, str]
    """Settings of config.json that are ids of tokens: name of the setting, and the token."""

    pixels: Callable[[Tower, Prepared], Array]
    """The pixel values of the processor, from what our tower prepared."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the processor."""

    features: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """The rows of pictures, from the model and its inputs; None: what its ``get_image_features`` returns."""

    generating: bool = False
    """True if the model makes other masks while it generates than in a plain call: take those."""

    unread: tuple[str, ...] = ()
    """What the processor returns for itself, and the model does not take."""

    stated: Mapping[str, Any] = field(default_factory=dict)
    """Settings of preprocessor_config.json in published folders, which transformers no longer writes."""

    typed: str = ""
    """The input of the model that marks the rows of pictures in the text; "" if it has none."""

    sizes: Sequence[tuple[int, int]] = SIZES
    seen_size: tuple[int, int] | None = None
    """Height and width of a picture that needs no resizing, which llama.cpp reads too. None: it has no such size, or
    cannot compute the row; a comment says why."""

    seen_bound: float = 2e-3
    """The largest error of llama.cpp's rows, as a part of the largest one: it reads GELU from a table in F16."""

    seen_order: tuple[int, ...] = ()
    """Where llama.cpp has each of our rows, if in another order."""

    for_llamacpp: Callable[[dict[str, Stored]], None] | None = None
    """Changes the tensors of our file that llama.cpp reads, because it has a known error. A comment says which."""

    unseen: str = ""
    """A text that the tower writes around a picture, as the model's processor does, and llama.cpp leaves out."""

    written: tuple[str, str] = ("", "")
    """Special tokens that llama.cpp writes before and after a picture, and the model's processor does not."""

    breaks: str = ""
    """The special token between rows of patches, which llama.cpp counts as a row of the encoder."""

    bound: float = 1e-5
    """The largest error of rows and of logits, as a part of the largest one, in f32."""

    double: bool = False
    """True if transformers computes in f64: where values nearly cancel, its errors in f32 are larger than ``bound``."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of our file that llama.cpp's converter writes differently, or not at all. Each has a comment."""

    differing: tuple[str, ...] = ()
    """Tensors that llama.cpp's converter writes differently, or not at all: "f32 NAME". A comment says why."""

    unrecorded: str = ""
    """Why nothing is recorded of llama.cpp's converter; "" if something is."""

    published: Mapping[str, str] = field(default_factory=dict)
    """Starts of names of tensors that transformers writes, and what they are in published folders."""

    whole_processor: str = ""
    """The class of transformers that writes pictures into a text, "module:class"; "" if it is not compared."""

    whole_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``whole_processor``."""

    nest: Callable[[Path, Path], Path] | None = None
    """Writes the folder as it is published, from the one that transformers reads; None: they are the same."""

    apart: str = ""
    """The attribute of the whole model whose folder has the text model; "" if the whole model's folder has it."""

    named: Mapping[str, str] = field(default_factory=dict)
    """What ``whole_processor`` calls special tokens of its tokenizer: name, and token."""

    oracle: str = ""
    """A module with the functions ``features`` and ``logits``, if transformers is to be called in a way of its own."""


def found(name: str) -> Any:
    """The object that "module:class" names."""
    module, _, attribute = name.rpartition(":")
    return getattr(importlib.import_module(module), attribute)


def with_tokens(row: TowerRow, folder: Path) -> dict[str, int]:
    """Write a tokenizer with the row's special tokens. Return their ids by the names of settings."""
    make_tokenizer(folder)
    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.add_special_tokens([tokenizers.AddedToken(t, normalized=False, special=True) for t in row.tokens])
    inner.save(str(folder / "tokenizer.json"))
    return {name: inner.token_to_id(token) for name, token in row.ids.items()}


def make_tower_folder(row: TowerRow, folder: Path) -> Path:
    """Write the Hugging Face folder of a row. Skip the test if torch or transformers is missing."""
    pytest.importorskip("transformers", reason="the table makes its models with transformers")
    ids = with_tokens(row, folder)
    whole = Row(
        row.whole.model, row.whole.arch, dict(row.whole.config) | ids, weights=row.whole.weights,
        tokenizer=lambda _: None,
    )  # fmt: skip
    make_folder(whole, folder)
    _rename(folder, row.published)
    found(row.processor)(**row.options).save_pretrained(folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    assert settings
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | dict(row.stated)))
    return folder


def sound(seconds: float) -> Array:
    """Samples at 16 kHz with tones, pulses and noise, silent at the end: (n,) float32."""
    n = round(seconds * 16_000)
    t = np.arange(n) / 16_000
    noise = np.random.default_rng(n).standard_normal(n)
    tones = np.sin(2 * np.pi * (300 + 500 * t) * t) + np.sin(2 * np.pi * 1900 * t) * (np.sin(7 * t) > 0)
    samples = 0.25 * tones + 0.02 * noise
    samples[n - 600 :] = 0
    return np.asarray(samples, np.float32)


def _rename(folder: Path, starts: Mapping[str, str]) -> None:
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for ours, published in starts.items():
        changed = {name: published + name.removeprefix(ours) for name in tensors if name.startswith(ours)}
        assert changed, f"no tensor begins with {ours}"
        tensors |= {new: tensors.pop(name) for name, new in changed.items()}
    save_file(tensors, path, {"format": "pt"})


def picture(height: int, width: int) -> Array:
    """A picture with edges and noise: (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(height * width).integers(0, 80, (height, width, 3))
    waves = 85 + 85 * np.sin(x[..., None] / (7, 11, 5) + y[..., None] / (13, 6, 9))
    return np.asarray(waves + noise, np.uint8)
