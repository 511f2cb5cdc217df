"""Settings of damaged folders, files and pictures that converters and towers must refuse by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.convert import convert
from hotshoe.images import read_image
from hotshoe_core.errors import HotshoeError, ImageError, ModelFileError
from tests.support.rewrite import rewrite
from tests.towers.made import MadeTower
from tests.towers.row import make_tower_folder, picture
from tests.towers.rows import ROWS

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    known: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in known:
            known[name] = make_tower_folder(ROWS[name], tmp_path_factory.mktemp(name))
        return known[name]

    return find


def _changed(source: Path, target: Path, file: str, settings: dict[str, Any]) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).symlink_to(path)
    values = json.loads((source / file).read_text())
    for name, value in settings.items():
        *outer, last = name.split(".")
        inner = values
        for part in outer:
            inner = inner[part]
        inner[last] = value
    (target / file).unlink()
    (target / file).write_text(json.dumps(values))
    return target


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lfm2", {"min_image_tokens": "64"}, "min_image_tokens: '64'; expected a whole number of at least 1"),
        ("lfm2", {"max_image_tokens": [1]}, "max_image_tokens"),
        ("lfm2", {"min_image_tokens": 300}, "min_image_tokens is 300, more than max_image_tokens, 256"),
        ("gemma4-12b", {"max_soft_tokens": "x"}, "max_soft_tokens: 'x'; expected a whole number"),
        ("mllama", {"size": 5}, "size: 5; expected an object, in preprocessor_config.json"),
        ("idefics3", {"max_image_size": 5}, "max_image_size: 5; expected an object"),
        ("paddleocr", {"min_pixels": True}, "min_pixels: True; expected a whole number"),
    ],
)
def test_what_the_processor_says(
    folder: Folder, tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    changed = _changed(folder(name), tmp_path / "hf", "preprocessor_config.json", settings)
    with pytest.raises(HotshoeError, match=message):
        convert(changed, tmp_path / "encoder.gguf", "f32", projector=True)


def test_null_is_what_readers_assume(folder: Folder, tmp_path: Path) -> None:
    nulls = {"min_image_tokens": None, "max_image_tokens": None}
    changed = _changed(folder("lfm2"), tmp_path / "hf", "preprocessor_config.json", nulls)
    convert(changed, tmp_path / "encoder.gguf", "f32", projector=True)


@pytest.mark.parametrize(
    ("name", "settings", "projector", "message"),
    [
        # large numbers of tiles and layers must not become large lists
        ("mllama", {"vision_config.max_num_tiles": 10**9}, True, "max_num_tiles: 1000000000; expected at most 16"),
        ("mllama", {"vision_config.num_global_layers": 10**9}, True, "global.block_count"),
        ("mllama", {"vision_config.intermediate_layers_indices": []}, True, "intermediate_layers_indices"),
        ("mllama", {"text_config.cross_attention_layers": []}, False, "cross_attention_layers"),
        ("minicpmv", {"vision_config.intermediate_size": 0}, True, "intermediate_size: 0; expected a whole number"),
        ("internvl", {"text_config.architectures": ["InternVLForConditionalGeneration"]}, False, "architectures: "),
    ],
)
def test_what_config_json_says(
    folder: Folder, tmp_path: Path, name: str, settings: dict[str, Any], projector: bool, message: str
) -> None:
    changed = _changed(folder(name), tmp_path / "hf", "config.json", settings)
    with pytest.raises(HotshoeError, match=message):
        convert(changed, tmp_path / "model.gguf", "f32", projector=projector)


@pytest.fixture(scope="module")
def janus(tmp_path_factory: pytest.TempPathFactory) -> MadeTower:
    return MadeTower("janus", ROWS["janus"], tmp_path_factory.mktemp("janus"))


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("image_mean", [float("nan"), 0.5, 0.5], "three numbers from 0 to 1"),
        ("image_mean", [-0.5, 0.5, 0.5], "three numbers from 0 to 1"),
        ("image_std", [0.5, 0.0, 0.5], "three positive numbers"),
    ],
)
def test_colours(janus: MadeTower, tmp_path: Path, key: str, values: list[float], expected: str) -> None:
    odd = rewrite(janus.file(), tmp_path / "odd.gguf", {f"clip.vision.{key}": values})
    with pytest.raises(ModelFileError, match=f"{key}.*expected {expected}"):
        hotshoe.load_model(janus.path, "reference", projector=odd)


def test_a_picture_that_would_have_too_many_rows(tmp_path: Path) -> None:
    made = MadeTower("minicpmv", ROWS["minicpmv"], tmp_path)
    tower = made.load("reference").images.tower  # type: ignore[union-attr]
    try:
        tower.prepare(read_image(picture(2, 400)))
        with pytest.raises(ImageError, match="at most 200 times"):
            tower.prepare(read_image(np.zeros((1, 5000, 3), np.uint8)))
    finally:
        made.close()
