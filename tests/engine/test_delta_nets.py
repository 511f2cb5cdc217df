"""Qwen 3.5 and Qwen3-Next as they are published: checkpoints that also read images, and files of 2025."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe_core.errors import ConversionError, ModelFileError
from tests.families.made import Made
from tests.families.rows import ROWS
from tests.support.converted import f16_digests, keys
from tests.support.rewrite import Stored, rewrite
from tests.support.tiny_bert import edit_json

F32 = gguf.GGMLQuantizationType.F32


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Made]]:
    made: dict[str, Made] = {}

    def get(name: str) -> Made:
        if name not in made:
            made[name] = Made(name, ROWS[name], tmp_path_factory.mktemp(name))
        return made[name]

    yield get
    for one in made.values():
        one.close()


def logits(made: Made, path: Path) -> np.ndarray[Any, Any]:
    with made.open(path, "reference", kv_dtype="f32") as model:
        return np.asarray(model.logits(made.ids))


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe"])
def test_a_checkpoint_that_also_reads_images(make: Callable[[str], Made], tmp_path: Path, name: str) -> None:
    """Its config and the names of its tensors, and layers that only draft tokens."""
    safetensors = pytest.importorskip("safetensors.numpy")
    made, folder = make(name), tmp_path / "published"
    folder.mkdir()
    for path in made.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    inner = json.loads((folder / "config.json").read_text())
    model = inner["architectures"][0].replace("ForCausalLM", "ForConditionalGeneration")
    (folder / "config.json").write_text("{}")
    outer = {"architectures": [model], "model_type": inner["model_type"].removesuffix("_text"), "image_token_id": 7}
    edit_json(folder, "config.json", **outer, text_config=inner, vision_config={"hidden_size": 8, "depth": 1})
    weights = safetensors.load_file(folder / "model.safetensors")
    weights = {name.replace("model.", "model.language_model.", 1): w for name, w in weights.items()}
    for layer in range(made.n_layers):  # published ones have the experts of a layer in two tensors
        place = f"model.language_model.layers.{layer}.mlp.experts."
        if f"{place}0.up_proj.weight" in weights:
            gate, up, down = (
                np.stack([weights.pop(f"{place}{i}.{part}_proj.weight") for i in range(6)])
                for part in ("gate", "up", "down")
            )
            weights |= {f"{place}gate_up_proj": np.concatenate([gate, up], axis=1), f"{place}down_proj": down}
    weights |= {f"{part}.norm.weight": np.ones(8, np.float32) for part in ("model.visual.blocks.0", "mtp.layers.0")}
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    found = convert(folder, tmp_path / "m.gguf", "f32")
    assert f16_digests(found) == f16_digests(made.file())
    assert keys(found) | {"general.name": ""} == keys(made.file()) | {"general.name": ""}


def test_files_of_2025_have_one_matrix_for_queries_keys_values_and_gates(
    make: Callable[[str], Made], tmp_path: Path
) -> None:
    made = make("qwen3next")
    packed = {}
    for name, value in _weights(made.folder).items():
        if name.endswith("in_proj_qkvz.weight"):
            packed[name.split(".")[2]] = value

    def pack(tensors: dict[str, Stored]) -> None:
        for layer, value in packed.items():
            tensors[f"blk.{layer}.ssm_in.weight"] = (value, F32)
            del tensors[f"blk.{layer}.attn_qkv.weight"], tensors[f"blk.{layer}.attn_gate.weight"]

    path = rewrite(made.file(), tmp_path / "old.gguf", edit=pack)
    np.testing.assert_allclose(logits(made, path), logits(made, made.file()), atol=1e-5)


def test_the_interval_says_which_layers_have_attention(make: Callable[[str], Made], tmp_path: Path) -> None:
    made = make("qwen35")
    without = {"qwen35.attention.recurrent_layers": None}
    path = rewrite(made.file(), tmp_path / "interval.gguf", without)
    np.testing.assert_array_equal(logits(made, path), logits(made, made.file()))
    path = rewrite(made.file(), tmp_path / "default.gguf", without | {"qwen35.full_attention_interval": None})
    np.testing.assert_array_equal(logits(made, path), logits(made, made.file()))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.dimension_sections", [3, 3, 3, 0]),
        ("rope.dimension_sections", [0, 0, 0, 0]),
        ("ssm.time_step_rank", 5),
        ("ssm.conv_kernel", 1),
        ("ssm.group_count", 0),
        ("full_attention_interval", 0),
        ("attention.recurrent_layers", [True]),
    ],
)
def test_invalid_keys(make: Callable[[str], Made], tmp_path: Path, key: str, value: Any) -> None:
    made = make("qwen35")
    path = rewrite(made.file(), tmp_path / "m.gguf", {f"qwen35.{key}": value})
    with pytest.raises(ModelFileError, match=key):
        made.open(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 5}, "linear_num_value_heads 5 is not a multiple of linear_num_key_heads 2"),
        ({"layer_types": ["linear_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": 3}}, "mrope_section"),
        ({"rope_parameters": {"rope_type": "default", "mrope_interleaved": False}}, "mrope_interleaved"),
    ],
)
def test_refused_settings(make: Callable[[str], Made], tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    for path in make("qwen35").folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    edit_json(folder, "config.json", **changes)
    with pytest.raises((ConversionError, ModelFileError), match=message):
        convert(folder, tmp_path / "m.gguf")


def _weights(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    safetensors = pytest.importorskip("safetensors.numpy")
    found: dict[str, np.ndarray[Any, Any]] = safetensors.load_file(folder / "model.safetensors")
    return found
