"""Text models, Hugging Face folders to GGUF: every tensor against the checkpoint, and the keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import ConversionError
from hotshoe_core.gguf import GGUFFile
from tests.support.converted import keys, tensors
from tests.support.tiny_bert import edit_json, write_sentence_modules
from tests.support.tiny_text import (
    ARCHITECTURES,
    CHAT_TEMPLATE,
    VOCAB_SIZE,
    end_texts_with,
    make_tiny,
    state_dict,
)

# the part of transformers' name after "model.layers.N.", and GGUF's after "blk.N."
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
NORMS = {
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ARCH = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
}
YARN = {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_theta": 5e5,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_theta": 1e4,
    "rope_type": "longrope",
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + i / 8 for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
    "original_max_position_embeddings": 256,
}


def expected(folder: Path, arch: str, n_heads: int, n_kv_heads: int) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors that the file must hold, made of the checkpoint's in another way than the converter's."""
    norms = NORMS.get(arch, {"post_attention_layernorm": "ffn_norm"})
    found: dict[str, np.ndarray[Any, Any]] = {}
    experts: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
    for name, value in state_dict(folder).items():
        stem, _, kind = name.rpartition(".")
        if stem in OUTER:
            target = OUTER[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            if part.startswith("mlp.experts."):
                _, _, expert, projection = part.split(".")
                stack = experts.setdefault(f"blk.{layer}.ffn_{projection.removesuffix('_proj')}_exps.weight", {})
                stack[int(expert)] = value
                continue
            target = f"blk.{layer}.{(LAYER | norms)[part]}"
        if arch == "gemma3" and stem.endswith("norm"):
            value = value + np.float32(1)
        if arch == "llama" and target.endswith(("attn_q", "attn_k")):
            heads = n_heads if target.endswith("attn_q") else n_kv_heads
            half = value.shape[0] // heads // 2
            rows = [h * 2 * half + part * half + i for h in range(heads) for i in range(half) for part in (0, 1)]
            value = value[rows]
        found[f"{target}.{kind}"] = value
    return found | {name: np.stack([stack[i] for i in sorted(stack)]) for name, stack in experts.items()}


CASES: list[tuple[str, dict[str, Any]]] = [
    *((architecture, {}) for architecture in ARCHITECTURES),
    ("LlamaForCausalLM", {"tie_word_embeddings": True, "pre": "llama-bpe"}),
    ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "pre": "smollm"}),
    ("MistralForCausalLM", {"head_dim": 32, "num_key_value_heads": 1, "pre": "tekken"}),
    ("Qwen2ForCausalLM", {"tie_word_embeddings": True, "dtype": "bfloat16"}),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True, "attention_bias": True}),
    ("Gemma3ForCausalLM", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
]


@pytest.mark.parametrize(("architecture", "changes"), CASES, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_every_tensor(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    folder = make_tiny(architecture, tmp_path / "m", **changes)
    path = convert(folder, tmp_path / "m.gguf", "f32")
    found, wanted = tensors(path), expected(folder, ARCH[architecture], 4, changes.get("num_key_value_heads", 2))
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name][0] == "F32"
        np.testing.assert_array_equal(found[name][1], value, err_msg=name)
    assert keys(path)["general.architecture"] == ARCH[architecture]


def test_keys_that_all_have(tmp_path: Path) -> None:
    metadata = keys(convert(make_tiny("Qwen3ForCausalLM", tmp_path / "m"), tmp_path / "m.gguf"))
    eps = float(np.float32(1e-6))
    assert {k: v for k, v in metadata.items() if not k.startswith("tokenizer.")} == {
        "general.architecture": "qwen3",
        "general.type": "model",
        "general.name": "M",
        "general.size_label": metadata["general.size_label"],
        "general.file_type": 1,
        "general.quantization_version": 2,
        "qwen3.block_count": 3,
        "qwen3.context_length": 256,
        "qwen3.embedding_length": 64,
        "qwen3.feed_forward_length": 96,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 32,
        "qwen3.attention.value_length": 32,
        "qwen3.attention.layer_norm_rms_epsilon": eps,
        "qwen3.rope.freq_base": 10000.0,
    }
    assert metadata["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert len(metadata["tokenizer.ggml.tokens"]) == VOCAB_SIZE


LINEAR = {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}
GEMMA_ROPE = {
    "full_attention": LINEAR | {"rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
}
KEYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("LlamaForCausalLM", {}, {"vocab_size": VOCAB_SIZE, "rope.dimension_count": 16, "attention.sliding_window": None}),
    ("LlamaForCausalLM", {"head_dim": 24}, {"rope.dimension_count": 24, "attention.key_length": 24}),
    ("LlamaForCausalLM", {"rope_parameters": LINEAR}, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}),
    ("LlamaForCausalLM", {"rope_parameters": LLAMA3}, {"rope.scaling.type": None, "rope.freq_base": 5e5}),
    ("MistralForCausalLM", {"sliding_window": 32}, {"attention.sliding_window": 32}),
    (
        "Qwen2ForCausalLM",
        {"rope_parameters": YARN | {"beta_fast": 16.0, "attention_factor": 1.5}},
        {
            "rope.freq_base": 1e6,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_attn_factor": 1.5,
            "rope.scaling.yarn_beta_slow": None,
            "attention.key_length": None,
        },
    ),
    (
        "Qwen3MoeForCausalLM",
        {},
        {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_weights_norm": None,
            "feed_forward_length": 96,
        },
    ),
    ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}, {"expert_weights_norm": False}),
    (
        "Gemma3ForCausalLM",
        {},
        {
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": None,
            "attention.scale": None,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "final_logit_softcapping": None,
        },
    ),
    (
        "Gemma3ForCausalLM",
        {"rope_parameters": GEMMA_ROPE, "query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "attention.scale": 0.25}
        | {"final_logit_softcapping": 30.0, "rope.freq_base_swa": 1e4},
    ),
    (
        "Gemma3ForCausalLM",
        {"layer_types": ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]},
        {"attention.sliding_window_pattern": 2},
    ),
    (
        "Phi3ForCausalLM",
        {},
        {
            "attention.sliding_window": 0,
            "rope.dimension_count": 16,
            "rope.scaling.original_context_length": 256,
            "rope.scaling.attn_factor": None,
            "attention.key_length": None,
        },
    ),
    (
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "max_position_embeddings": 1024, "sliding_window": 100},
        {
            "attention.sliding_window": 100,
            "context_length": 1024,
            "rope.dimension_count": 12,
            "rope.scaling.attn_factor": (1 + np.log(4) / np.log(256)) ** 0.5,
        },
    ),
]


