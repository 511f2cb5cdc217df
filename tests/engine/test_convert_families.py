"""What a config.json may say that the files recorded from llama.cpp's converter do not show, family by family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import ConversionError, HotshoeError, ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.converted import keys, tensors
from tests.support.recorded import make_recorded
from tests.support.tiny_bert import edit_json

safetensors = pytest.importorskip("safetensors.numpy", reason="these tests change checkpoints with it")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``copied(name, **config)``: a recorded model's folder, to change; ``...`` removes a key of config.json."""

    def get(name: str, **config: Any) -> Path:
        if name not in made:
            made[name] = make_recorded(name, tmp_path_factory.mktemp(name))
        folder = tmp_path / "model"
        folder.mkdir()
        for path in made[name].iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        edit_json(folder, "config.json", **config)
        return folder

    return get


def change_weights(folder: Path, change: Any) -> None:
    weights = safetensors.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.save_file(weights, folder / "model.safetensors")


KEYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("MixtralForCausalLM", {"num_experts_per_tok": ...}, {"expert_used_count": 2, "expert_count": 4}),
    # llama.cpp's converter writes no key, and readers take softmax then
    ("DeepseekV3ForCausalLM", {"scoring_func": ...}, {"expert_gating_func": 2}),
    ("DeepseekV2ForCausalLM", {}, {"expert_gating_func": None, "expert_weights_norm": None}),
    ("DeepseekV2ForCausalLM", {"scoring_func": "softmax"}, {"expert_gating_func": 1}),
    # groups that config.json states and its own way to choose experts does not look at
    ("DeepseekV2ForCausalLM", {"n_group": 2, "topk_group": 1}, {"expert_group_count": 1}),
    (
        "DeepseekV2ForCausalLM",
        {"n_group": 2, "topk_group": 1, "topk_method": "group_limited_greedy"},
        {"expert_group_count": 2, "expert_group_used_count": 1},
    ),
    ("DeepseekV3ForCausalLM", {"rope_parameters": {"rope_theta": 1e4}}, {"rope.scaling.yarn_log_multiplier": None}),
    # what is in config.json of Codestral
    ("Mamba2ForCausalLM", {"time_step_limit": [0.0, float("inf")]}, {"ssm.time_step_rank": 4, "ssm.group_count": 2}),
    ("Lfm2ForCausalLM", {"layer_types": ..., "full_attn_idxs": [1]}, {"attention.head_count_kv": [0, 2, 0]}),
    ("Lfm2ForCausalLM", {"block_ff_dim": 64, "intermediate_size": 7}, {"feed_forward_length": 64}),
    (
        "Lfm2ForCausalLM",
        {"block_ff_dim": 90, "block_ffn_dim_multiplier": 0.9, "block_multiple_of": 64},
        {"feed_forward_length": 64},
    ),
    ("Lfm2ForCausalLM", {"intermediate_size": 64, "block_auto_adjust_ff_dim": False}, {"feed_forward_length": 64}),
]
ARCH = {
    "MixtralForCausalLM": "llama",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "Mamba2ForCausalLM": "mamba2",
    "Lfm2ForCausalLM": "lfm2",
}


@pytest.mark.parametrize(("name", "config", "expected"), KEYS)
def test_keys(copied: Any, tmp_path: Path, name: str, config: dict[str, Any], expected: dict[str, Any]) -> None:
    metadata = keys(convert(copied(name, **config), tmp_path / "m.gguf"))
    assert {key: metadata.get(f"{ARCH[name]}.{key}") for key in expected} == expected


