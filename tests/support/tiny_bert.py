"""BERT folders small enough to make in a test: random weights, a vocabulary of some hundred tokens, no download.

Nothing here needs torch: weights are drawn with NumPy and written as safetensors by hand.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "CONFIG",
    "SPECIAL",
    "VOCAB",
    "edit_json",
    "make_tiny_bert",
    "random_reranker",
    "random_weights",
    "write_safetensors",
    "write_sentence_modules",
]

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "hello",
    "world",
    "camera",
    "light",
    "flash",
    "a",
    "an",
    "is",
    "of",
    "to",
    "and",
    "not",
    "it",
]
_PARTS = ["ing", "ed", "er", "s", "ly", "est", "un", "re", "able", "ness"]
VOCAB = (
    SPECIAL
    + ["[unused0]", "[unused1]"]
    + list(string.punctuation)
    + list(string.digits)
    + list(string.ascii_lowercase)
    + [f"##{c}" for c in string.digits + string.ascii_lowercase]
    + [w for w in _WORDS if len(w) > 1]
    + [f"##{p}" for p in _PARTS if len(p) > 1]
    + ["漢", "字", "é", "##é", "Hello", "World"]
)
CONFIG: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": len(VOCAB),
}
_NUMPY = {"F32": np.float32, "F16": np.float16, "F64": np.float64}


def make_tiny_bert(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
    dtype: str = "F32",
    tokenizer_config: dict[str, Any] | None = None,
    tokenizer_json: bool = True,
    sentence: bool = True,
) -> Path:
    """Writes a model folder as sentence-transformers would; ``config`` and ``tokenizer_config`` add to the defaults."""
    full = CONFIG | (config or {})
    folder.mkdir(parents=True, exist_ok=True)
    _json(folder / "config.json", full)
    roles = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **roles} | (tokenizer_config or {})
    _json(folder / "tokenizer_config.json", settings)
    (folder / "vocab.txt").write_text("".join(f"{t}\n" for t in VOCAB), encoding="utf-8")
    if tokenizer_json:
        _json(folder / "tokenizer.json", _tokenizer(bool(settings["do_lower_case"])))
    write_safetensors(folder / "model.safetensors", random_weights(full) if weights is None else weights, dtype)
    if sentence:
        write_sentence_modules(folder, full["hidden_size"], "mean_tokens", max_seq_length=48)
    return folder


def write_sentence_modules(folder: Path, dim: int, pooling: str, *, max_seq_length: int) -> None:
    """What sentence-transformers writes around a model: pooling (the end of a key "pooling_mode_…"), and length 1."""
    kinds = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    _json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    settings = {"word_embedding_dimension": dim, f"pooling_mode_{pooling}": True}
    _json(folder / "1_Pooling" / "config.json", settings)
    _json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})


def random_weights(config: dict[str, Any] = CONFIG, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Weights under transformers' names, wide enough that attention and norms matter to the result."""
    rng = np.random.default_rng(seed)
    dim, ff = config["hidden_size"], config["intermediate_size"]
    weights: dict[str, np.ndarray[Any, Any]] = {}

    def linear(name: str, out: int, into: int) -> None:
        weights[f"{name}.weight"] = rng.normal(0, 1.5 / np.sqrt(into), (out, into)).astype(np.float32)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, out).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = rng.normal(1, 0.2, dim).astype(np.float32)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, dim).astype(np.float32)

    for name, rows, spread in (
        ("word", config["vocab_size"], 1.0),
        ("position", config["max_position_embeddings"], 0.4),
        ("token_type", config["type_vocab_size"], 0.4),
    ):
        weights[f"embeddings.{name}_embeddings.weight"] = rng.normal(0, spread, (rows, dim)).astype(np.float32)
    norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", dim, dim)
        linear(f"{layer}.attention.output.dense", dim, dim)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", ff, dim)
        linear(f"{layer}.output.dense", dim, ff)
        norm(f"{layer}.output.LayerNorm")
    return weights


def random_reranker(
    n_labels: int = 1, config: dict[str, Any] = CONFIG, seed: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """The same encoder, with a pooler and a classifier behind it, as BertForSequenceClassification names them."""
    rng = np.random.default_rng(seed + 1)
    weights = {f"bert.{name}": value for name, value in random_weights(config, seed).items()}
    dim = config["hidden_size"]
    for name, out in (("bert.pooler.dense", dim), ("classifier", n_labels)):
        weights[f"{name}.weight"] = rng.normal(0, 1.5 / np.sqrt(dim), (out, dim)).astype(np.float32)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, out).astype(np.float32)
    return weights


def write_safetensors(path: Path, weights: dict[str, np.ndarray[Any, Any]], dtype: str = "F32") -> None:
    """``dtype`` is F32, F16, F64 or BF16 (rounded towards zero)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, value in weights.items():
        data = _bfloat16(value) if dtype == "BF16" else value.astype(_NUMPY[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(parts))


def edit_json(folder: Path, name: str, **changes: Any) -> None:
    """Changes some keys of a JSON file; ``...`` removes one."""
    path = folder / name
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not ...}), encoding="utf-8")


def _bfloat16(value: np.ndarray[Any, Any]) -> bytes:
    return (np.ascontiguousarray(value, dtype=np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def _tokenizer(lowercase: bool) -> dict[str, Any]:
    ids = {token: i for i, token in enumerate(VOCAB)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    end = {"SpecialToken": {"id": "[SEP]", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[t], "content": t, **flags} for t in SPECIAL],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*around, end],
            "pair": [*around, end, {"Sequence": {"id": "B", "type_id": 1}}, end],
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