@pytest.mark.parametrize(("architecture", "changes", "wanted"), KEYS)
def test_keys_of_a_family(tmp_path: Path, architecture: str, changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    metadata = keys(convert(make_tiny(architecture, tmp_path / "m", **changes), tmp_path / "m.gguf"))
    found = {name: metadata.get(f"{ARCH[architecture]}.{name}") for name in wanted}
    assert found == {k: pytest.approx(v) if isinstance(v, float) else v for k, v in wanted.items()}


@pytest.mark.parametrize("old", [LLAMA3, YARN, LINEAR])
def test_rope_as_older_transformers_wrote_it(tmp_path: Path, old: dict[str, Any]) -> None:
    folder = make_tiny("LlamaForCausalLM", tmp_path / "m", rope_parameters=old)
    new = convert(folder, tmp_path / "new.gguf", "f32")
    config = json.loads((folder / "config.json").read_text())
    scaling = dict(config.pop("rope_parameters"))
    config["rope_theta"], config["rope_scaling"] = scaling.pop("rope_theta"), scaling
    scaling["type"] = scaling.pop("rope_type")
    (folder / "config.json").write_text(json.dumps(config))
    assert convert(folder, tmp_path / "old.gguf", "f32").read_bytes() == new.read_bytes()


def test_llama3_factors_are_those_of_transformers(tmp_path: Path) -> None:
    folder = make_tiny("LlamaForCausalLM", tmp_path / "m", rope_parameters=LLAMA3, head_dim=64)
    kind, factors = tensors(convert(folder, tmp_path / "m.gguf", "q8_0"))["rope_freqs.weight"]
    from transformers import AutoModelForCausalLM

    scaled = AutoModelForCausalLM.from_pretrained(folder).model.rotary_emb.inv_freq.numpy()
    plain = 5e5 ** -(np.arange(0, 64, 2) / 64)
    assert kind == "F32"
    assert len(np.unique(factors)) > 2
    assert factors.max() == 8
    np.testing.assert_allclose(plain / factors, scaled, rtol=1e-5)


def test_longrope_factors(tmp_path: Path) -> None:
    folder = make_tiny("Phi3ForCausalLM", tmp_path / "m", rope_parameters=LONGROPE, max_position_embeddings=1024)
    found = tensors(convert(folder, tmp_path / "m.gguf"))
    for name in ("long", "short"):
        kind, values = found[f"rope_factors_{name}.weight"]
        assert kind == "F32"
        np.testing.assert_array_equal(values, np.float32(LONGROPE[f"{name}_factor"]))


@pytest.mark.parametrize(
    ("dtype", "file_type", "matrix", "output", "tolerance"),
    [
        ("f16", 1, "F16", "F16", 1e-3),
        ("bf16", 32, "BF16", "BF16", 4e-3),
        ("q8_0", 7, "Q8_0", "Q8_0", 1 / 127),
        ("q4_0", 2, "Q4_0", "Q8_0", 1 / 7),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_element_types(
    tmp_path: Path, dtype: str, file_type: int, matrix: str, output: str, tolerance: float, tied: bool
) -> None:
    folder = make_tiny("Qwen3MoeForCausalLM", tmp_path / "m", tie_word_embeddings=tied)
    path = convert(folder, tmp_path / "m.gguf", dtype)
    wanted = expected(folder, "qwen3moe", 4, 2)
    assert keys(path)["general.file_type"] == file_type
    last = "token_embd.weight" if tied else "output.weight"
    for name, (kind, values) in tensors(path).items():
        small = values.ndim == 1 or "ffn_gate_inp" in name
        assert kind == ("F32" if small else output if name == last else matrix), name
        error = np.abs(values - wanted[name]).max() / np.abs(wanted[name]).max()
        assert error <= (0 if small else tolerance), name


def test_rows_that_are_not_a_multiple_of_a_block_are_f16(tmp_path: Path) -> None:
    folder = make_tiny("Qwen2ForCausalLM", tmp_path / "m", intermediate_size=80)
    found = tensors(convert(folder, tmp_path / "m.gguf", "q4_0"))
    assert found["blk.0.ffn_down.weight"][0] == "F16"
    assert found["blk.0.ffn_up.weight"][0] == "Q4_0"


def test_experts_stored_together(tmp_path: Path) -> None:
    """As transformers 5 keeps them in memory: all experts of a layer in two tensors."""
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = make_tiny("Qwen3MoeForCausalLM", tmp_path / "m")
    apart = convert(folder, tmp_path / "apart.gguf", "f32")
    weights = safetensors.load_file(folder / "model.safetensors")
    for i in range(2):
        parts = {
            part: np.stack([weights.pop(f"model.layers.{i}.mlp.experts.{e}.{part}_proj.weight") for e in range(4)])
            for part in ("gate", "up", "down")
        }
        weights[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], axis=1)
        weights[f"model.layers.{i}.mlp.experts.down_proj"] = parts["down"]
    safetensors.save_file(weights, folder / "model.safetensors")
    a, b = tensors(apart), tensors(convert(folder, tmp_path / "together.gguf", "f32"))
    assert a.keys() == b.keys()
    for name, (_, values) in a.items():
        np.testing.assert_array_equal(values, b[name][1], err_msg=name)


def test_sharded_checkpoints_and_names_without_model(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = make_tiny("Qwen3ForCausalLM", tmp_path / "m", tie_word_embeddings=True)
    whole = convert(folder, tmp_path / "whole.gguf").read_bytes()
    weights = safetensors.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places: dict[str, str] = {}
    for n, names in enumerate((sorted(weights)[::2], sorted(weights)[1::2])):
        part = {name.removeprefix("model."): weights[name] for name in names}
        safetensors.save_file(part, folder / f"part-{n}.safetensors")
        places |= dict.fromkeys(part, f"part-{n}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert convert(folder, tmp_path / "parts.gguf").read_bytes() == whole


def test_a_head_that_is_stored_although_it_is_tied(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = make_tiny("LlamaForCausalLM", tmp_path / "m", tie_word_embeddings=True)
    weights = safetensors.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    safetensors.save_file(weights, folder / "model.safetensors")
    assert "output.weight" in tensors(convert(folder, tmp_path / "m.gguf"))


def test_names_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    """llama.cpp's own table of names gives each tensor of a checkpoint the name that we gave it."""
    for architecture, arch in ARCH.items():
        folder = make_tiny(architecture, tmp_path / architecture, pre="gpt-2")
        enum = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
        table = gguf.get_tensor_name_map(enum, 8)
        names = {
            table.get_name(name, try_suffixes=(".weight", ".bias"))
            for name in state_dict(folder)
            if ".experts." not in name
        }
        found = tensors(convert(folder, tmp_path / f"{arch}.gguf", overwrite=True)).keys()
        assert {name for name in found if "_exps" not in name} == names


def test_embeddings_need_no_head_and_say_how_they_are_pooled(tmp_path: Path) -> None:
    """As Qwen3 Embedding is published, tied or not, and as sentence-transformers saves a Qwen3Model."""
    folder = make_tiny("Qwen3ForCausalLM", tmp_path / "m", tie_word_embeddings=True)
    edit_json(folder, "config.json", architectures=["Qwen3Model"], tie_word_embeddings=False)
    with pytest.raises(
        ConversionError, match=r"is a Qwen3Model, a model without an output matrix(.|\n)*copy modules.json"
    ):
        convert(folder, tmp_path / "m.gguf")
    write_sentence_modules(folder, 64, "lasttoken", max_seq_length=64)
    path = convert(folder, tmp_path / "m.gguf")
    assert "output.weight" not in tensors(path)
    assert keys(path)["qwen3.pooling_type"] == 3
    edit_json(folder, "sentence_bert_config.json", do_lower_case=True)
    with pytest.raises(ConversionError, match="cannot say that texts are lowercased"):
        convert(folder, tmp_path / "m.gguf", overwrite=True)


@pytest.mark.parametrize(("token", "eot"), [("<|odd|>", 1), ("<|end|>", None)])
def test_a_token_after_a_text(tmp_path: Path, token: str, eot: int | None) -> None:
    folder = make_tiny("Qwen3ForCausalLM", tmp_path / "m", tie_word_embeddings=True)
    end_texts_with(folder, token)
    path = convert(folder, tmp_path / "m.gguf")
    with GGUFFile(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    assert tokenizer.token(tokenizer.encode("the camera")[-1]) == token
    assert tokenizer.encode("the camera")[:-1] == tokenizer.encode("the camera", add_special=False)
    assert keys(path).get("tokenizer.ggml.eot_token_id") == eot
