"""Ollama's single files, with text and encoder: the same rows and logits as our two files with the same weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import hotshoe
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import ImageError, WeightsError
from tests.support.rewrite import rewrite
from tests.towers.made import MadeTower
from tests.towers.ollama import FORMS, Form, single_file
from tests.towers.row import picture
from tests.towers.rows import ROWS

OPTIONS: Any = {"task": "text", "kv_dtype": "f32"}


@pytest.mark.parametrize(("name", "variant"), list(FORMS))
def test_one_file_with_text_and_encoder(tmp_path: Path, main_device: str, name: str, variant: str) -> None:
    made, form = MadeTower(name, ROWS[name], tmp_path), FORMS[name, variant]
    # a picture of Gemma 4 takes up to 280 rows, as the files do not say another limit
    text = rewrite(made.path, tmp_path / "text.gguf", {f"{made.row.whole.arch}.context_length": 512})
    one = single_file(form, text, made.file(), tmp_path / "one" / "model.gguf")
    limits = {"clip.vision.image_max_pixels"} & gguf.GGUFReader(made.file()).fields.keys() if "gemma4" in name else ()
    two = rewrite(made.file(), tmp_path / "two.gguf", dict.fromkeys(limits))
    with (
        hotshoe.load_model(text, main_device, projector=two, **OPTIONS) as pair,
        hotshoe.load_model(one, main_device, **OPTIONS) as ollama,
    ):
        assert ollama.sees, ollama.unused_towers
        for prompt in ("what is this?", "{} the quick brown fox"):
            ours, theirs = (_items(model, prompt) for model in (pair, ollama))
            assert np.array_equal(_rows(ours), _rows(theirs))
            logits, others = pair.logits(ours), ollama.logits(theirs)
            # how a prompt is cut depends on the measured speed, and the last bits on the cut
            assert np.abs(logits - others).max() <= 1e-5 * np.abs(logits).max()
    with hotshoe.load_model(one, main_device, projector=False, **OPTIONS) as text_only:
        assert text_only.images is None
        assert np.isfinite(text_only.logits([5, 6, 7])).all()


def test_the_first_files_of_llama_3_2_vision(tmp_path: Path, main_device: str) -> None:
    """Text and encoder in two files of the same architecture; the names of the MLP's matrices are exchanged."""
    made = MadeTower("mllama", ROWS["mllama"], tmp_path)
    fields = gguf.GGUFReader(made.file()).fields
    keys: dict[str, Any] = {key: None for key in fields if key.startswith("clip.")}
    keys |= {f"mllama.{key[5:]}": fields[key].contents() for key in keys if "vision." in key and "image_m" not in key}
    del keys["mllama.vision.image_std"]
    names = {".attn_norm.": ".ln1.", ".ffn_norm.": ".ln2.", ".attn_output.": ".attn_out."}
    names |= {".ffn_up.": ".ffn_other.", ".ffn_down.": ".ffn_up.", ".ffn_other.": ".ffn_down."}

    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            new = name
            for ours, theirs in names.items():
                new = new.replace(ours, theirs)
            tensors[f"new.{new}"] = tensors.pop(name)
        for name in list(tensors):
            tensors[name.removeprefix("new.")] = tensors.pop(name)

    first = rewrite(made.file(), tmp_path / "first.gguf", {"general.architecture": "mllama", **keys}, edit=rename)
    with (
        hotshoe.load_model(made.path, main_device, projector=made.file(), **OPTIONS) as pair,
        hotshoe.load_model(made.path, main_device, projector=first, **OPTIONS) as old,
    ):
        ours, theirs = (_items(model, "{} the quick brown fox") for model in (pair, old))
        assert np.array_equal(_rows(ours), _rows(theirs))


def _items(model: TextModel, text: str) -> list[Any]:
    assert model.images is not None
    shown = [picture(84, 112)] if "{}" in text else []
    return model.images.items(text.format(model.images.tower.placeholder), shown, add_special=False)


