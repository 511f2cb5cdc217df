"""Files whose encoders have other names: those of llama.cpp's old converters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    _check_same_rows(made, other, main_device)


def test_an_encoder_of_sound_in_the_same_file(tmp_path: Path, main_device: str) -> None:
    made = MadeTower("gemma4", ROWS["gemma4"], tmp_path)
    tensors = {name: np.ones((2, 2), np.float32) for name in ("a.blk.0.ffn_up.weight", "mm.a.input_projection.weight")}
    keys = {"clip.has_audio_encoder": True, "clip.audio.block_count": 1, "clip.audio.projector_type": "gemma4a"}
    both = rewrite(made.file(), tmp_path / "both.gguf", keys, add=tensors)
    _check_same_rows(made, both, main_device)


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


def _check_same_rows(made: MadeTower, other: Path, device: str) -> None:
    with (
        made.load(device) as model,
        hotshoe.load_model(made.path, device, task="text", n_ctx=64, projector=other) as changed,
    ):
        assert np.array_equal(_rows(changed), _rows(model))


def _rows(model: TextModel) -> np.ndarray[Any, Any]:
    assert model.images is not None
    items = model.images.items("", [picture(84, 112)], add_special=False)
    return np.concatenate([item.array for item in items if isinstance(item, EmbeddingSpan)])
