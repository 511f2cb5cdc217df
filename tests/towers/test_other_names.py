"""Files whose encoders have other names: those of llama.cpp's old converters, and Ollama's with text and encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import hotshoe
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import ModelFileError, WeightsError
from tests.support.rewrite import Stored, rewrite
from tests.towers.made import MadeTower
from tests.towers.row import picture
from tests.towers.rows import ROWS


@pytest.mark.parametrize("name", ["llava", "qwen2-vl"])
def test_up_and_down_may_be_exchanged(tmp_path: Path, main_device: str, name: str) -> None:
    made = MadeTower(name, ROWS[name], tmp_path)

    def exchange(tensors: dict[str, Stored]) -> None:
        for up in [name for name in tensors if ".ffn_up." in name]:
            down = up.replace("up", "down")
            tensors[up], tensors[down] = tensors[down], tensors[up]

    other = rewrite(made.file(), tmp_path / "old.gguf", edit=exchange)
    with (
        made.load(main_device) as model,
        hotshoe.load_model(made.path, main_device, task="text", n_ctx=64, projector=other) as old,
    ):
        assert np.array_equal(_rows(old), _rows(model))


def test_an_encoder_of_sound_in_the_same_file(tmp_path: Path, main_device: str) -> None:
    made = MadeTower("gemma4", ROWS["gemma4"], tmp_path)
    tensors = {name: np.ones((2, 2), np.float32) for name in ("a.blk.0.ffn_up.weight", "mm.a.input_projection.weight")}
    keys = {"clip.has_audio_encoder": True, "clip.audio.block_count": 1, "clip.audio.projector_type": "gemma4a"}
    both = rewrite(made.file(), tmp_path / "both.gguf", keys, add=tensors)
    with (
        made.load(main_device) as model,
        hotshoe.load_model(made.path, main_device, task="text", n_ctx=64, projector=both) as other,
    ):
        assert np.array_equal(_rows(other), _rows(model))


def test_llava_1_6_is_refused(tmp_path: Path, main_device: str) -> None:
    """Its pictures are cut into tiles, which the keys and one more tensor say."""
    made = MadeTower("llava", ROWS["llava"], tmp_path)
    tiles = {"clip.vision.image_grid_pinpoints": [64, 128, 128, 64], "clip.vision.mm_patch_merge_type": "spatial_unpad"}
    newline = {"model.image_newline": np.ones(64, np.float32)}
    by_keys = rewrite(made.file(), tmp_path / "keys.gguf", tiles)
    with pytest.raises(ModelFileError, match=r"image_grid_pinpoints.*does not read this key.*mm_patch_merge_type"):
        hotshoe.load_model(made.path, main_device, task="text", n_ctx=64, projector=by_keys)
    by_tensor = rewrite(made.file(), tmp_path / "tensor.gguf", add=newline)
    with pytest.raises(WeightsError, match=r"model\.image_newline"):
        hotshoe.load_model(made.path, main_device, task="text", n_ctx=64, projector=by_tensor)


OLLAMA = {
    "v.patch_embd": "v.patch_embedding",
    "v.position_embd": "v.position_embedding",
    "v.post_ln": "v.post_layernorm",
    ".ln1": ".layer_norm1",
    ".ln2": ".layer_norm2",
    ".attn_out": ".attn_output",
    ".ffn_up": ".mlp.fc1",
    ".ffn_down": ".mlp.fc2",
    "mm.": "mm.mm_",
}


def test_one_file_with_text_and_encoder(tmp_path: Path, main_device: str) -> None:
    made = MadeTower("gemma3", ROWS["gemma3"], tmp_path)
    parts = gguf.GGUFReader(made.file())
    keys = {"block_count", "embedding_length", "feed_forward_length", "image_size", "patch_size"}
    keys |= {"attention.head_count", "attention.layer_norm_epsilon"}
    values = {f"gemma3.vision.{key}": parts.fields[f"clip.vision.{key}"].contents() for key in keys}

    def add(tensors: dict[str, Stored]) -> None:
        for tensor in parts.tensors:
            name = tensor.name
            for ours, theirs in OLLAMA.items():
                name = name.replace(ours, theirs)
            tensors[name] = tensor.data, tensor.tensor_type

    (tmp_path / "one").mkdir()
    pool = {"clip.vision.projector.scale_factor"} & parts.fields.keys()
    values |= {key.replace("clip", "gemma3"): parts.fields[key].contents() for key in pool}
    one = rewrite(made.path, tmp_path / "one" / "model.gguf", values, edit=add)
    with made.load(main_device) as model, hotshoe.load_model(one, main_device, task="text", n_ctx=64) as ollama:
        assert np.array_equal(_rows(ollama), _rows(model))
    with hotshoe.load_model(one, main_device, task="text", n_ctx=64, projector=False) as text:
        assert text.images is None


def _rows(model: TextModel) -> np.ndarray[Any, Any]:
    assert model.images is not None
    items = model.images.items("", [picture(84, 112)], add_special=False)
    return np.concatenate([item.array for item in items if isinstance(item, EmbeddingSpan)])
