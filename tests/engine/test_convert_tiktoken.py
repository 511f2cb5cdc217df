"""tiktoken's ranks, as Kimi's checkpoints have them, against the same vocabulary in the ``tokenizers`` package."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotshoe.convert import open_checkpoint, tokenizer_metadata
from hotshoe.tokenizers import Tokenizer, load_tokenizer
from hotshoe.tokenizers._decoding import byte_letters
from hotshoe_core.errors import ConversionError, ModelFileError
from tests.support.tiny_text import make_tokenizer

TEXTS = (
    "Hello, World! It's 4 ½ o'clock.  the  theory\n\n",
    "我想在apple工作1314151天～ ひらがな",
    "HTTPServer camelCase naïve Äpfel 🚀 ''''``` {}[]()\t\r\n",
)
SETTINGS = {
    "tokenizer_class": "TikTokenTokenizer",
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "chat_template": "{{ messages }}",
}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Path, list[str]]]:
    """Return a folder with ranks, and its tokens by rank, in the letters of GPT-2."""

    def get(change: Callable[[list[str]], None] | None = None, **settings: Any) -> tuple[Path, list[str]]:
        make_tokenizer(tmp_path / "json", "kimi-k2")
        vocab = json.loads((tmp_path / "json" / "tokenizer.json").read_text())["model"]["vocab"]
        values = {letter: byte for byte, letter in enumerate(byte_letters())}
        tokens = [token for token in sorted(vocab, key=vocab.get) if set(token) <= values.keys() and token[0] != "<"]
        tokens = [*byte_letters(), *(token for token in tokens if len(token) > 1)]
        stored = [base64.b64encode(bytes(map(values.__getitem__, token))).decode() for token in tokens]
        lines = [f"{line} {rank}" for rank, line in enumerate(stored)]
        if change is not None:
            change(lines)
        folder = tmp_path / "kimi"
        folder.mkdir()
        (folder / "tiktoken.model").write_text("\n".join(lines) + "\n")
        n = len(tokens)
        added = {str(n): {"content": "[BOS]", "special": True}, str(n + 1): {"content": "[EOS]", "special": True}}
        (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | {"added_tokens_decoder": added} | settings))
        (folder / "config.json").write_text(json.dumps({"vocab_size": n + 8}))
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        return folder, tokens

    return get


def converted(folder: Path, n: int) -> dict[str, Any]:
    return tokenizer_metadata(open_checkpoint(folder), n)


def test_the_same_tokens_as_with_merges(make: Callable[..., tuple[Path, list[str]]], tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Package

    folder, tokens = make()
    metadata = converted(folder, len(tokens) + 8)
    ours: Tokenizer = load_tokenizer(metadata)
    package = Package.from_file(str(tmp_path / "json" / "tokenizer.json"))
    for text in TEXTS:
        expected = package.encode(text, add_special_tokens=False).tokens
        assert [ours.token(i) for i in ours.encode(text, add_special=False)] == expected
        assert ours.decode(ours.encode(text)) == text
    assert len(tokens) > 280
    assert metadata["tokenizer.ggml.pre"] == "kimi-k2"
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"


def test_special_tokens_follow_the_ranks(make: Callable[..., tuple[Path, list[str]]]) -> None:
    folder, tokens = make()
    n = len(tokens)
    tokenizer = load_tokenizer(converted(folder, n + 8))
    assert (tokenizer.bos, tokenizer.eos) == (n, n + 1)
    assert tokenizer.token(n + 2) == f"<|reserved_token_{n + 2}|>"
    assert tokenizer.encode("a[EOS]", add_special=False)[-1] == n + 1
    assert tokenizer.decode([n + 2]) == ""


def test_a_folder_that_does_not_say_how_words_are_split(make: Callable[..., tuple[Path, list[str]]]) -> None:
    folder, tokens = make(auto_map=None)
    with pytest.raises(ConversionError, match=r"does not say how a text is split.*tokenization_kimi\.py"):
        converted(folder, len(tokens) + 8)


def _put(i: int, line: str) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        lines[i] = line

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put(3, "AA== 3"), "line 4 is"),  # a token twice
        (_put(3, "not base64 3"), "line 4 is"),
        (_put(3, "//// 4"), "line 4 is"),  # another rank
        (_put(3, " 3"), "line 4 is"),
        (_put(65, "QUFB 65"), "no token for the byte 0x41"),
    ],
)
def test_damaged_ranks(
    make: Callable[..., tuple[Path, list[str]]], change: Callable[[list[str]], None], message: str
) -> None:
    folder, tokens = make(change)
    with pytest.raises(ModelFileError, match=message):
        converted(folder, len(tokens) + 8)
