"""The tiny models whose files by llama.cpp's converter are in tests/data/llamacpp, the same in each run."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_bert import CONFIG, make_tiny_bert, random_reranker, write_sentence_modules
from tests.support.tiny_text import ARCHITECTURES, MORE_ARCHITECTURES, end_texts_with, make_tiny
from tests.support.vocabularies import charsmap

__all__ = ["MODELS", "make_recorded"]

_SMALLER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_CHANGES: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {"num_hidden_layers": 6},  # the last of six is global
    "MixtralForCausalLM": {"intermediate_size": 48},
    "DeepseekV3ForCausalLM": {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "Mamba2ForCausalLM": {"num_heads": 4},
    "Lfm2ForCausalLM": {"num_hidden_layers": 3},
}


def make_recorded(name: str, folder: Path) -> Path:
    """Writes the Hugging Face folder of one of MODELS. Skips the test where torch or transformers is missing."""
    return MODELS[name](folder)


def _causal(architecture: str) -> Callable[[Path], Path]:
    return lambda folder: make_tiny(architecture, folder, **_SMALLER | _CHANGES.get(architecture, {}))


def _embedding(folder: Path) -> Path:
    """A decoder as Qwen3 Embedding is published: no head, names without "model.", and a text ends with another token
    than a turn does."""
    safetensors = pytest.importorskip("safetensors.numpy")
    make_tiny("Qwen3ForCausalLM", folder, **_SMALLER, tie_word_embeddings=True)
    weights = safetensors.load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in weights.items()}
    safetensors.save_file(bare, folder / "model.safetensors", {"format": "pt"})
    end_texts_with(folder, "<|odd|>")
    write_sentence_modules(folder, 32, "lasttoken", max_seq_length=128)
    return folder


def _reranker(folder: Path) -> Path:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    return make_tiny_bert(folder, config=config, weights=random_reranker(), sentence=False)


def _xlm_roberta(folder: Path) -> Path:
    """A cross-encoder; its tokenizer.json as the published ones are, with a table of a few characters."""
    config = {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta", "pad_token_id": 1}
    config |= {"vocab_size": 48, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "id2label": {"0": "LABEL_0"}}
    config |= {"max_position_embeddings": 66, "bos_token_id": 0, "eos_token_id": 2}
    weights = {name.replace("bert.", "roberta."): w for name, w in random_reranker(1, CONFIG | config).items()}
    for part, source in (("dense", "roberta.pooler.dense"), ("out_proj", "classifier")):
        for kind in ("weight", "bias"):
            weights[f"classifier.{part}.{kind}"] = weights.pop(f"{source}.{kind}")
    make_tiny_bert(folder, config=config, weights=weights, sentence=False)
    (folder / "vocab.txt").unlink()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    words = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "\u2581the", "\u2581camera", "er", "ing", "\u2581a", "ca"]
    pieces = [*((token, 0.0) for token in special), *((word, -2.0 - i / 8) for i, word in enumerate(words))]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": token, **flags} for i, token in enumerate(special)]
    added.append({"id": len(pieces), "content": "<mask>", **flags, "lstrip": True})
    pieces.append(("<mask>", 0.0))
    table = charsmap(dict.fromkeys("\t\n\r\u00a0\u2003", " ") | {"\ufb01": "fi", "\u00bd": "1\u20442"})
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": _template("<s>", "A", "</s>"),
            "pair": _template("<s>", "A", "</s>", "</s>", "B", "</s>"),
            "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (("<s>", 0), ("</s>", 2))},
        },
        "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": pieces, "byte_fallback": False},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    roles = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    settings = {"tokenizer_class": "XLMRobertaTokenizer", "clean_up_tokenization_spaces": True}
    settings |= {f"{role}_token": token for role, token in roles.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _template(*parts: str) -> list[dict[str, Any]]:
    return [{"Sequence" if p in "AB" else "SpecialToken": {"id": p, "type_id": 0}} for p in parts]


MODELS: dict[str, Callable[[Path], Path]] = {
    **{name: _causal(name) for name in (*ARCHITECTURES, *MORE_ARCHITECTURES)},
    "Qwen3Embedding": _embedding,
    "BertForSequenceClassification": _reranker,
    "XLMRobertaForSequenceClassification": _xlm_roberta,
}
