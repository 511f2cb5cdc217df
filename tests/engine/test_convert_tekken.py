"""Mistral's tekken.json against the same vocabulary in the ``tokenizers`` package.

By hand, the file in the package mistral-common was compared too: its encoder gives the same ids.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotshoe.convert import open_checkpoint, tokenizer_metadata
from hotshoe.tokenizers import load_tokenizer
from hotshoe.tokenizers._decoding import byte_letters
from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS
from hotshoe_core.errors import ConversionError, ModelFileError
from tests.support.tiny_text import make_tokenizer

TEXTS = (
    "Hello, World! It's 4 ½ o'clock.  the  theory\n\n",
    "我想在apple工作1314151天",
    "HTTPServer naïve 🚀 {}[]()\t\r\n",
)
N_SPECIAL = 12
Change = Callable[[dict[str, Any]], None]


def make(folder: Path, change: Change | None = None) -> tuple[Path, list[str]]:
    """Write a folder with tekken.json. Return it, and its tokens by rank, in the letters of GPT-2."""
    make_tokenizer(folder / "json", "tekken")
    vocab = json.loads((folder / "json" / "tokenizer.json").read_text())["model"]["vocab"]
    values = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokens = [token for token in sorted(vocab, key=vocab.get) if set(token) <= values.keys() and token[0] != "<"]
    tokens = [*byte_letters(), *(token for token in tokens if len(token) > 1)]
    content: dict[str, Any] = {
        "config": {
            "pattern": PRE_TOKENIZERS["tekken"].splits[0],
            "default_vocab_size": N_SPECIAL + len(tokens),
            "default_num_special_tokens": N_SPECIAL,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(bytes(map(values.__getitem__, token))).decode()}
            for rank, token in enumerate([*tokens, *tokens[:2]])  # more than the model has
        ],
        "special_tokens": [{"rank": i, "token_str": t} for i, t in enumerate(("<unk>", "<s>", "</s>", "[INST]"))],
    }
    if change is not None:
        change(content)
    target = folder / "mistral"
    target.mkdir()
    (target / "tekken.json").write_text(json.dumps(content))
    (target / "config.json").write_text(json.dumps({"vocab_size": N_SPECIAL + len(tokens)}))
    (target / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return target, tokens


def converted(folder: Path, n: int) -> dict[str, Any]:
    return tokenizer_metadata(open_checkpoint(folder), N_SPECIAL + n)


def test_the_same_tokens_as_with_merges(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Package

    folder, tokens = make(tmp_path)
    ours = load_tokenizer(converted(folder, len(tokens)))
    package = Package.from_file(str(tmp_path / "json" / "tokenizer.json"))
    for text in TEXTS:
        ids = ours.encode(text, add_special=False)
        assert [ours.token(i) for i in ids] == package.encode(text, add_special_tokens=False).tokens
        assert ours.decode(ids) == text
    assert ours.encode("[INST]a") == [1, 3, N_SPECIAL + tokens.index("a")]
    assert (ours.bos, ours.eos) == (1, 2)
    assert ours.token(N_SPECIAL - 1) == f"<SPECIAL_{N_SPECIAL - 1}>"


def test_special_tokens_of_files_that_do_not_list_them(tmp_path: Path) -> None:
    folder, tokens = make(tmp_path, lambda content: content.pop("special_tokens"))
    ours = load_tokenizer(converted(folder, len(tokens)))
    assert [ours.token(i) for i in (0, 1, 2, 3, 9, 11)] == ["<unk>", "<s>", "</s>", "[INST]", "[TOOL_CALLS]", "<pad>"]


def test_an_older_tokenizer_model_beside_it_is_not_read(tmp_path: Path) -> None:
    folder, tokens = make(tmp_path)
    (folder / "tokenizer.model").write_bytes(b"not a vocabulary")
    assert load_tokenizer(converted(folder, len(tokens))).token(N_SPECIAL) == tokens[0]


def test_another_pattern(tmp_path: Path) -> None:
    folder, tokens = make(tmp_path, lambda content: content["config"].update(pattern=r"\w+"))
    with pytest.raises(ConversionError, match=r"the pattern that splits a text into words is '\\\\w\+'"):
        converted(folder, len(tokens))


def _put(i: int, **entry: Any) -> Change:
    return lambda content: content["vocab"][i].update(entry)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put(3, rank=4), "rank 3"),
        (_put(3, token_bytes="AA=="), "rank 3"),  # a token twice
        (_put(3, token_bytes="not base64"), "rank 3"),
        (_put(65, token_bytes="QUFB"), "no token for the byte 0x41"),
        (lambda content: content.update(vocab={}), "no token for the byte 0x00"),
        (lambda content: content["config"].update(default_vocab_size=None), "default_vocab_size.*number of tokens"),
        (lambda content: content["special_tokens"].append({"rank": N_SPECIAL, "token_str": "x"}), "a rank below 12"),
    ],
)
def test_damaged_files(tmp_path: Path, change: Change, message: str) -> None:
    folder, tokens = make(tmp_path, change)
    with pytest.raises(ModelFileError, match=message):
        converted(folder, len(tokens))
