"""Forms that a GGUF file may have, and their errors. tests/families/test_forms.py has what holds for every family."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe.convert import convert
from hotshoe_core.errors import ModelFileError, WeightsError
from tests.support.file_forms import with_nextn
from tests.support.rewrite import Stored, rewrite
from tests.support.text_models import device, load  # noqa: F401
from tests.support.tiny_text import make_tiny

F32 = gguf.GGMLQuantizationType.F32
IDS = np.random.default_rng(5).integers(2, 250, 12).tolist()


def logits(path: Path, where: str = "reference") -> np.ndarray:
    with load(path, where) as model:
        return model.logits(IDS)


# NextN


def test_nextn_layers_are_not_counted(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = data / "llamacpp" / "LlamaForCausalLM.gguf"
    path = with_nextn(plain, tmp_path / "nextn.gguf")
    counts = []
    for file in (plain, path):
        assert main(["inspect", str(file)]) == 0
        out = capsys.readouterr().out
        counts.append(re.findall(r"parameters +(.*)", out))
    assert counts[0] == counts[1]
    assert re.search(r"not loaded +11 tensors, .*: layers that only draft tokens \(NextN\)", out)
    assert main(["plan", str(path)]) == 0
    assert re.search(r"Not loaded, .*: layers that only draft tokens \(NextN\)\.", capsys.readouterr().out)
    assert hotshoe.plan_model(path).memory == hotshoe.plan_model(plain).memory


def test_a_file_of_drafting_layers_alone_is_refused(data: Path, tmp_path: Path) -> None:
    plain = data / "llamacpp" / "LlamaForCausalLM.gguf"
    path = rewrite(plain, tmp_path / "x.gguf", {"llama.nextn_predict_layers": 2})
    with pytest.raises(ModelFileError, match="2 of the file's 2 layers are drafting layers") as error:
        load(path, "reference")
    assert "draft tokens for a model in another file" in str(error.value.hint)


def test_a_layer_beyond_the_drafting_ones_is_unknown(data: Path, tmp_path: Path) -> None:
    path = with_nextn(data / "llamacpp" / "LlamaForCausalLM.gguf", tmp_path / "nextn.gguf")
    more = rewrite(path, tmp_path / "more.gguf", add={"blk.3.attn_norm.weight": np.ones(32, np.float32)})
    with pytest.raises(WeightsError, match=r"blk\.3\.attn_norm\.weight"):
        load(more, "reference")


# .scale


def test_a_scale_must_be_one_number_or_one_for_each_expert(data: Path, tmp_path: Path) -> None:
    for model, name in (("LlamaForCausalLM", "attn_q"), ("MixtralForCausalLM", "ffn_up_exps")):
        plain = data / "llamacpp" / f"{model}.gguf"
        path = rewrite(plain, tmp_path / "x.gguf", add={f"blk.0.{name}.scale": np.ones(3, np.float32)})
        with pytest.raises(WeightsError, match=rf"blk\.0\.{name}\.scale has shape \[3\]; expected \[[14]\]"):
            load(path, "reference")


def test_the_scale_of_the_embedding_is_not_that_of_the_output(data: Path, tmp_path: Path) -> None:
    plain = data / "llamacpp" / "LlamaForCausalLM.gguf"

    def add(tensors: dict[str, Stored]) -> None:  # the embedding has a scale, the output has its own matrix
        value, kind = tensors["token_embd.weight"]
        tensors["token_embd.weight"] = (value / 2, kind)
        tensors["token_embd.scale"] = (np.full(1, 2, np.float32), F32)

    path = rewrite(plain, tmp_path / "x.gguf", edit=add)
    assert np.array_equal(logits(path), logits(plain))


# NVFP4


def test_nvfp4_with_scales(tmp_path: Path, device: str) -> None:  # noqa: F811
    """4-bit floats with two levels of scales, as the converter of llama.cpp repacks them."""
    kind = gguf.GGMLQuantizationType.NVFP4
    folder = make_tiny("LlamaForCausalLM", tmp_path / "hf", intermediate_size=128)
    source = convert(folder, tmp_path / "f32.gguf", "f32")
    rng = np.random.default_rng(3)

    def pack(tensors: dict[str, Stored]) -> None:
        for name, (value, _) in list(tensors.items()):
            if name.startswith("blk.") and value.ndim == 2:
                blocks = rng.integers(0, 256, (value.shape[0], value.shape[1] // 64, 36), np.uint8)
                blocks[..., :4] = rng.integers(0x20, 0x38, blocks[..., :4].shape)  # scales from 1/16 to 1/2
                tensors[name] = (blocks.reshape(value.shape[0], -1), kind)
                tensors[name.replace(".weight", ".scale")] = (np.full(1, 0.1, np.float32), F32)

    def unpack(tensors: dict[str, Stored]) -> None:
        for name, (value, element) in list(tensors.items()):
            if element == kind:
                tensors[name] = (gguf.dequantize(value, kind) * tensors.pop(name.replace(".weight", ".scale"))[0], F32)

    packed = rewrite(source, tmp_path / "nvfp4.gguf", edit=pack)
    expected = logits(rewrite(packed, tmp_path / "plain.gguf", edit=unpack))
    error = np.abs(logits(packed, device) - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if device == "reference" else 0.03)  # the CPU's kernel rounds activations to 8 bits
