"""Files in Ollama's dialects. Each is made from a file of ours by hand, as Ollama's converters wrote them.

Source: convert/*.go in the last version with Ollama's own engine, and llama/compat in the versions since.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe.dialects import DIALECTS, translate
from hotshoe.load_request import open_file
from hotshoe.loading import task_of
from hotshoe.runner.text import TextModel
from hotshoe.tasks import Task
from hotshoe_core.errors import HotshoeError, ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.families.made import Made
from tests.families.rows import ROWS
from tests.support.rewrite import Stored, rewrite
from tests.support.text_models import load

F32 = gguf.GGMLQuantizationType.F32
IDS = np.random.default_rng(5).integers(2, 250, 12).tolist()


@dataclass(frozen=True)
class Ollama:
    """How Ollama's file differs from llama.cpp's. Keys are without the architecture."""

    becomes: str
    """llama.cpp's name of the architecture."""
    arch: str
    keys: Mapping[str, str] = field(default_factory=dict)
    """From llama.cpp's name to Ollama's."""
    lacks: tuple[str, ...] = ()
    has: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    """From a part of llama.cpp's name to Ollama's."""
    from_values: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: {}
    """As ``has``, from the values in llama.cpp's file."""
    tower: bool = False
    more: Callable[[dict[str, Stored]], None] = lambda tensors: None
    row: str = ""
    """The row of the table of families that gives the model; "" for the first of the architecture."""


def in_dialect(plain: Path, target: Path, ollama: Ollama) -> Path:
    with GGUFFile(plain) as file:
        old = file.architecture
        values = {key: list(v) if hasattr(v, "tolist") else v for key, v in file.metadata.arch.items()}
    changes: dict[str, Any] = {f"{old}.{key}": None for key in values}
    kept = {ollama.keys.get(key, key): value for key, value in values.items() if key not in ollama.lacks}
    kept |= {"vision.block_count": 2, "vision.image_size": 32} if ollama.tower else {}
    kept |= ollama.has | ollama.from_values(values)
    whole = {key if key.startswith("tokenizer.") else f"{ollama.arch}.{key}": v for key, v in kept.items()}

    def edit(tensors: dict[str, Stored]) -> None:
        for name, value in list(tensors.items()):
            other = name
            for part, new in ollama.tensors.items():
                other = other.replace(part, new)
            tensors[other] = tensors.pop(name) if other != name else value
        if ollama.tower:
            tensors["v.patch_embedding.weight"] = (np.ones((4, 8), np.float32), F32)
            tensors["mm.input_projection.weight"] = (np.ones((4, 8), np.float32), F32)
        ollama.more(tensors)

    return rewrite(plain, target, changes | {"general.architecture": ollama.arch} | whole, edit=edit)


def _head_counts(values: dict[str, Any]) -> dict[str, Any]:
    """One number of key and value heads for each layer; 0 for those without attention."""
    n, kv = values["block_count"], values["attention.head_count_kv"]
    every = values.get("full_attention_interval", 4)
    return {"attention.head_count_kv": [0 if (i + 1) % every else kv for i in range(n)]}


def _halves(tensors: dict[str, Stored]) -> None:
    """Reorder GLM-4's queries and keys: RoPE turns the first 12 of 24 elements of a head, in pairs (i, i + 6)."""
    order = np.r_[0:12:2, 1:12:2, 12:24]
    for name, (value, kind) in list(tensors.items()):
        if ".attn_q." in name or ".attn_k." in name:
            heads = value.reshape(-1, 24, *value.shape[1:])
            tensors[name] = (np.ascontiguousarray(heads[:, order].reshape(value.shape)), kind)


