"""Two texts as one sequence, against transformers and the tokenizers package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.convert import convert
from hotshoe.tokenizers import Tokenizer, load_tokenizer
from hotshoe_core.errors import TokenizerError
from hotshoe_core.gguf import GGUFFile
from tests.support.rewrite import rewrite
from tests.support.tiny_bert import make_tiny_bert
from tests.support.tiny_text import end_texts_with, make_tiny
from tests.support.vocabularies import keys, spaced_bpe

PAIRS = [
    ("the quick brown fox", "jumps over the lazy dog"),
    ("", ""),
    ("fox", ""),
    ("", "a lazy dog, and the camera of it"),
    ("hello world " * 20, "the camera"),
    ("the camera", "hello world " * 20),
    ("flash " * 30, "light " * 31),
    ("[SEP] is found in a text", "[CLS] too"),
]


def load(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return load_tokenizer(file.metadata)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_bert(tmp_path_factory.mktemp("pairs") / "bert")


@pytest.mark.parametrize("max_length", [None, 3, 4, 5, 16, 17, 48, 500])
def test_bert_pairs_are_those_of_transformers(bert: Path, tmp_path: Path, max_length: int | None) -> None:
    """As CrossEncoder calls it: truncation=True is "longest_first"."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(bert)
    ours = load(convert(bert, tmp_path / "m.gguf"))
    cut = {} if max_length is None else {"truncation": True, "max_length": max_length}
    expected = theirs(PAIRS, **cut)
    got = ours.encode_pairs(PAIRS, max_length=max_length)
    assert [pair.ids for pair in got] == expected["input_ids"]
    assert [pair.token_types for pair in got] == expected["token_type_ids"]
    assert got == [ours.encode_pair(a, b, max_length=max_length) for a, b in PAIRS]


def test_a_model_of_one_token_type(bert: Path, tmp_path: Path) -> None:
    path = rewrite(convert(bert, tmp_path / "m.gguf"), tmp_path / "n.gguf", {"tokenizer.ggml.token_type_count": 1})
    assert set(load(path).encode_pair("fox", "dog").token_types) == {0}


@pytest.mark.parametrize("max_length", [None, 2, 3, 7, 8])
def test_a_decoder_whose_texts_end_with_a_token(tmp_path: Path, max_length: int | None) -> None:
    inner_tokenizers = pytest.importorskip("tokenizers")
    folder = make_tiny("Qwen3ForCausalLM", tmp_path / "m", num_hidden_layers=1, tie_word_embeddings=True)
    end_texts_with(folder, "<|odd|>")
    theirs = inner_tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if max_length is not None:
        theirs.enable_truncation(max_length)
    ours = load(convert(folder, tmp_path / "m.gguf"))
    for a, b in PAIRS:
        assert ours.encode_pair(a, b, max_length=max_length).ids == theirs.encode(a, b).ids


def roberta(**changes: Any) -> dict[str, Any]:
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "a", "b", "c"]
    types, scores = [3, 3, 3, 2, 1, 1, 1, 1], [0.0, 0.0, 0.0, 0.0, -2.0, -3.0, -4.0, -5.0]
    own = {"model": "t5", "tokens": tokens, "token_type": types, "scores": scores, "add_space_prefix": False}
    around = {"add_bos_token": True, "add_eos_token": True, "add_sep_token": True, "seperator_token_id": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "padding_token_id": 1}
    return keys(**own | around | ids | changes)


@settings(max_examples=60, deadline=None)
@given(st.text("abc ", max_size=12), st.text("abc ", max_size=12), st.integers(4, 20))
def test_pairs_as_xlm_roberta_has_them(a: str, b: str, max_length: int) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, normalizers, processors

    metadata = roberta()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    theirs = Inner(models.Unigram(list(zip(tokens, scores, strict=True)), unk_id=3))
    theirs.normalizer = normalizers.Replace(" ", "\u2581")
    theirs.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    theirs.enable_truncation(max_length)
    expected, got = theirs.encode(a, b), load_tokenizer(metadata).encode_pair(a, b, max_length=max_length)
    assert got.ids == expected.ids
    assert got.token_types == expected.type_ids
    assert len(got.ids) <= max_length


def test_invalid_pairs(bert: Path, tmp_path: Path) -> None:
    tokenizer = load(convert(bert, tmp_path / "m.gguf"))
    with pytest.raises(ValueError, match="max_length is 2; expected at least 3, the number of special tokens"):
        tokenizer.encode_pair("a", "b", max_length=2)
    for pairs in (["ab"], [("a", 1)], [("a",)], [("a", "b", "c")]):
        with pytest.raises(TypeError, match=r"pairs\[0\] is .*; expected two texts"):
            tokenizer.encode_pairs(pairs)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="add_sep_token is true, but the file has no key"):
        load_tokenizer(spaced_bpe({"a": -1.0}, add_sep_token=True))


def test_special_tokens_in_a_pair_can_be_ordinary_text(bert: Path, tmp_path: Path) -> None:
    tokenizer = load(convert(bert, tmp_path / "m.gguf"))
    assert tokenizer.encode_pair("[SEP]", "a").ids.count(3) == 3
    assert tokenizer.encode_pair("[SEP]", "a", parse_special=False).ids.count(3) == 2
