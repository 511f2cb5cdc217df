"""A config.json with a setting of the wrong type or meaning: each one is refused by name, for models of the table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotshoe.convert import convert, open_checkpoint
from hotshoe_core.errors import ConversionError, HotshoeError, ModelFileError
from tests.families.row import make_folder
from tests.families.rows import ROWS
from tests.support.converted import keys
from tests.support.tiny_bert import edit_json

BASE = {"rope_type": "default", "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
ALPHA = {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            row, folder = ROWS[name], tmp_path_factory.mktemp("made") / name
            folders[name] = make_folder(row, folder)
            if row.prepare is not None:
                row.prepare(folder)
        return folders[name]

    return get


@pytest.fixture
def changed(made: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """``changed(row, **config)``: the folder of a row, with other settings; ``...`` removes one."""

    def get(name: str, **config: Any) -> Path:
        shutil.copytree(made(name), tmp_path / "model")
        edit_json(tmp_path / "model", "config.json", **config)
        return tmp_path / "model"

    return get


def _block(group: int) -> dict[str, Any]:
    return {"attention": {"n_heads_in_group": group, "replace_with_linear": False}, "ffn": {"ffn_mult": 1.0}}


DIFFER = "it has rope_parameters and rope_scaling, and they differ"
REFUSED: list[tuple[str, dict[str, Any], type[HotshoeError], str]] = [
    ("qwen2", {"rope_parameters": BASE, "rope_scaling": YARN}, ConversionError, DIFFER),
    ("qwen2", {"rope_parameters": YARN, "rope_scaling": BASE}, ConversionError, DIFFER),
    ("qwen2", {"rope_parameters": YARN, "rope_scaling": YARN | {"factor": 4.0}}, ConversionError, DIFFER),
    ("qwen2", {"rope_parameters": YARN, "rope_scaling": [1]}, ConversionError, DIFFER),
    ("qwen2", {"is_causal": False}, ConversionError, "is_causal is False"),
    ("qwen2", {"use_bidirectional_attention": True}, ConversionError, "use_bidirectional_attention is True"),
    ("qwen2", {"rope_interleave": True}, ConversionError, "rope_interleave is True"),
    ("qwen2", {"position_embedding_type": "nope"}, ConversionError, "position_embedding_type is 'nope'"),
    ("qwen2", {"num_kv_shared_layers": 2}, ConversionError, "num_kv_shared_layers is 2"),
    ("qwen2", {"layer_types": [[1]]}, ConversionError, r"layer_types is \[\[1\]\]"),
    ("qwen2", {"sliding_window": 4, "max_position_embeddings": "x"}, ModelFileError, "max_position_embeddings: 'x'"),
    ("qwen2", {"rms_norm_eps": ...}, ModelFileError, "rms_norm_eps: missing"),
    ("gemma", {"use_bidirectional_attention": True}, ConversionError, "use_bidirectional_attention is True"),
    ("hunyuan-moe", {"rope_parameters": ALPHA | {"factor": 2.0}}, ConversionError, "the RoPE factor is 2.0"),
    ("hunyuan-moe", {"moe_topk": [[1]]}, ModelFileError, "moe_topk"),
    ("hunyuan-moe", {"moe_topk": [1, "x"]}, ModelFileError, "moe_topk"),
    ("hunyuan-moe", {"moe_topk": [2, 2, 1]}, ConversionError, r"moe_topk is \[1, 2\]"),
    ("exaone4-32b", {"sliding_window_pattern": 0}, ModelFileError, "sliding_window_pattern: 0"),
    ("exaone4-32b", {"sliding_window_pattern": 10**13}, ModelFileError, "sliding_window_pattern: 10000000000000"),
    ("exaone4-32b", {"sliding_window_pattern": ""}, ConversionError, "sliding_window_pattern is ''"),
    ("gemma4", {"num_kv_shared_layers": 1.5}, ModelFileError, "num_kv_shared_layers: 1.5"),
    ("gemma4", {"hidden_size_per_layer_input": 16.5}, ModelFileError, "hidden_size_per_layer_input: 16.5"),
    ("gemma3n", {"altup_active_idx": 0.5}, ModelFileError, "altup_active_idx: 0.5"),
    ("gemma3n", {"activation_sparsity_pattern": ["0.5"] * 6}, ModelFileError, "activation_sparsity_pattern"),
    ("deepseek-v3.2", {"first_k_dense_replace": "x", "mlp_layer_types": []}, ModelFileError, "first_k_dense_replace"),
    ("deepseek-v3.2", {"layer_types": [[1]]}, ModelFileError, "layer_types"),
    ("glm-5", {"indexer_types": 5}, ModelFileError, "indexer_types"),
    ("glm-5", {"indexer_types": ["foo", "full"]}, ModelFileError, "indexer_types"),
    ("granite-swa", {"layer_rope_theta": [[1]]}, ModelFileError, r"layer_rope_theta: \[\[1\]\]; expected a list"),
    ("granite-swa", {"layer_rope_theta": ["a", 0]}, ModelFileError, "layer_rope_theta"),
    ("step35", {"attention_other_setting": "x"}, ModelFileError, "attention_other_setting: 'x'; expected an object"),
    ("step35", {"attention_other_setting": {"num_attention_heads": "x"}}, ModelFileError, "num_attention_heads: 'x'"),
    ("step35", {"swiglu_limits": [True] * 6}, ModelFileError, "swiglu_limits"),
    ("deci", {"block_configs": [_block(5), *[_block(2)] * 3]}, ModelFileError, "block_configs"),  # of 4 heads
    ("t5encoder", {"relative_attention_num_buckets": 512}, ConversionError, "relative_buckets_count"),
    ("granitehybrid", {"layer_types": [[1]] * 4}, ModelFileError, "layer_types"),
    ("lfm2", {"layer_types": []}, ModelFileError, r"layer_types: \[\]; expected a list of 3"),
    ("nemotron_h", {"hybrid_override_pattern": [["M"]]}, ModelFileError, "hybrid_override_pattern"),
    ("modern-bert", {"layer_types": [[1]]}, ConversionError, "layer_types"),
]


@pytest.mark.parametrize(("name", "config", "error", "message"), REFUSED)
def test_refused(
    changed: Callable[..., Path],
    tmp_path: Path,
    name: str,
    config: dict[str, Any],
    error: type[HotshoeError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        convert(changed(name, **config), tmp_path / "m.gguf")


@pytest.mark.parametrize("key", ["rope_parameters", "text_config"])
def test_too_many_objects_inside_each_other(changed: Callable[..., Path], key: str) -> None:
    folder = changed("qwen2")
    (folder / "config.json").write_text(f'{{"{key}": ' * 900 + "{}" + "}" * 900)
    with pytest.raises(ModelFileError, match="nested deeper than 32"):
        open_checkpoint(folder)


ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("qwen2", {"rope_parameters": YARN, "rope_scaling": {"type": "yarn", "factor": 2.0}}, {"rope.scaling.factor": 2.0}),
    # null means the default
    ("qwen2", {"use_sliding_window": None, "num_kv_shared_layers": None}, {"rope.scaling.factor": None}),
    ("modern-bert", {"hidden_activation": None, "classifier_pooling": [1]}, {"hidden_activation": "gelu"}),
    ("exaone4-32b", {"sliding_window_pattern": None}, {"attention.sliding_window": 8}),
    (
        "hunyuan-moe",
        {"head_dim": 32, "rope_parameters": ALPHA | {"rope_theta": 1e4}},
        {
            "context_length": 262_144,
            "rope.scaling.type": "none",
            "rope.freq_base": pytest.approx(1e4 * 50 ** (32 / 30)),
        },
    ),
]


@pytest.mark.parametrize(("name", "config", "expected"), ACCEPTED)
def test_accepted(
    changed: Callable[..., Path], tmp_path: Path, name: str, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    metadata = keys(convert(changed(name, **config), tmp_path / "m.gguf"))
    assert {key: metadata.get(f"{ROWS[name].arch}.{key}") for key in expected} == expected


@pytest.mark.parametrize(("name", "key"), [("olmoe", "norm_topk_prob"), ("qwen2moe", "qkv_bias")])
def test_null_is_the_default(changed: Callable[..., Path], name: str, key: str) -> None:
    """``require`` compares the default with what it accepts."""
    checkpoint = open_checkpoint(changed(name, **{key: None}))
    with pytest.raises(ConversionError, match=f"{key} is 'x'"):
        checkpoint.require(key, "x", "y")
    checkpoint.require(key, "y", "y")