MISTRAL = {
    "rope.scaling.yarn_beta_fast": "rope.scaling.beta_fast",
    "rope.scaling.yarn_beta_slow": "rope.scaling.beta_slow",
    "rope.scaling.yarn_log_multiplier": "rope.scaling.mscale_all_dim",
    "attention.temperature_scale": "rope.scaling_beta",
}
SECTIONS = ("mrope_sections", "rope.mrope_section", "rope.dimension_sections")
SSM_DT = {".ssm_dt.bias": ".ssm_dt"}
QWEN35 = Ollama(
    "qwen35",
    "qwen35",
    has={
        "ssm.v_head_reordered": True,
        "rope.mrope_interleaved": True,
        "image_token_id": 5,
        "vision_start_token_id": 6,
        "vision_end_token_id": 7,
    },
    from_values=lambda values: (
        _head_counts(values) | {name: [int(n) for n in values["rope.dimension_sections"][:3]] for name in SECTIONS}
    ),
    tensors=SSM_DT,
    tower=True,
    more=lambda tensors: tensors.update({"mtp.fc.weight": (np.ones((4, 8), np.float32), F32)}),
)
FILES: dict[str, Ollama] = {
    "gemma3": Ollama(
        "gemma3",
        "gemma3",
        {"rope.freq_base": "rope.global.freq_base", "rope.freq_base_swa": "rope.local.freq_base"},
        lacks=("attention.layer_norm_rms_epsilon",),
        has={"mm.tokens_per_image": 256},
        tower=True,
        row="gemma3-vision",  # its epsilon is the one that readers assume
    ),
    "embeddinggemma": Ollama(
        "gemma-embedding",
        "gemma3",
        lacks=(*(f"dense_{i}_feat_{end}" for i in (2, 3) for end in ("in", "out")), "rope.freq_base_swa"),
        has={"attention.causal": False},
        tensors={"dense_2.": "dense.0.", "dense_3.": "dense.1.", "output_norm.": "norm."},
    ),
    "lfm2": Ollama(
        "lfm2",
        "lfm2",
        has={"feed_forward_length": 12288, "tokenizer.ggml.pre": "default"},
        tensors={"token_embd_norm": "output_norm"},
    ),
    "glm4moelite": Ollama(
        "deepseek2",
        "glm4moelite",
        lacks=("expert_group_count", "expert_group_used_count"),
        has={
            "attention.head_count_kv": 4,
            "attention.key_length": 24,
            "attention.value_length": 12,
            "attention.key_length_mla": 24,
            "attention.value_length_mla": 16,
            "tokenizer.ggml.eos_token_ids": [1, 258, 259],
        },
        row="deepseek-v2-lite",
    ),
    "gptoss": Ollama(
        "gpt-oss",
        "gptoss",
        lacks=("expert_feed_forward_length", "rope.scaling.type"),
        has={"tokenizer.ggml.pre": "default"},
        tensors={"attn_output": "attn_out", "attn_sinks.weight": "attn_sinks", "post_attention_norm": "ffn_norm"},
    ),
    "olmo3": Ollama("olmo2", "olmo3", {"rope.scaling.yarn_attn_factor": "rope.scaling.attn_factor"}, row="olmo3"),
    "mistral3": Ollama(
        "mistral3", "mistral3", MISTRAL, has={"tokenizer.ggml.pre": "default", "image_token_index": 10}, tower=True
    ),
    "qwen3next": Ollama("qwen3next", "qwen3next", from_values=_head_counts, tensors=SSM_DT),
    "qwen35": QWEN35,
    "qwen35moe": replace(QWEN35, becomes="qwen35moe", arch="qwen35moe"),
    "laguna": Ollama(
        "laguna",
        "laguna",
        {"rope.dimension_count_swa": "rope.swa.dimension_count", "rope.freq_base_swa": "rope.swa.freq_base"},
        has={"attention.sink_enabled": False, "attention.qk_norm": True, "decoder_sparse_step": 1},
        tensors={".attn_gate.": ".attn_g."},
    ),
    "gemma4": Ollama(
        "gemma4",
        "gemma4",
        tensors={".ffn_down_exps.scale": ".ffn_gate_inp.per_expert_scale"},
        tower=True,
        row="gemma4-experts",
    ),
    "qwen25vl": Ollama(
        "qwen2vl",
        "qwen25vl",
        lacks=("rope.dimension_sections",),
        from_values=lambda values: {"rope.mrope_section": [int(n) for n in values["rope.dimension_sections"][:3]]},
        tower=True,
    ),
    "qwen3vl": Ollama(
        "qwen3vl",
        "qwen3vl",
        lacks=("rope.dimension_sections", "n_deepstack_layers"),
        has={"vision.deepstack_visual_indexes": [5]},
        tower=True,
    ),
    "qwen3vlmoe": Ollama(
        "qwen3vlmoe",
        "qwen3vlmoe",
        lacks=("rope.dimension_sections", "n_deepstack_layers"),
        has={"vision.deepstack_visual_indexes": [5]},
        tower=True,
    ),
    "glmocr": Ollama(
        "glm4",
        "glmocr",
        lacks=("rope.dimension_count",),
        has={"tokenizer.ggml.pre": "llama-bpe", "image_token_id": 5, "video_end_token_id": 6},
        tensors={
            ".attn_output.": ".attn_out.",
            ".post_attention_norm.": ".post_attn_norm.",
            ".post_ffw_norm.": ".post_ffn_norm.",
        },
        from_values=lambda values: {
            "rope.partial_rotary_factor": 0.5,
            "rope.mrope_section": [2, 2, values["rope.dimension_count"] // 2 - 4],
        },
        more=_halves,
        tower=True,
    ),
    "nemotron_h_omni": Ollama("nemotron_h", "nemotron_h_omni", tower=True),
    "nemotron_h_moe": Ollama(
        "nemotron_h_moe",
        "nemotron_h_moe",
        lacks=("moe_latent_size",),
        tensors={".ffn_latent_down.": ".ffn_latent_in.", ".ffn_latent_up.": ".ffn_latent_out."},
        row="nemotron_h_moe-latent",
    ),
}


def results(path: Path) -> np.ndarray[Any, Any]:
    """Logits, or the vector of a text."""
    options: dict[str, Any] = {"kv_dtype": "f32"} if task_of(path) is Task.TEXT else {}
    with hotshoe.load_model(path, "reference", **options) as model:
        return model.logits(IDS) if isinstance(model, TextModel) else model._compute([IDS])


OTHERS = {"bert", "gemma3n", "llama"}  # their dialects change the vocabulary: see below


def test_every_dialect_is_tested() -> None:
    assert {dialect.arch for dialect in DIALECTS} == {ollama.arch for ollama in FILES.values()} | OTHERS


@pytest.mark.parametrize("name", FILES)
def test_the_logits_are_those_of_the_plain_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ollama = FILES[name]
    row = next(r for key, r in ROWS.items() if ollama.row in ("", key) and r.arch == ollama.becomes)
    plain = Made(name, row, tmp_path).file()
    path = in_dialect(plain, tmp_path / "ollama.gguf", ollama)
    with GGUFFile(path) as theirs, GGUFFile(plain) as file:
        found, values = translate(theirs).file.metadata.arch, file.metadata.arch
        for key in found.keys() & set(ollama.lacks):  # a wrong epsilon does not show in the logits
            assert found[key] == (pytest.approx(values[key]) if isinstance(values[key], float) else values[key])
    ours, expected = results(path), results(plain)
    assert np.abs(ours - expected).max() <= 1e-6 * np.abs(expected).max()  # GLM-OCR's order of elements differs
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"Ollama's {ollama.arch}: it is read with" in out
    assert ("encoders of pictures or sound: the model reads text only" in out) == ollama.tower
    listed = "read under another name, or with another value:" in out
    assert listed != ("read with 0 keys changed" in out)
    assert main(["plan", str(path)]) == 0
    assert ("encoders of pictures or sound" in capsys.readouterr().out) == ollama.tower


def test_a_plain_file_has_no_dialect(data: Path) -> None:
    for path in sorted((data / "llamacpp").glob("*.gguf")):
        with GGUFFile(path) as file:
            assert translate(file).file is file, path.name


def test_tokens_of_pictures_without_a_row_in_the_embedding(data: Path, tmp_path: Path) -> None:
    plain = data / "llamacpp" / "Gemma3ForCausalLM.gguf"
    with GGUFFile(plain) as file:
        rows = file.tensors["token_embd.weight"].shape[0]
        lists = {name: list(file.metadata[f"tokenizer.ggml.{name}"])[:rows] for name in ("tokens", "token_type")}
    keys: dict[str, Any] = {
        "gemma3.mm.tokens_per_image": 256,
        "tokenizer.ggml.tokens": [*lists["tokens"], "<image_soft_token>"],
        "tokenizer.ggml.token_type": [*lists["token_type"], 3],
    }
    path = rewrite(plain, tmp_path / "x.gguf", keys)
    assert hotshoe.load_tokenizer(path).vocab_size == rows
    assert np.array_equal(results(path), results(plain))


def test_gemma3n_with_rows_for_pictures_in_one_embedding(tmp_path: Path) -> None:
    plain = Made("gemma3n", ROWS["gemma3n"], tmp_path).file()
    with GGUFFile(plain) as file:
        n = file.tensors["per_layer_token_embd.weight"].shape[0]
        old = {name: list(file.metadata[f"tokenizer.ggml.{name}"])[:n] for name in ("tokens", "token_type")}
    tokens = [*old["tokens"][:-2], "<0x41>", "<unused7>", "<image>", "<audio>"]
    keys = {"tokens": tokens, "token_type": [*old["token_type"], 3, 3], "scores": [-float(i) for i in range(n + 2)]}

    def widen(tensors: dict[str, Stored]) -> None:
        value, kind = tensors["token_embd.weight"]
        tensors["token_embd.weight"] = (np.concatenate([value[:n], np.ones((2, value.shape[1]), np.float32)]), kind)

    path = rewrite(plain, tmp_path / "x.gguf", {f"tokenizer.ggml.{k}": v for k, v in keys.items()}, edit=widen)
    with open_file(path) as file:
        assert file.metadata["tokenizer.ggml.model"] == "llama"
        assert file.metadata["tokenizer.ggml.tokens"] == tokens[:n]
        assert file.metadata["tokenizer.ggml.token_type"] == [*old["token_type"][:-2], 6, 1]
    assert np.array_equal(results(path), results(plain)[:, :n])


def test_a_character_map_in_base64(data: Path, tmp_path: Path) -> None:
    """As Ollama's snowflake-arctic-embed2 has it: one character in each item."""
    plain = data / "llamacpp" / "XLMRobertaForSequenceClassification.gguf"
    key = "tokenizer.ggml.precompiled_charsmap"
    with GGUFFile(plain) as file:
        table = bytes(int(n) & 255 for n in file.metadata[key])
    path = rewrite(plain, tmp_path / "x.gguf", {key: list(base64.b64encode(table).decode())})
    text = "the \ufb01ne camera\u2003ing"
    assert hotshoe.load_tokenizer(path).encode(text) == hotshoe.load_tokenizer(plain).encode(text)


def test_llama_3_without_a_pre_tokenizer(data: Path, tmp_path: Path) -> None:
    plain = data / "llamacpp" / "LlamaForCausalLM.gguf"
    with GGUFFile(plain) as file:
        n = len(file.metadata["tokenizer.ggml.tokens"])
        tokens = [*file.metadata["tokenizer.ggml.tokens"], *(f"<{i}>" for i in range(n, 128_009)), "<|eot_id|>"]
        types = [*file.metadata["tokenizer.ggml.token_type"], *[3] * (len(tokens) - n)]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.pre": "default"}
    with GGUFFile(rewrite(plain, tmp_path / "x.gguf", keys)) as file:
        assert translate(file).file.metadata["tokenizer.ggml.pre"] == "llama-bpe"


def test_wrong_types_are_errors_that_name_the_key(data: Path, tmp_path: Path) -> None:
    plain = data / "llamacpp" / "Gemma3ForCausalLM.gguf"
    keys = {"gemma3.mm.tokens_per_image": 256, "gemma3.context_length": "long"}
    with pytest.raises(ModelFileError, match=r"gemma3\.context_length.*expected int"):
        load(rewrite(plain, tmp_path / "x.gguf", keys), "reference")


def test_a_vocabulary_of_arrays_is_an_error(tmp_path: Path) -> None:
    plain = Made("gemma3n", ROWS["gemma3n"], tmp_path).file()
    with GGUFFile(plain) as file:
        n = len(file.metadata["tokenizer.ggml.tokens"]) + 2
    keys = {"tokenizer.ggml.tokens": [["a"]] * n, "tokenizer.ggml.token_type": [1] * n}
    with pytest.raises(HotshoeError, match=r"tokenizer\.ggml\.tokens"):
        load(rewrite(plain, tmp_path / "x.gguf", keys), "reference")


@pytest.mark.parametrize(
    ("arch", "key", "other"),
    [
        ("laguna", "attention.layer_types", "attention.sliding_window_pattern"),
        ("laguna", "dense_layers", "leading_dense_block_count"),
        ("laguna", "rope.partial_rotary_factor", "rope.dimension_count"),
        ("laguna", "rope.swa.partial_rotary_factor", "rope.dimension_count_swa"),
        ("glmocr", "rope.partial_rotary_factor", "rope.dimension_count"),
    ],
)
def test_keys_are_dropped_only_if_another_says_it(data: Path, tmp_path: Path, arch: str, key: str, other: str) -> None:
    plain = data / "llamacpp" / "LlamaForCausalLM.gguf"
    for more in ({}, {f"{arch}.{other}": 1}):
        keys = {"general.architecture": arch, f"{arch}.rope.swa.freq_base": 1e4, f"{arch}.{key}": 1} | more
        with GGUFFile(rewrite(plain, tmp_path / "x.gguf", keys)) as file:
            translated = translate(file).file.metadata
        assert (f"{translated['general.architecture']}.{key}" in translated) == (not more)
