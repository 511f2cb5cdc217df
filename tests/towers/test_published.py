"""InternVL and PaddleOCR-VL as their authors publish them: other names and settings, and the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hotshoe.convert import convert
from hotshoe_core.errors import HotshoeError
from tests.families.recorded import digests, family_keys
from tests.towers.made import MadeTower
from tests.towers.rows import ROWS

_NAMES = {
    "model.language_model.": "language_model.model.",
    "language_model.model.": "language_model.model.",
    "language_model.lm_head.": "language_model.lm_head.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.encoder.layer.": "vision_model.encoder.layers.",
    "model.vision_tower.embeddings.cls_token": "vision_model.embeddings.class_embedding",
    "model.vision_tower.embeddings.patch_embeddings.projection": "vision_model.embeddings.patch_embedding",
    "model.vision_tower.embeddings.position_embeddings": "vision_model.embeddings.position_embedding",
    "model.multi_modal_projector.layer_norm.": "mlp1.0.",
    "model.multi_modal_projector.linear_1.": "mlp1.1.",
    "model.multi_modal_projector.linear_2.": "mlp1.3.",
}
_IN_LAYERS = {
    "attention.projection_layer": "attn.proj",
    "attention.q_norm": "attn.q_norm",
    "attention.k_norm": "attn.k_norm",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_1": "ls1",
    "lambda_2": "ls2",
}


def _publish(folder: Path, **settings: Any) -> None:
    """Change a folder of transformers to one of the model's authors."""
    config = json.loads((folder / "config.json").read_text())
    vision = config.pop("vision_config")
    vision |= {"qkv_bias": vision.pop("attention_bias"), "qk_normalization": vision.pop("use_qk_norm")}
    vision |= {name: vision[name][0] for name in ("image_size", "patch_size")}
    config |= {"architectures": ["InternVLChatModel"], "vision_config": vision, "llm_config": config.pop("text_config")}
    config |= {"dynamic_image_size": True, "use_thumbnail": True, "min_dynamic_patch": 1, "max_dynamic_patch": 12}
    config |= {"force_image_size": vision["image_size"], "ps_version": "v2", "select_layer": -1, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {_published(name): value for name, value in load_file(folder / "model.safetensors").items()}
    for q in [name for name in tensors if ".attention.q_proj." in name]:
        parts = [tensors.pop(q.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[q.replace("attention.q_proj", "attn.qkv")] = np.concatenate(parts)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _published(name: str) -> str:
    start = next(start for start in _NAMES if name.startswith(start))
    name = _NAMES[start] + name.removeprefix(start)
    for ours, theirs in _IN_LAYERS.items():
        name = name.replace(ours, theirs) if name.startswith("vision_model.") else name
    return name


@pytest.mark.parametrize("name", ["internvl", "internvl-rms"])
def test_published_folders_give_the_same_files(tmp_path: Path, name: str) -> None:
    made = MadeTower(name, ROWS[name], tmp_path)
    expected = made.path, made.file()
    _publish(made.folder)
    text = convert(made.folder, tmp_path / "text.gguf", "f32")
    encoder = convert(made.folder, tmp_path / "encoder.gguf", "f32", projector=True)
    assert digests(text) == digests(expected[0])
    assert digests(encoder) == digests(expected[1])
    assert family_keys(text) == family_keys(expected[0])
    # the authors' config.json has the limits of the number of tiles, and llama.cpp's converter writes them
    tiles = {"clip.vision.preproc_min_tiles": 1, "clip.vision.preproc_max_tiles": 12}
    assert family_keys(encoder) == family_keys(expected[1]) | tiles


@pytest.mark.parametrize(
    ("setting", "value"),
    [("force_image_size", 448), ("ps_version", "v1"), ("use_thumbnail", False), ("max_dynamic_patch", 0)],
)
def test_other_settings_are_refused(tmp_path: Path, setting: str, value: Any) -> None:
    made = MadeTower("internvl", ROWS["internvl"], tmp_path)
    _publish(made.folder, **{setting: value})
    with pytest.raises(HotshoeError, match=setting):
        convert(made.folder, tmp_path / "encoder.gguf", "f32", projector=True)


# as Qwen2-VL, Qwen2.5-VL and PaddleOCR-VL were published
@pytest.mark.parametrize("name", ["qwen2-vl", "qwen2.5-vl", "paddleocr"])
@pytest.mark.parametrize("left", [{}, {"text_config": None}])
def test_settings_of_the_text_may_be_those_of_the_whole_model(tmp_path: Path, name: str, left: dict[str, None]) -> None:
    made = MadeTower(name, ROWS[name], tmp_path)
    expected = made.path, made.file()
    config = json.loads((made.folder / "config.json").read_text())
    flat = config | {name: value for name, value in config.pop("text_config").items() if name != "model_type"}
    (made.folder / "config.json").write_text(json.dumps(flat | left))
    text = convert(made.folder, tmp_path / "text.gguf", "f32")
    encoder = convert(made.folder, tmp_path / "encoder.gguf", "f32", projector=True)
    assert (digests(text), family_keys(text)) == (digests(expected[0]), family_keys(expected[0]))
    assert (digests(encoder), family_keys(encoder)) == (digests(expected[1]), family_keys(expected[1]))


def test_what_config_json_leaves_out_of_llava_is_known_to_its_encoder_too(tmp_path: Path) -> None:
    made = MadeTower("llava", ROWS["llava"], tmp_path)
    config = json.loads((made.folder / "config.json").read_text())
    del config["text_config"]["hidden_size"]
    (made.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HotshoeError, match="4096"):  # the default, which is not that of the tensors
        convert(made.folder, tmp_path / "encoder.gguf", "f32", projector=True)


def test_a_setting_of_an_encoder_that_no_code_reads_is_refused(tmp_path: Path) -> None:
    made = MadeTower("gemma3", ROWS["gemma3"], tmp_path)
    config = json.loads((made.folder / "config.json").read_text())
    config["vision_config"]["attn_logit_softcapping"] = 30.0
    (made.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HotshoeError, match=r"attn_logit_softcapping is 30\.0"):
        convert(made.folder, tmp_path / "encoder.gguf", "f32", projector=True)
