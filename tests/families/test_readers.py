"""Published checkpoints of Gemma 3n and 4 have keys and values of layers that read those of other layers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy as safetensors

from hotshoe.convert import convert
from hotshoe_core.gguf import GGUFFile
from tests.families.made import Made
from tests.families.rows import ROWS


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_keys_that_no_layer_uses_change_nothing(name: str, tmp_path: Path) -> None:
    made = Made(name, ROWS[name], tmp_path)
    folder = tmp_path / "published"
    shutil.copytree(made.folder, folder)
    weights = safetensors.load_file(folder / "model.safetensors")
    last = made.n_layers - 1
    for part in ("k_proj", "v_proj", "k_norm"):
        source = f"model.layers.0.self_attn.{part}.weight"
        weights[source.replace(".0.", f".{last}.")] = weights[source] + 1
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    path = convert(folder, tmp_path / "published.gguf", "f32")
    with GGUFFile(path) as file:
        assert f"blk.{last}.attn_k.weight" in file.tensors
    with made.open(path) as model:
        ours = model.logits(made.ids)
    assert np.array_equal(ours, made.model("reference").logits(made.ids))
    made.close()
