"""Files whose encoders have other names: those of llama.cpp's old converters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.text import TextModel
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


def _rows(model: TextModel) -> np.ndarray[Any, Any]:
    assert model.images is not None
    items = model.images.items("", [picture(84, 112)], add_special=False)
    return np.concatenate([item.array for item in items if isinstance(item, EmbeddingSpan)])