def _rows(items: list[Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros((0, 0)).ravel(), *(i.array.ravel() for i in items if isinstance(i, EmbeddingSpan))])


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("qwen2.5-vl", {"qwen25vl.vision.fullatt_block_indexes": [1, 2]}, r"\[1, 2\]; expected every n-th of 4 layers"),
        (
            "qwen2.5-vl",
            {"qwen25vl.vision.window_size": 56},
            "window_size': is 56, but the model does not read",
        ),
        ("qwen2.5-vl", {"qwen25vl.vision.fullatt_block_indexes": [float("nan")]}, "expected an array of whole numbers"),
        ("qwen2.5-vl", {"qwen25vl.vision.block_count": 2_000_000_000}, "2000000000; expected 1 to 1000"),
        ("qwen3-vl", {"qwen3vl.vision.block_count": 2_000_000_000}, "2000000000; expected 1 to 1000"),
        (
            "qwen3-vl",
            {"qwen3vl.vision.deepstack_visual_indexes": [float("inf")]},
            "expected an array of whole numbers",
        ),
        ("mistral3", {"mistral3.vision.attention.head_count": 3}, "3 heads of an even size do not divide"),
        (
            "gemma4-small",
            {"gemma4.vision.block_count": 1},
            "four F32 numbers for each of the linear layers in 1",
        ),
        ("mllama", {"mllama.vision.intermediate_layers_indices": [1, 9]}, "expected numbers of layers, 0 to 2"),
    ],
)
def test_an_encoder_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, change: dict[str, Any], reason: str
) -> None:
    made = MadeTower(name, ROWS[name], tmp_path)
    form = next(form for (row, variant), form in FORMS.items() if row == name and variant != "both")
    one = single_file(form, made.path, made.file(), tmp_path / "one" / "model.gguf")
    odd = rewrite(one, tmp_path / "one" / "odd.gguf", change)
    caplog.set_level(logging.INFO, "hotshoe.images")
    with (
        hotshoe.load_model(odd, "reference", **OPTIONS) as model,
        pytest.raises(ImageError, match=rf"the encoder in odd\.gguf is not used: .*{reason}"),
    ):
        model.generate("a", images=[picture(84, 112)])
    assert "is not used" in caplog.text


def test_an_encoder_of_an_unknown_form(tmp_path: Path) -> None:
    made = MadeTower("llava", ROWS["llava"], tmp_path)
    one = single_file(Form("llama", {}), made.path, made.file(), tmp_path / "one" / "model.gguf")
    with (
        hotshoe.load_model(one, "reference", **OPTIONS) as model,
        pytest.raises(ImageError, match=r"reads no encoder .* inside files of 'llama'; get the model as two files"),
    ):
        model.generate("a", images=[picture(84, 112)])


@pytest.mark.parametrize(
    ("name", "tensor"), [("qwen3-vl", "v.patch_embed.weight"), ("mistral3", "v.blk.0.attn_q.weight")]
)
def test_an_encoder_with_an_empty_tensor(tmp_path: Path, name: str, tensor: str) -> None:
    made = MadeTower(name, ROWS[name], tmp_path)
    one = single_file(FORMS[name, ""], made.path, made.file(), tmp_path / "one" / "model.gguf")

    def cut(tensors: dict[str, Any]) -> None:
        data, _ = tensors[tensor]
        tensors[tensor] = np.ascontiguousarray(data[:0]), gguf.GGMLQuantizationType.F32

    odd = rewrite(one, tmp_path / "one" / "odd.gguf", edit=cut)
    with pytest.raises(WeightsError, match=r"has shape \[0, .*; expected \[32, "):
        hotshoe.load_model(odd, "reference", **OPTIONS)


def test_frames_that_cannot_be_split(tmp_path: Path) -> None:
    made = MadeTower("qwen3-vl", ROWS["qwen3-vl"], tmp_path)
    one = single_file(FORMS["qwen3-vl", ""], made.path, made.file(), tmp_path / "one" / "model.gguf")

    def cut(tensors: dict[str, Any]) -> None:
        data, _ = tensors["v.patch_embed.weight"]
        tensors["v.patch_embed.weight"] = np.ascontiguousarray(data[:, :1]), gguf.GGMLQuantizationType.F32

    odd = rewrite(one, tmp_path / "one" / "odd.gguf", edit=cut)
    with hotshoe.load_model(odd, "reference", **OPTIONS) as model:
        assert "expected (3 * channels, 2, height, width)" in model.unused_towers[0]
