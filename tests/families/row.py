"""Row: a tiny model of one family. Every test in this folder runs for every row."""

from __future__ import annotations

import importlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_text import COMMON, make_tokenizer

__all__ = ["COMMON", "Row", "coarse", "make_folder", "oracle_class", "stating", "text_ids"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """A tiny model of a family, and what is known of it.

    The weights are drawn from their names (``make_folder``), so that a row is the same on every machine.
    """

    model: str
    """The class of transformers, or "module:class". It makes the folder, and computes the expected logits."""

    arch: str
    """``general.architecture`` of the GGUF file."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """What differs from COMMON; ``...`` leaves a value of COMMON out."""

    n_tokens: int = 21
    """The length of the text. Use more if a block works on longer pieces of it."""

    bound: float = 1e-5
    """The largest error of a logit, as a part of the largest logit, in f32."""

    tokenizer: Callable[[Path], None] = make_tokenizer
    """Writes the tokenizer's files."""

    prepare: Callable[[Path], None] | None = None
    """Changes the folder after transformers has read it: names of tensors, further files."""

    vector: Callable[[Path, Array], Array] | None = None
    """The vector of a text, from the folder and the states of its tokens; None: their mean, with length 1."""

    weights: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)
    """Changes to the drawn weights whose names end with these keys."""

    no_shift: str = ""
    """A pattern of the message that refuses to shift the context; "" if the context can be shifted."""

    optional: tuple[str, ...] = ()
    """Tensors that a file may lack, besides biases, scales, ``output`` and ``rope_freqs``: patterns of fnmatch."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of our file that llama.cpp's converter writes differently, or not at all (then ``None`` is theirs).

    Each needs a comment with the reason.
    """

    left_out: tuple[str, ...] = ()
    """Tensors that llama.cpp's converter leaves out; a comment says why."""

    cut: tuple[str, ...] = ()
    """Tensors of which llama.cpp's converter leaves out the last rows: those of ids without a token."""

    llamacpp: str = ""
    """Why llama.cpp's logits for our file are others than ours, or why it computes none; "" if they are the same."""

    llamacpp_bound: float = 3e-5
    """As ``bound``, for llama.cpp's logits. It rounds more: GELU is a table of F16 there."""

    unused: tuple[str, ...] = ()
    """Weights in transformers that have no effect on its result: patterns of fnmatch."""

    excused: Mapping[str, str] = field(default_factory=dict)
    """Checks of test_rows.py that do not apply to this row, each with the reason."""


def coarse(weights: Array) -> Array:
    """Few different values: ours and torch's exp of any others may differ in the last bit."""
    return np.round(weights * 10) / 5


def text_ids(n: int, n_vocab: int = 250) -> list[int]:
    """Token ids of a text."""
    return [int(i) for i in np.random.default_rng(2).integers(2, n_vocab, n)]


def make_folder(row: Row, folder: Path) -> Path:
    """Write the Hugging Face folder of a row. Skip the test if torch or transformers is missing."""
    torch = pytest.importorskip("torch", reason="the table makes its models with torch")
    pytest.importorskip("transformers", reason="the table makes its models with transformers")
    cls = oracle_class(row)
    config = {name: value for name, value in (COMMON | dict(row.config)).items() if value is not ...}
    model = cls(cls.config_class(**config)).eval()
    drawn = dict(model.named_parameters())
    kept = model.state_dict().keys()
    drawn |= {name: b for name, b in model.named_buffers() if name in kept and b.is_floating_point()}
    with torch.no_grad():
        for name, value in drawn.items():
            value.copy_(torch.from_numpy(_draw(name, value.numpy(), row)))
    model.save_pretrained(folder)
    row.tokenizer(folder)
    return folder


def stating(**settings: Any) -> Callable[[Path], None]:
    """Write settings into config.json that published checkpoints have, but transformers no longer writes."""

    def prepare(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | settings
        (folder / "config.json").write_text(json.dumps(config))

    return prepare


def oracle_class(row: Row) -> Any:
    """The class that ``row.model`` names."""
    module, _, name = row.model.rpartition(":")
    return getattr(importlib.import_module(module or "transformers"), name)


def _draw(name: str, initial: Array, row: Row) -> Array:
    """Weights that follow from the name alone, wide enough that each one matters to the logits.

    A vector stays near its initial value if that is one number (0 or 1 for norms and biases).
    """
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(initial.shape)
    if initial.ndim < 2:
        rest = initial.flat[0] if initial.size and (initial == initial.flat[0]).all() else 0.0
        rest = rest if np.isfinite(rest) else 0.0
        drawn = rest + noise * 0.2
    else:
        drawn = noise * (1.0 if "embed" in name else 1.5 / initial.shape[-1] ** 0.5)
    for ending, change in row.weights.items():
        if name.endswith(ending):
            drawn = change(drawn)
    return np.asarray(drawn, np.float32)