MSCALE = {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0}
REFUSED: list[tuple[str, dict[str, Any], type[HotshoeError], str]] = [
    ("MixtralForCausalLM", {"num_experts_per_tok": 5}, ConversionError, "num_experts_per_tok is 5, but there are 4"),
    (
        "MixtralForCausalLM",
        {"num_local_experts": 2**31},
        ConversionError,
        "config.json: it describes a file that hotshoe cannot load: .*expert_count': is 2147483648; expected 1 to",
    ),
    ("MixtralForCausalLM", {"num_local_experts": 10**6}, ConversionError, r"missing: .*experts\.4\.w1"),
    ("MixtralForCausalLM", {"num_local_experts": 3}, ConversionError, r"unknown: .*experts\.3\.w1"),
    ("DeepseekV2ForCausalLM", {"attention_bias": True}, ConversionError, "attention_bias is True"),
    ("DeepseekV2ForCausalLM", {"moe_layer_freq": 2}, ConversionError, "moe_layer_freq is 2"),
    ("DeepseekV2ForCausalLM", {"kv_lora_rank": 8}, ConversionError, "of another shape than config.json describes"),
    ("DeepseekV2ForCausalLM", {"n_routed_experts": -1}, ModelFileError, "n_routed_experts"),
    ("DeepseekV2ForCausalLM", {"q_lora_rank": "few"}, ModelFileError, "q_lora_rank"),
    ("DeepseekV3ForCausalLM", {"scoring_func": "tanh"}, ConversionError, "scoring_func is 'tanh'"),
    ("DeepseekV3ForCausalLM", {"scoring_func": []}, ConversionError, r"scoring_func is \[\]"),
    ("DeepseekV3ForCausalLM", {"rope_interleave": False}, ConversionError, "rope_interleave is False"),
    ("Mamba2ForCausalLM", {"use_bias": True}, ConversionError, "use_bias is True"),
    ("Mamba2ForCausalLM", {"time_step_limit": [0.0, 0.1]}, ConversionError, r"time_step_limit is \[0.0, 0.1\]"),
    ("Mamba2ForCausalLM", {"time_step_limit": 3}, ConversionError, "time_step_limit is 3"),
    ("Mamba2ForCausalLM", {"num_heads": 5}, ConversionError, "num_heads is 5, but expand × hidden_size, 64,"),
    ("Mamba2ForCausalLM", {"head_dim": 7}, ConversionError, "not that many heads of head_dim 7"),
    ("Mamba2ForCausalLM", {"vocab_size": 290}, ConversionError, r"\(320, 32\), expected \(290, 32\)"),
    ("Lfm2ForCausalLM", {"conv_bias": True}, ConversionError, "conv_bias is True"),
    ("Lfm2ForCausalLM", {"layer_types": ["conv"]}, ModelFileError, "layer_types.*expected a list of 3, each conv or"),
    ("Lfm2ForCausalLM", {"layer_types": ["conv", "ssm", "conv"]}, ModelFileError, "each conv or full_attention"),
    ("Lfm2ForCausalLM", {"layer_types": [[], {}, 1]}, ModelFileError, "each conv or full_attention"),
    (
        "Lfm2ForCausalLM",
        {"layer_types": None, "full_attn_idxs": 1},
        ModelFileError,
        "idxs: 1; expected a list",
    ),
    ("Lfm2ForCausalLM", {"block_multiple_of": 2**31}, ConversionError, "is 2147483648; expected 0 to"),
    ("DeepseekV3ForCausalLM", {"rope_parameters": MSCALE}, ConversionError, "mscale is 0.7 and mscale_all_dim 1.0"),
]


