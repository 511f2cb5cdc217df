"""Checkpoints whose weights are codes with scales (FP8, MXFP4, NVFP4), against torch, transformers and ``gguf``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.cli import main
from hotshoe.convert import convert, open_checkpoint, open_weights
from hotshoe.convert._blocks import Scaled
from hotshoe_core.errors import ConversionError
from tests.families.row import make_folder
from tests.families.rows import ROWS
from tests.support.converted import keys, tensors
from tests.support.text_models import load
from tests.support.tiny_text import make_tiny

torch = pytest.importorskip("torch", reason="the oracle of small floats is torch")
safetensors = pytest.importorskip("safetensors.torch", reason="checkpoints with small floats are written with it")

Tensor = Any
Made = tuple[dict[str, Tensor], Tensor]
"""The tensors in place of one weight, by what follows "weight" in their names; and the weight's values."""
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
BLOCK = 128


def random_codes(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def fp8(value: Tensor, kind: str, seed: int) -> Made:
    rows, cols = value.shape
    scale = {
        "block": value.abs().max() / 448 * torch.rand(-(-rows // BLOCK), -(-cols // BLOCK)),
        "channel": value.abs().amax(1, keepdim=True) / 448,
        "tensor": value.abs().max() / 448,
        "e5m2": value.abs().max() / 448,
        "e8m0": torch.full((-(-rows // BLOCK), -(-cols // BLOCK)), 2.0**-7),
    }[kind]
    stored = scale.to(torch.float8_e8m0fnu) if kind == "e8m0" else scale
    spread = scale
    if kind in ("block", "e8m0"):
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :cols]
    codes = (value / spread).to(torch.float8_e5m2 if kind == "e5m2" else torch.float8_e4m3fn)
    name = "_scale" if kind in ("channel", "tensor") else "_scale_inv"
    extra = {"../input_scale": torch.tensor(0.5)} if kind == "tensor" else {}
    return {"": codes, name: stored} | extra, codes.float() * spread


def nvfp4(value: Tensor, kind: str, seed: int) -> Made:
    rows, cols = value.shape
    codes = random_codes((rows, cols), seed)
    scales = (torch.rand(rows, cols // 16, generator=torch.Generator().manual_seed(seed)) + 0.1).to(torch.float8_e4m3fn)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    factor, given = torch.tensor(0.0625), torch.tensor(0.25)
    values = E2M1[codes.long()] * scales.float().repeat_interleave(16, 1) * factor
    if kind == "modelopt":
        return {"": packed, "_scale": scales, "_scale_2": factor, "../input_scale": given}, values
    names = {"_packed": packed, "_scale": scales, "_global_scale": 1 / factor, "../input_global_scale": 1 / given}
    return names, values


def mxfp4(value: Tensor, kind: str, seed: int) -> Made:
    rows, cols = value.shape
    codes = random_codes((rows, cols), seed)
    scales = torch.randint(121, 126, (rows, cols // 32), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    values = E2M1[codes.long()] * torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
    return {"_packed": codes[:, ::2] | codes[:, 1::2] << 4, "_scale": scales}, values


FORMS: dict[str, tuple[Callable[[Tensor, str, int], Made], dict[str, Any]]] = {
    "block": (fp8, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}),
    "e8m0": (fp8, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "scale_fmt": "ue8m0"}),
    "channel": (
        fp8,
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"a": {"weights": {"strategy": "channel"}}},
        },
    ),
    "tensor": (fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "e5m2": (fp8, {"quant_method": "fp8", "weight_block_size": None}),
    "modelopt": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4-packed": (
        nvfp4,
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": {"a": {"weights": {}}},
        },
    ),
    "mxfp4-packed": (mxfp4, {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}),
}
SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2, "head_dim": 48}


def both(folder: Path, kind: str, architecture: str = "LlamaForCausalLM", **sizes: Any) -> tuple[Path, Path]:
    """Two folders: matrices of the layers in this form, and their values as float32."""
    make, settings = FORMS[kind]
    plain, coded = folder / "plain", folder / "coded"
    shutil.copytree(make_tiny(architecture, plain, **SIZES | sizes), coded)
    stored = safetensors.load_file(plain / "model.safetensors")
    values, codes = dict(stored), dict(stored)
    for i, (name, value) in enumerate(stored.items()):
        if "layers" not in name or not name.endswith("proj.weight"):
            continue
        made, values[name] = make(value, kind, i)
        del codes[name]
        module = name.removesuffix("weight")
        codes |= {f"{module}{k[3:]}" if k.startswith("../") else name + k: v.contiguous() for k, v in made.items()}
    safetensors.save_file(values, plain / "model.safetensors", {"format": "pt"})
    safetensors.save_file(codes, coded / "model.safetensors", {"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return coded, plain


def values_of(path: Path) -> dict[str, np.ndarray]:
    """What a file's matrices multiply with."""
    found = tensors(path)
    values = {}
    for name, (_, value) in found.items():
        if name.endswith(".weight"):
            scale = found.get(name.replace(".weight", ".scale"), ("", np.ones(1, np.float32)))[1]
            values[name] = value * scale.reshape(-1, *[1] * (value.ndim - 1))
    return values


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("kind", FORMS)
def test_the_values_are_those_of_the_codes(kind: str, architecture: str, tmp_path: Path) -> None:
    """Llama's queries and keys are reordered, and experts are stacked."""
    sizes = {"moe_intermediate_size": 64} if "Moe" in architecture else {}
    coded, plain = both(tmp_path, kind, architecture, **sizes)
    ours = convert(coded, tmp_path / "coded.gguf", "f32")
    expected = values_of(convert(plain, tmp_path / "plain.gguf", "f32"))
    found = values_of(ours)
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(found[name], expected[name]), name
    packed = {"modelopt": "NVFP4", "nvfp4-packed": "NVFP4", "mxfp4-packed": "MXFP4"}.get(kind, "F32")
    assert tensors(ours)["blk.1.attn_output.weight"][0] == packed
    assert keys(ours)["general.file_type"] == {"F32": 0, "MXFP4": 38, "NVFP4": 39}[packed]


@pytest.mark.parametrize("kind", ["block", "modelopt", "mxfp4-packed"])
def test_logits(kind: str, tmp_path: Path) -> None:
    coded, plain = both(tmp_path, kind)
    ids = list(range(2, 20))
    logits = []
    for folder in (coded, plain):
        with load(convert(folder, folder / "model.gguf", "f32"), "reference") as model:
            logits.append(model.logits(ids))
    assert np.abs(logits[0] - logits[1]).max() <= 1e-5 * np.abs(logits[1]).max()


def test_blocks_keep_their_type_in_a_quantized_file(tmp_path: Path) -> None:
    coded, _ = both(tmp_path, "modelopt")
    found = tensors(convert(coded, tmp_path / "q8.gguf", "q8_0"))
    assert found["blk.0.attn_q.weight"][0] == "NVFP4"
    assert found["token_embd.weight"][0] == "Q8_0"


def test_factors_of_inputs_are_kept(tmp_path: Path) -> None:
    """hotshoe passes over them, but llama.cpp's converter writes them."""
    coded, _ = both(tmp_path, "nvfp4-packed")
    found = tensors(convert(coded, tmp_path / "x.gguf", "f16"))
    assert found["blk.0.attn_q.input_scale"][1].tolist() == [0.25]
    assert found["blk.0.attn_q.scale"][1].tolist() == [0.0625]


def test_blocks_of_gpt_oss(tmp_path: Path) -> None:
    """Codes and scales of all experts in one tensor, as transformers dequantizes and ``gguf`` reads them."""
    oracle = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 8, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(120, 130, (3, 8, 2), generator=generator, dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.down_proj"
    safetensors.save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, tmp_path / "x.safetensors")
    checkpoint = open_weights(tmp_path / "x.safetensors")
    assert {t.name: t.shape for t in checkpoint.tensors.values()} == {name: (3, 8, 64)}
    expected = oracle.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # (experts, in, out)
    assert np.array_equal(checkpoint.read(name), expected.transpose(1, 2).numpy())
    raw = checkpoint.read_blocks(name)
    assert np.array_equal(gguf.dequantize(raw, gguf.GGMLQuantizationType.MXFP4), checkpoint.read(name))


def gpt_oss(folder: Path) -> tuple[Path, Path]:
    """Two folders: experts in blocks, as published, and their values by transformers."""
    oracle = pytest.importorskip("transformers.integrations.mxfp4")
    plain, coded = make_folder(ROWS["gpt-oss"], folder / "plain"), folder / "coded"
    shutil.copytree(plain, coded)
    stored = safetensors.load_file(plain / "model.safetensors")
    values, codes = dict(stored), dict(stored)
    generator = torch.Generator().manual_seed(0)
    for name, value in stored.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        n, rows, cols = value.transpose(1, 2).shape
        blocks = torch.randint(0, 256, (n, rows, cols // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, (n, rows, cols // 32), generator=generator, dtype=torch.uint8)
        values[name] = oracle.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
        codes |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        del codes[name]
    safetensors.save_file(values, plain / "model.safetensors", {"format": "pt"})
    safetensors.save_file(codes, coded / "model.safetensors", {"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (coded / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return coded, plain


def test_gpt_oss_as_published(tmp_path: Path) -> None:
    coded, plain = gpt_oss(tmp_path)
    ours = convert(coded, tmp_path / "coded.gguf", "f16")
    assert {kind for name, (kind, _) in tensors(ours).items() if name.endswith("exps.weight")} == {"MXFP4"}
    found, expected = (values_of(convert(folder, folder / "f32.gguf", "f32")) for folder in (coded, plain))
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(found[name], expected[name]), name


def test_inspect_counts_values_and_not_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for folder in both(tmp_path, "modelopt"):
        assert main(["inspect", str(folder)]) == 0
        counts.append(capsys.readouterr().out)
    assert "NVFP4" in counts[0]
    parameters = [next(line for line in out.splitlines() if "parameters" in line) for out in counts]
    assert parameters[0] == parameters[1]


def test_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    coded, _ = both(tmp_path, "block")
    path = coded / "model.safetensors"
    stored = safetensors.load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    safetensors.save_file(stored | {f"{name}_scale_inv": torch.ones(7, 5)}, path)
    with pytest.raises(ConversionError, match=r"up_proj\.weight .*F8_E4M3 \(320, 192\).*F32 \(7, 5\).*do not fit"):
        open_checkpoint(coded)


@pytest.mark.parametrize("scale", [127, 128, 255])
@pytest.mark.parametrize("kind", ["modelopt", "mxfp4-packed"])
def test_scales_without_a_meaning_are_refused(kind: str, scale: int, tmp_path: Path) -> None:
    """Of NVFP4: NaN and negative ones. Of MXFP4: NaN."""
    coded, _ = both(tmp_path, kind)
    path, name = coded / "model.safetensors", "model.layers.0.mlp.up_proj.weight_scale"
    stored = safetensors.load_file(path)
    stored[name].view(torch.uint8)[1, 2] = scale
    safetensors.save_file(stored, path, {"format": "pt"})
    if kind == "mxfp4-packed" and scale < 255:
        convert(coded, tmp_path / "x.gguf", "f16")
        return
    with pytest.raises(ConversionError, match=r"up_proj\.weight_scale .*negative or not a number"):
        convert(coded, tmp_path / "x.gguf", "f16")


@pytest.mark.parametrize("kind", ["modelopt", "mxfp4-packed"])
def test_scales_of_another_type_are_refused(kind: str, tmp_path: Path) -> None:
    coded, _ = both(tmp_path, kind)
    path, name = coded / "model.safetensors", "model.layers.0.mlp.up_proj.weight_scale"
    stored = safetensors.load_file(path)
    safetensors.save_file(stored | {name: stored[name].float()}, path, {"format": "pt"})
    with pytest.raises(ConversionError, match="do not fit each other"):
        open_checkpoint(coded)


def test_any_codes_and_scales_are_read_or_refused(tmp_path: Path) -> None:
    """Random types and shapes; what is accepted has the shape that it says."""
    rng, accepted = np.random.default_rng(1), 0
    u8, e4m3, f32, i32 = torch.uint8, torch.float8_e4m3fn, torch.float32, torch.int32
    of_codes = [(4, 16), (4, 32), (3, 4, 16), (3, 4, 2, 16), (4,), (), (0, 4)]
    of_scales = [(), (1,), (4,), (4, 1), (4, 2), (4, 4), (3, 4, 1), (3, 4, 2), (0, 4)]
    choices: dict[str, tuple[list[Any], list[tuple[int, ...]]]] = {
        "weight": ([u8, e4m3, f32], of_codes),
        "weight_packed": ([u8, i32], of_codes),
        "weight_blocks": ([u8, i32], of_codes),
        "weight_scale": ([u8, e4m3, f32, i32], of_scales),
        "weight_scale_inv": ([f32, i32], of_scales),
        "weight_scales": ([u8], of_scales),
        "weight_scale_2": ([f32, i32], [(), (1,), (3,), (2,)]),
        "input_scale": ([f32, i32], [(), (1,), (3,)]),
    }
    for i in range(600):
        tensors = {}
        for name in rng.permutation(list(choices))[: rng.integers(2, 5)]:
            kinds, shapes = choices[name]
            tensors[f"x.{name}"] = torch.ones(shapes[rng.integers(len(shapes))]).to(kinds[rng.integers(len(kinds))])
        safetensors.save_file(tensors, tmp_path / "x.safetensors")
        config = {"quantization_config": {"weight_block_size": [[2, 16], None, [0, 1], "x"][i % 4]}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            checkpoint = open_weights(tmp_path / "x.safetensors")
        except ConversionError:
            continue
        for name, tensor in checkpoint.tensors.items():
            if isinstance(tensor, Scaled):
                accepted += 1
                assert checkpoint.read(name).shape == tensor.shape
                if tensor.packed is not None:
                    assert checkpoint.read_blocks(name).shape[:-1] == tensor.shape[:-1]
    assert accepted > 5


def test_other_methods_are_still_refused(tmp_path: Path) -> None:
    coded, _ = both(tmp_path, "block")
    config = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ConversionError, match="quantized already"):
        convert(coded, tmp_path / "x.gguf", "f32")
