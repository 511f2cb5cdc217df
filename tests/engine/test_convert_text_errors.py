"""Text models that the converter refuses, by name and with a next step."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe_core.errors import ConversionError, HotshoeError, ModelFileError, UnknownArchitectureError
from tests.support.converted import tensors
from tests.support.tiny_bert import edit_json
from tests.support.tiny_text import ARCHITECTURES, make_tiny

safetensors = pytest.importorskip("safetensors.numpy", reason="the tests of text models write theirs with it")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``made(architecture)``: a folder made once, which a test must not change."""
    folders: dict[str, Path] = {}

    def get(architecture: str) -> Path:
        if architecture not in folders:
            folders[architecture] = make_tiny(architecture, tmp_path_factory.mktemp(architecture))
        return folders[architecture]

    return get


@pytest.fixture
def copied(made: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """``copied(architecture)``: the same, to change."""

    def get(architecture: str) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        for path in made(architecture).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    return get


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("architecture", "changes", "error", "message"),
    [
        ("Llama", {"architectures": ["LlamaForCausalLn"]}, UnknownArchitectureError, "did you mean 'LlamaForCausalLM'"),
        ("Llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, ConversionError, r"already \(gptq in"),
        ("Llama", {"quantization_config": {"load_in_4bit": True}}, ConversionError, r"\(load_in_4bit(.|\n)*original"),
        ("Llama", {"quantization_config": 4}, ConversionError, r"\(quantization_config in"),
        ("Llama", {"hidden_act": "gelu"}, ConversionError, "hidden_act is 'gelu'"),
        ("Llama", {"hidden_size": ...}, ModelFileError, "hidden_size: missing"),
        ("Llama", {"num_attention_heads": 3}, ConversionError, "num_attention_heads 3 is not a multiple of"),
        ("Llama", {"head_dim": 15}, ConversionError, "head_dim is 15; RoPE needs an even one"),
        ("Llama", {"head_dim": 20}, ConversionError, r"q_proj.weight is \(64, 64\), expected \(80, 64\)"),
        ("Llama", {"num_hidden_layers": 2}, ConversionError, "unknown: model.layers.2.input_layernorm.weight"),
        ("Llama", {"num_hidden_layers": 4}, ConversionError, "missing: model.layers.3.input_layernorm.weight"),
        ("Llama", {"attention_bias": True}, ConversionError, "missing: model.layers.0.self_attn.k_proj.bias"),
        ("Llama", {"vocab_size": 2**31}, ConversionError, r"expected \(2147483648, 64\)"),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "dynamic"}},
            ConversionError,
            "'dynamic'(.|\n)*linear, llama3, yarn",
        ),
        ("Llama", {"rope_parameters": []}, None, ""),
        ("Llama", {"rope_parameters": [3]}, ModelFileError, r"rope_parameters: \[3\]; expected an object"),
        ("Llama", {"rope_parameters": {"rope_type": "linear"}}, ModelFileError, "rope factor: missing"),
        (
            "Llama",
            {"rope_parameters": YARN | {"factor": -1}},
            ModelFileError,
            "rope factor: -1; expected a number above",
        ),
        (
            "Llama",
            {"rope_parameters": YARN | {"original_max_position_embeddings": 2**40}},
            ModelFileError,
            "1099511627776; expected a number of tokens",
        ),
        *(
            ("Qwen2", {"rope_parameters": YARN | {key: value}}, ConversionError, f"rope_parameters: {key} is {value}")
            for key, value in (("mscale_all_dim", 0.7), ("invented", 3))
        ),
        ("Qwen2", {"rope_parameters": YARN | {"truncate": False, "max_position_embeddings": 512}}, None, ""),
        ("Llama", {"rope_parameters": {"rope_type": "default", "factor": 4.0}}, ConversionError, "factor is 4.0"),
        ("Llama", {"rope_parameters": YARN | {"low_freq_factor": 2.0}}, ConversionError, "low_freq_factor is 2.0"),
        ("Llama", {"partial_rotary_factor": 0.5}, ConversionError, "partial_rotary_factor is 0.5, which .* does not"),
        ("Llama", {"attention_multiplier": 0.5, "scale_emb": 12}, ConversionError, "same holds for scale_emb is 12"),
        ("Llama", {"hidden_activation": "gelu"}, None, ""),
        ("Qwen3", {"layer_types": ["sliding_attention"] * 3}, ConversionError, "layer_types is"),
        ("Gemma3", {"rope_parameters": {"sliding_attention": YARN}}, ConversionError, "'yarn'.*none in layers with"),
        ("Qwen2", {"use_sliding_window": True}, ConversionError, "use_sliding_window is True"),
        ("Qwen3Moe", {"mlp_only_layers": [0]}, ConversionError, r"mlp_only_layers is \[0\]"),
        (
            "Qwen3Moe",
            {"num_local_experts": 2**31},
            ConversionError,
            "key 'qwen3moe.expert_count': is 2147483648; expected 1 to 16777216",
        ),
        ("Qwen3Moe", {"num_local_experts": 1, "num_experts": 1}, ConversionError, "num_experts_per_tok is 2"),
        (
            "Gemma3",
            {"layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]},
            ConversionError,
            "n-th",
        ),
        ("Gemma3", {"attn_logit_softcapping": 50.0}, ConversionError, "attn_logit_softcapping is 50.0"),
        ("Gemma3", {"hidden_activation": "silu"}, ConversionError, "hidden_activation is 'silu'"),
        ("Phi3", {"rope_parameters": LONGROPE}, ModelFileError, "rope long_factor: missing; expected a list of 8"),
        ("Phi3", {"rope_parameters": YARN}, ConversionError, "'yarn'"),
        ("Phi3", {"head_dim": 32}, ConversionError, "can only express hidden_size / num_attention_heads, 16"),
    ],
)
def test_configs(
    copied: Callable[[str], Path],
    tmp_path: Path,
    architecture: str,
    changes: dict[str, Any],
    error: type[HotshoeError] | None,
    message: str,
) -> None:
    folder = copied(f"{architecture}ForCausalLM")
    edit_json(folder, "config.json", **changes)
    if error is None:
        convert(folder, tmp_path / "m.gguf")
        return
    with pytest.raises(error, match=message):
        convert(folder, tmp_path / "m.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_missing_and_extra_tensors(copied: Callable[[str], Path], tmp_path: Path, architecture: str) -> None:
    folder = copied(architecture)
    weights = safetensors.load_file(folder / "model.safetensors")
    lost = "model.layers.1.self_attn.o_proj.weight"
    safetensors.save_file({n: w for n, w in weights.items() if n != lost}, folder / "model.safetensors")
    with pytest.raises(ConversionError, match=f"missing: {lost}"):
        convert(folder, tmp_path / "m.gguf")
    more = {"model.layers.0.self_attn.sinks": np.zeros(4, np.float32)}
    safetensors.save_file(weights | more, folder / "model.safetensors")
    with pytest.raises(ConversionError, match=r"unknown: model\.layers\.0\.self_attn\.sinks"):
        convert(folder, tmp_path / "m.gguf")
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    safetensors.save_file(weights | buffers, folder / "model.safetensors")
    assert len(tensors(convert(folder, tmp_path / "m.gguf"))) <= len(weights)


def test_a_model_type_stands_in_for_an_architecture(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("Gemma3ForCausalLM")
    edit_json(folder, "config.json", architectures=...)
    convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM"]
)
def test_damaged_json_is_an_error_of_ours(copied: Callable[[str], Path], tmp_path: Path, architecture: str) -> None:
    """One value of a JSON file replaced by another: converted, or an error of hotshoe's that names the folder."""
    folder = copied(architecture)
    rng = random.Random(0)
    outcomes = set()
    for name, rounds in (("config.json", 60), ("tokenizer_config.json", 20), ("tokenizer.json", 30)):
        original = (folder / name).read_text(encoding="utf-8")
        for _ in range(rounds):
            (folder / name).write_text(json.dumps(_with_one_change(json.loads(original), rng)), encoding="utf-8")
            try:
                convert(folder, tmp_path / "m.gguf", overwrite=True)
                outcomes.add("converted")
            except HotshoeError as error:  # anything else fails the test
                outcomes.add("refused" if str(folder) in str(error) else f"without a path: {error}")
        (folder / name).write_text(original, encoding="utf-8")
    assert outcomes == {"converted", "refused"}


def _with_one_change(value: Any, rng: random.Random) -> Any:
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value[key] = _with_one_change(value[key], rng)
        return value
    return rng.choice([None, True, -1, 0, 7, 2**40, 1e300, -0.5, "", "x", [], [1], {}, {"type": "x"}, [[]]])