@pytest.mark.parametrize(("name", "config", "error", "message"), REFUSED)
def test_refused(
    copied: Any, tmp_path: Path, name: str, config: dict[str, Any], error: type[HotshoeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        convert(copied(name, **config), tmp_path / "m.gguf")


def test_layers_that_predict_the_token_after_the_next_are_left_out(copied: Any, tmp_path: Path) -> None:
    folder = copied("DeepseekV3ForCausalLM", num_nextn_predict_layers=1)
    without = convert(folder, tmp_path / "without.gguf").read_bytes()
    change_weights(folder, lambda w: w.update({"model.layers.2.eh_proj.weight": np.zeros((32, 64), np.float32)}))
    assert convert(folder, tmp_path / "with.gguf").read_bytes() == without
    edit_json(folder, "config.json", num_nextn_predict_layers=0)
    with pytest.raises(ConversionError, match=r"unknown: model\.layers\.2\.eh_proj"):
        convert(folder, tmp_path / "m.gguf")


def test_deepseek_without_experts(copied: Any, tmp_path: Path) -> None:
    folder = copied("DeepseekV2ForCausalLM", n_routed_experts=None, num_hidden_layers=1, n_shared_experts=None)

    def first_layer_only(weights: dict[str, Any]) -> None:
        for name in [name for name in weights if ".layers.1." in name]:
            del weights[name]

    change_weights(folder, first_layer_only)
    path = convert(folder, tmp_path / "m.gguf")
    metadata = keys(path)
    assert metadata["deepseek2.leading_dense_block_count"] == 1
    assert metadata["deepseek2.expert_feed_forward_length"] == 64
    assert "deepseek2.expert_count" not in metadata
    assert not [name for name in tensors(path) if "exp" in name]


def test_embeddings_that_were_made_larger(copied: Any, tmp_path: Path) -> None:
    """As mamba_ssm does, and says with pad_vocab_size_multiple: the tokens are as many as the rows."""
    path = convert(copied("Mamba2ForCausalLM", vocab_size=313), tmp_path / "m.gguf")
    assert len(keys(path)["tokenizer.ggml.tokens"]) == 320


def test_names_of_codestral(copied: Any, tmp_path: Path) -> None:
    folder = copied("Mamba2ForCausalLM")
    plain = tensors(convert(folder, tmp_path / "plain.gguf", "f32"))

    def rename(weights: dict[str, Any]) -> None:
        for name in list(weights):
            weights[f"model.{name}"] = weights.pop(name)

    change_weights(folder, rename)
    found = tensors(convert(folder, tmp_path / "m.gguf", "f32"))
    assert found.keys() == plain.keys()
    for name, (_, values) in plain.items():
        np.testing.assert_array_equal(found[name][1], values, err_msg=name)


def test_a_decay_that_no_float32_holds(copied: Any, tmp_path: Path) -> None:
    folder = copied("Mamba2ForCausalLM")
    change_weights(folder, lambda w: w.update({"backbone.layers.0.mixer.A_log": np.full(4, 200, np.float32)}))
    with pytest.raises(ConversionError, match="A_log reaches 200"):
        convert(folder, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == [folder]


def test_xlm_roberta_for_embeddings(copied: Any, tmp_path: Path) -> None:
    """Without "roberta." before the names, and with the head that sentence-transformers does not use."""
    folder = copied("XLMRobertaForSequenceClassification", architectures=["XLMRobertaModel"], id2label=...)

    def bare(weights: dict[str, Any]) -> None:
        for name in list(weights):
            value = weights.pop(name)
            if not name.startswith("classifier."):
                weights[name.removeprefix("roberta.")] = value
        weights["pooler.dense.weight"] = np.zeros((32, 32), np.float32)

    stored = safetensors.load_file(folder / "model.safetensors")
    change_weights(folder, bare)
    path = convert(folder, tmp_path / "m.gguf", "f32")
    positions = stored["roberta.embeddings.position_embeddings.weight"]
    assert len(positions) == 66
    # the padding has its own id, 1, as position: the first token has the next
    np.testing.assert_array_equal(tensors(path)["position_embd.weight"][1], positions[2:])
    metadata = keys(path)
    assert metadata["bert.context_length"] == 64
    assert "bert.pooling_type" not in metadata
    assert "cls.output.weight" not in tensors(path)


@pytest.mark.parametrize("padding", [-1, 65, 66, None, "1", True])
def test_padding_that_is_not_a_position(copied: Any, tmp_path: Path, padding: Any) -> None:
    with pytest.raises(ModelFileError, match=r"pad_token_id.*expected the id of the padding, from 0 to 64"):
        convert(copied("XLMRobertaForSequenceClassification", pad_token_id=padding), tmp_path / "m.gguf")


XLM_TEXTS = ("the camera", "  the   camera\t\ufb01ng ", "\u00bd cab 漢字", "", "a</s>the")


def test_unigram_ids_are_those_of_the_folder(copied: Any, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = copied("XLMRobertaForSequenceClassification")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with GGUFFile(convert(folder, tmp_path / "m.gguf")) as file:
        ours = load_tokenizer(file.metadata)
    for a in XLM_TEXTS:
        assert ours.encode(a) == theirs.encode(a).ids, a
        for b in XLM_TEXTS:
            assert ours.encode_pair(a, b).ids == theirs.encode(a, b).ids


UNIGRAM: list[tuple[dict[str, Any], type[HotshoeError], str]] = [
    ({"normalizer": {"type": "Lowercase"}}, ConversionError, "has 'Lowercase'; for a unigram vocabulary"),
    ({"pre_tokenizer": None}, ConversionError, "does something that a GGUF file cannot express"),
    (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        ModelFileError,
        "does not fit into its 3",
    ),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/P///wAA"}}, ModelFileError, "trie of 4294967292"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": 3}}, ModelFileError, "not a character map"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, ModelFileError, "not a character map"),
]


@pytest.mark.parametrize(("changes", "error", "message"), UNIGRAM)
def test_unigram_refused(
    copied: Any, tmp_path: Path, changes: dict[str, Any], error: type[HotshoeError], message: str
) -> None:
    folder = copied("XLMRobertaForSequenceClassification")
    edit_json(folder, "tokenizer.json", **changes)
    with pytest.raises(error, match=message):
        convert(folder, tmp_path / "m.gguf")
