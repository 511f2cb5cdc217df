"""Hugging Face folders to GGUF: the values, the metadata, and what llama.cpp's converter writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import ConversionError, ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.converted import keys, tensors
from tests.support.minilm import load_reference
from tests.support.tiny_bert import (
    CONFIG,
    VOCAB,
    make_tiny_bert,
    random_reranker,
    random_weights,
    write_safetensors,
)

# in ours and not in llama.cpp's file, each for a reason that convert/ gives
OURS_ONLY = {"hotshoe.embedding.normalize", "hotshoe.embedding.max_seq_length", "tokenizer.ggml.cls_token_id"}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_tiny_bert(tmp_path / "model")


# --- against llama.cpp's converter


def test_same_as_the_file_by_llama_cpp(data: Path, tmp_path: Path) -> None:
    ours = convert(data / "bert-tiny", tmp_path / "ours.gguf", "f16")
    theirs = data / "bert-tiny-llamacpp.gguf"
    mine, recorded = keys(ours), keys(theirs)
    assert mine.keys() - recorded.keys() == OURS_ONLY
    assert recorded.keys() <= mine.keys()
    # theirs names a pre-tokenizer it recognized; WordPiece has only one
    differing = {key for key in recorded if mine[key] != recorded[key]}
    assert differing == {"tokenizer.ggml.pre"}
    a, b = gguf.GGUFReader(ours).tensors, gguf.GGUFReader(theirs).tensors
    assert [t.name for t in a] == [t.name for t in b]
    for x, y in zip(a, b, strict=True):
        assert x.tensor_type == y.tensor_type, x.name
        np.testing.assert_array_equal(x.data, y.data)


def test_the_file_by_llama_cpp_gives_the_same_tokenizer(data: Path, tmp_path: Path) -> None:
    expected = json.loads((data / "bert-tiny-expected.json").read_text())
    for path in (data / "bert-tiny-llamacpp.gguf", convert(data / "bert-tiny", tmp_path / "ours.gguf")):
        with GGUFFile(path) as file:
            tokenizer = load_tokenizer(file.metadata)
        assert tokenizer.encode_batch(expected["texts"], max_length=64) == expected["ids"]


def test_the_recorded_embeddings_are_those_of_transformers(data: Path) -> None:
    expected = json.loads((data / "bert-tiny-expected.json").read_text())
    reference = load_reference(data / "bert-tiny", max_length=64)
    np.testing.assert_allclose(reference.embed(expected["texts"]), expected["embeddings"], atol=2e-6)


# --- all-MiniLM-L6-v2


def test_minilm_metadata(minilm_gguf: Callable[[str], Path]) -> None:
    for dtype, file_type in (("f32", 0), ("f16", 1), ("q8_0", 7)):
        metadata = keys(minilm_gguf(dtype))
        expected = {
            "general.architecture": "bert",
            "general.type": "model",
            "general.name": "MiniLM L6 H384 Uncased",
            "general.license": "apache-2.0",
            "general.size_label": "23M",
            "general.file_type": file_type,
            "general.quantization_version": 2,
            "bert.block_count": 6,
            "bert.context_length": 512,
            "bert.embedding_length": 384,
            "bert.feed_forward_length": 1536,
            "bert.attention.head_count": 12,
            "bert.attention.layer_norm_epsilon": float(np.float32(1e-12)),
            "bert.attention.causal": False,
            "bert.pooling_type": 1,
            "hotshoe.embedding.normalize": True,
            "hotshoe.embedding.max_seq_length": 256,
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.token_type_count": 2,
            "tokenizer.ggml.normalizer.lowercase": True,
            "tokenizer.ggml.bos_token_id": 101,
            "tokenizer.ggml.eos_token_id": 102,
            "tokenizer.ggml.cls_token_id": 101,
            "tokenizer.ggml.seperator_token_id": 102,
            "tokenizer.ggml.unknown_token_id": 100,
            "tokenizer.ggml.padding_token_id": 0,
            "tokenizer.ggml.mask_token_id": 103,
        }
        assert {key: metadata.get(key) for key in expected} == expected
        assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == 30522


def test_minilm_values(minilm_gguf: Callable[[str], Path], minilm_folder: Path) -> None:
    exact = tensors(minilm_gguf("f32"))
    assert len(exact) == 101
    assert exact["token_embd.weight"][1].shape == (30522, 384)
    for dtype, tolerance in (("f16", 1e-3), ("q8_0", 1 / 127)):
        for name, (kind, values) in tensors(minilm_gguf(dtype)).items():
            original = exact[name][1]
            vector = original.ndim == 1 or name in ("position_embd.weight", "token_types.weight")
            assert kind == ("F32" if vector else dtype.upper()), name
            error = np.abs(values - original).max() / np.abs(original).max()
            assert error <= (0 if vector else tolerance), name


# --- values and element types


def test_f32_holds_the_checkpoint_exactly(tiny: Path, tmp_path: Path) -> None:
    found = tensors(convert(tiny, tmp_path / "m.gguf", "f32"))
    weights = random_weights()
    assert len(found) == len(weights)
    for name, source in (
        ("token_embd.weight", "embeddings.word_embeddings.weight"),
        ("token_types.weight", "embeddings.token_type_embeddings.weight"),
        ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
        ("blk.1.attn_q.weight", "encoder.layer.1.attention.self.query.weight"),
        ("blk.1.attn_output_norm.weight", "encoder.layer.1.attention.output.LayerNorm.weight"),
        ("blk.0.ffn_down.weight", "encoder.layer.0.output.dense.weight"),
        ("blk.0.layer_output_norm.weight", "encoder.layer.0.output.LayerNorm.weight"),
    ):
        assert found[name][0] == "F32"
        np.testing.assert_array_equal(found[name][1], weights[source])


@pytest.mark.parametrize("stored", ["F16", "BF16", "F64"])
def test_checkpoints_of_other_float_types(tmp_path: Path, stored: str) -> None:
    weights = random_weights()
    found = tensors(convert(make_tiny_bert(tmp_path / "m", dtype=stored), tmp_path / "m.gguf", "f32"))
    for name, source in (("token_embd.weight", "word"), ("position_embd.weight", "position")):
        value = weights[f"embeddings.{source}_embeddings.weight"]
        if stored == "F16":
            value = value.astype(np.float16).astype(np.float32)
        elif stored == "BF16":
            value = (value.view(np.uint32) & 0xFFFF0000).view(np.float32)
        np.testing.assert_array_equal(found[name][1], value)


def test_rows_that_are_not_whole_blocks_become_f16(tmp_path: Path) -> None:
    config = CONFIG | {"hidden_size": 48}
    folder = make_tiny_bert(tmp_path / "m", config=config, weights=random_weights(config))
    found = tensors(convert(folder, tmp_path / "m.gguf", "q8_0"))
    assert found["token_embd.weight"][0] == "F16"  # rows of 48
    assert found["blk.0.ffn_down.weight"][0] == "Q8_0"  # rows of 64


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    weights = random_weights()
    weights["encoder.layer.0.output.dense.weight"][0, 0] = 1e5
    folder = make_tiny_bert(tmp_path / "m", weights=weights)
    with pytest.raises(ConversionError, match=r"has the value 1e\+05(.|\n)*--type f32"):
        convert(folder, tmp_path / "m.gguf", "f16")
    convert(folder, tmp_path / "m.gguf", "f32")
    weights["encoder.layer.0.output.dense.weight"][0, 0] = np.nan
    write_safetensors(folder / "model.safetensors", weights)
    with pytest.raises(ConversionError, match="not numbers"):
        convert(folder, tmp_path / "m2.gguf", "f32")
    assert not (tmp_path / "m2.gguf").exists()


# --- kinds of folder


def test_sharded_checkpoints(tiny: Path, tmp_path: Path) -> None:
    whole = tensors(convert(tiny, tmp_path / "whole.gguf", "f32"))
    weights = random_weights()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for part, held in parts.items():
        write_safetensors(tiny / part, {n: weights[n] for n in held})
    (tiny / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {n: part for part, held in parts.items() for n in held}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    sharded = tensors(convert(tiny, tmp_path / "sharded.gguf", "f32"))
    assert whole.keys() == sharded.keys()
    for name, (_, values) in whole.items():
        np.testing.assert_array_equal(values, sharded[name][1])
    (tiny / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"the file is missing; model\.safetensors\.index\.json names it"):
        convert(tiny, tmp_path / "x.gguf")


def test_masked_language_models_and_old_names(tiny: Path, tmp_path: Path) -> None:
    plain = tensors(convert(tiny, tmp_path / "plain.gguf", "f32"))
    weights = {}
    for name, value in random_weights().items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        weights[f"bert.{name}"] = value
    weights["bert.embeddings.position_ids"] = np.arange(64)[None]
    weights["bert.pooler.dense.weight"] = np.eye(32)
    weights["cls.predictions.bias"] = np.zeros(len(VOCAB))
    weights["cls.predictions.transform.LayerNorm.gamma"] = np.zeros(32)
    folder = make_tiny_bert(tmp_path / "mlm", config={"architectures": ["BertForMaskedLM"]}, weights=weights)
    found = tensors(convert(folder, tmp_path / "mlm.gguf", "f32"))
    assert plain.keys() == found.keys()
    for name, (_, values) in plain.items():
        np.testing.assert_array_equal(values, found[name][1])


def test_the_old_layout_of_sentence_transformers(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "st" / "0_Transformer", sentence=False).parent
    plain = keys(convert(folder, tmp_path / "a.gguf"))
    assert "bert.pooling_type" not in plain
    assert "hotshoe.embedding.normalize" not in plain
    kinds = [("0_Transformer", "models.Transformer"), ("1_Pooling", "models.Pooling")]
    modules = [{"idx": i, "path": p, "type": f"sentence_transformers.{t}"} for i, (p, t) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    found = keys(convert(folder, tmp_path / "b.gguf"))
    assert found["bert.pooling_type"] == 2
    assert found["hotshoe.embedding.normalize"] is False


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"pooling_mode_lasttoken": True}, 3),
        ({"pooling_mode": "cls"}, 2),
        ({"word_embedding_dimension": 32}, 1),  # what sentence-transformers takes if nothing is said
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
        ({"pooling_mode": ["mean", "max"]}, None),
        ({"pooling_mode": "weightedmean"}, None),
    ],
)
def test_pooling(tiny: Path, tmp_path: Path, pooling: dict[str, Any], expected: int | None) -> None:
    (tiny / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if expected is None:
        with pytest.raises(ConversionError, match="a GGUF file can only express: cls, lasttoken, mean"):
            convert(tiny, tmp_path / "m.gguf")
    else:
        assert keys(convert(tiny, tmp_path / "m.gguf"))["bert.pooling_type"] == expected


def test_paths_may_be_strings_and_have_spaces(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "a model, ä")
    path = convert(str(folder), str(tmp_path / "out file.gguf"), "F16")
    assert path == tmp_path / "out file.gguf"
    assert keys(path)["general.name"]


@pytest.mark.parametrize(
    "card", ["license: 3", "tags: 7", "language: [no, 3, 2020-01-01]", "datasets: {a: b}", "base_model: 5", "[1]", "x"]
)
def test_a_strange_model_card_is_not_fatal(tiny: Path, tmp_path: Path, card: str) -> None:
    (tiny / "README.md").write_text(f"---\n{card}\n---\n")
    assert keys(convert(tiny, tmp_path / "m.gguf"))["general.architecture"] == "bert"


def test_a_broken_model_card_is_not_fatal(tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tiny / "README.md").write_text("---\nlicense: [unclosed\n---\n")
    found = keys(convert(tiny, tmp_path / "m.gguf"))
    assert found["general.name"] == "model"
    assert found["general.size_label"]
    assert "model card" in caplog.text


def test_progress_goes_from_zero_to_one(tiny: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    convert(tiny, tmp_path / "m.gguf", progress=seen.append)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert len(seen) > 10


def test_the_same_folder_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    for dtype in ("f32", "f16", "bf16", "q8_0", "q4_k_m"):
        a, b = (convert(tiny, tmp_path / f"{name}-{dtype}.gguf", dtype) for name in "ab")
        assert a.read_bytes() == b.read_bytes()


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import hotshoe.convert, hotshoe.tokenizers, hotshoe.cli.convert, sys; "
        "sys.exit(sorted({'numpy', 'gguf', 'tokenizers', 'torch'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- rerankers


def reranker(folder: Path, n_labels: int, **config: Any) -> Path:
    config |= {"architectures": ["BertForSequenceClassification"]}
    return make_tiny_bert(folder, config=config, weights=random_reranker(n_labels), sentence=False)


@pytest.mark.parametrize(
    ("n_labels", "config", "expected"),
    [
        (1, {"id2label": {"0": "LABEL_0"}}, ["LABEL_0"]),
        (2, {}, None),  # what transformers leaves out of config.json
        (3, {"id2label": {"2": "neutral", "0": "yes", "1": "no"}}, ["yes", "no", "neutral"]),
        (11, {"id2label": {str(i): f"l{i}" for i in range(11)}}, [f"l{i}" for i in range(11)]),
    ],
)
def test_a_reranker_keeps_its_pooler_and_its_labels(
    tmp_path: Path, n_labels: int, config: dict[str, Any], expected: list[str] | None
) -> None:
    path = convert(reranker(tmp_path / "m", n_labels, **config), tmp_path / "m.gguf", "f32")
    weights, found, metadata = random_reranker(n_labels), tensors(path), keys(path)
    for name, source in (("cls", "bert.pooler.dense"), ("cls.output", "classifier")):
        for kind in ("weight", "bias"):
            np.testing.assert_array_equal(found[f"{name}.{kind}"][1], weights[f"{source}.{kind}"])
    assert metadata["bert.pooling_type"] == 4
    assert metadata.get("bert.classifier.output_labels") == expected


@pytest.mark.parametrize("labels", [{}, [], {"0": 1}, {"1": "yes"}, {"yes": "0"}, {"0": "a", "2": "b"}])
def test_invalid_labels(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(ModelFileError, match=r"id2label.*expected an object of labels, numbered from 0"):
        convert(reranker(tmp_path / "m", 1, id2label=labels), tmp_path / "m.gguf")


def test_a_reranker_without_its_classifier_is_not_converted(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "m", config={"architectures": ["BertForSequenceClassification"]}, sentence=False)
    with pytest.raises(ConversionError, match=r"missing: classifier.bias, classifier.weight, pooler.dense.bias"):
        convert(folder, tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"sentence_transformers": {"version": "4.1.0"}}, None),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
    ],
)
def test_what_becomes_of_a_score(tmp_path: Path, config: dict[str, Any], expected: str | None) -> None:
    path = convert(reranker(tmp_path / "m", 1, id2label={"0": "LABEL_0"}, **config), tmp_path / "m.gguf")
    assert keys(path).get("hotshoe.rerank.activation") == expected


def test_a_function_of_scores_that_hotshoe_does_not_have(tmp_path: Path) -> None:
    config = {"id2label": {"0": "LABEL_0"}, "sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}
    with pytest.raises(ConversionError, match=r"the activation of scores is torch\.nn\.Tanh; hotshoe converts"):
        convert(reranker(tmp_path / "m", 1, **config), tmp_path / "m.gguf")
