"""Tokenizers of Hugging Face folders, through a GGUF file, against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hotshoe.convert import convert
from hotshoe.tokenizers import TokenType, load_tokenizer
from hotshoe_core.errors import ConversionError, ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.converted import keys
from tests.support.minilm import load_reference
from tests.support.texts import load_texts
from tests.support.tiny_bert import CONFIG, SPECIAL, VOCAB, edit_json, make_tiny_bert, random_weights


def made(folder: Path, tmp_path: Path) -> Any:
    with GGUFFile(convert(folder, tmp_path / "m.gguf", overwrite=True)) as file:
        tokenizer = load_tokenizer(file.metadata)
    return tokenizer, keys(tmp_path / "m.gguf")


TEXTS = ["Hello World é", "the quick [MASK] fox", "漢字 estly", "a" * 120, "HELLO \u00c9 e\u0301", "[unused0] ##ing"]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strip", [True, False, None])
@pytest.mark.parametrize("chinese", [True, False])
@pytest.mark.parametrize("fast", [True, False])
def test_equal_to_transformers_for_every_setting(
    tmp_path: Path, lower: bool, strip: bool | None, chinese: bool, fast: bool
) -> None:
    settings = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
    folder = make_tiny_bert(tmp_path / "m", tokenizer_config=settings, tokenizer_json=fast)
    tokenizer, _ = made(folder, tmp_path)
    reference = load_reference(folder)
    for text in TEXTS + [t.text for t in load_texts(max_tokens=100)]:
        assert tokenizer.encode(text) == reference.ids(text), text


def test_tokenizer_json_rules_where_the_class_is_generic(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    folder = make_tiny_bert(tmp_path / "m", tokenizer_config=settings)
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    tokenizer_json["normalizer"] |= {"lowercase": False, "clean_text": False}
    tokenizer_json["model"]["max_input_chars_per_word"] = 7
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    tokenizer, found = made(folder, tmp_path)
    assert found["hotshoe.tokenizer.clean_text"] is False
    assert found["hotshoe.tokenizer.max_characters_per_word"] == 7
    reference = load_reference(folder)
    for text in [*TEXTS, "a\x00b", "hellohel", "Hello"]:
        assert tokenizer.encode(text) == reference.ids(text), text


def test_added_tokens(tmp_path: Path) -> None:
    config = CONFIG | {"vocab_size": len(VOCAB) + 5}
    folder = make_tiny_bert(tmp_path / "m", config=config, weights=random_weights(config))
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    n = len(VOCAB)
    tokenizer_json["added_tokens"] += [
        {"id": n, "content": "[Query]", "special": True, "normalized": False, **flags},
        {"id": n + 1, "content": "<Tag>", "special": False, "normalized": True, **flags},
        {"id": n + 2, "content": "<Raw>", "special": False, "normalized": False, **flags},
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    tokenizer, found = made(folder, tmp_path)
    assert found["hotshoe.tokenizer.verbatim_ids"] == [n + 2]
    assert [tokenizer.token(i) for i in range(n, n + 5)] == [
        "[Query]",
        "<Tag>",
        "<Raw>",
        f"[PAD{n + 3}]",
        f"[PAD{n + 4}]",
    ]
    reference = load_reference(folder)
    for text in ["[Query]hello", "[query] a", "x<tag>y<Tag>", "<raw><Raw>hello", *TEXTS]:
        assert tokenizer.encode(text) == reference.ids(text), text


def test_added_tokens_of_older_files_do_not_count_beside_tokenizer_json(tmp_path: Path) -> None:
    config = CONFIG | {"vocab_size": len(VOCAB) + 1}
    folder = make_tiny_bert(tmp_path / "m", config=config, weights=random_weights(config))
    (folder / "added_tokens.json").write_text(json.dumps({"<Stale>": len(VOCAB)}))
    tokenizer, found = made(folder, tmp_path)
    assert tokenizer.token(len(VOCAB)) == f"[PAD{len(VOCAB)}]"
    assert found["tokenizer.ggml.token_type"][-1] == TokenType.UNUSED


def test_texts_lowercased_before_the_tokenizer(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "m", tokenizer_config={"do_lower_case": False})
    edit_json(folder, "sentence_bert_config.json", do_lower_case=True)
    tokenizer, found = made(folder, tmp_path)
    assert found["tokenizer.ggml.normalizer.lowercase"] is True
    assert found["tokenizer.ggml.normalizer.strip_accents"] is False
    assert tokenizer.encode("Hello É", add_special=False) == [VOCAB.index("hello"), VOCAB.index("é")]


def test_every_role_is_a_control_token_without_tokenizer_json(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "m", tokenizer_json=False)
    shutil.rmtree(folder / "1_Pooling")
    (folder / "modules.json").unlink()
    found = keys(convert(folder, tmp_path / "m.gguf"))
    types = found["tokenizer.ggml.token_type"]
    assert [VOCAB[i] for i, t in enumerate(types) if t == 3] == SPECIAL


@pytest.mark.parametrize("longest", [0, 1001, 2**40, "many", None])
def test_words_of_a_length_that_hotshoe_does_not_split(tmp_path: Path, longest: Any) -> None:
    folder = make_tiny_bert(tmp_path / "m")
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    edit_json(folder, "tokenizer.json", model=tokenizer_json["model"] | {"max_input_chars_per_word": longest})
    with pytest.raises(ConversionError, match=r"max_input_chars_per_word is .*; hotshoe splits words of 1 to 1000"):
        convert(folder, tmp_path / "m.gguf")


def test_a_template_that_makes_the_package_panic(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "m", tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    template = json.loads((folder / "tokenizer.json").read_text())["post_processor"]
    edit_json(folder, "tokenizer.json", post_processor=template | {"special_tokens": {}})
    with pytest.raises(ModelFileError, match="the tokenizers package cannot use it"):
        convert(folder, tmp_path / "m.gguf")
