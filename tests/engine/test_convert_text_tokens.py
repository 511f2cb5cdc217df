"""Tokenizers of text models, through a GGUF file, against the folder's own."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hotshoe.convert import convert
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import ConversionError, HotshoeError, ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.converted import keys
from tests.support.texts import load_texts
from tests.support.tiny_bert import edit_json
from tests.support.tiny_text import SENTENCES, make_tiny, make_tokenizer

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose tokenizer files a test replaces."""
    return make_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("m"), num_hidden_layers=1)


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def converted(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = convert(folder, folder.parent / "m.gguf", overwrite=True)
    with GGUFFile(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    return tokenizer, {k.removeprefix("tokenizer.ggml."): v for k, v in keys(path).items()}


@pytest.mark.parametrize(
    ("pre", "written"),
    [
        ("qwen2", "qwen2"),
        ("llama-bpe", "llama-bpe"),
        ("gpt-2", "gpt-2"),
        ("smollm", "smollm"),
        ("starcoder", "smollm"),  # the same thing
        ("smaug-bpe", "dbrx"),  # the same thing
        ("tekken", "tekken"),
        ("gpt-4o", "gpt-4o"),
        ("deepseek-v3", "deepseek-v3"),
        ("deepseek-llm", "deepseek-llm"),
        ("qwen35", "qwen35"),
        ("spaces", "default"),
    ],
)
def test_same_ids_as_the_folder(folder: Path, pre: str, written: str) -> None:
    make_tokenizer(folder, pre)
    tokenizer, metadata = converted(folder)
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert metadata["pre"] == written
    assert metadata["model"] == ("llama" if pre == "spaces" else "gpt2")
    texts = [*SENTENCES, *(t.text for t in load_texts()), "a <tool> b<|odd|>c<|end|>", ""]
    for text in texts:
        for special in (False, True):
            assert tokenizer.encode(text, special) == own.encode(text, add_special_tokens=special).ids, text


def test_gpt2_as_its_own_files_say_it(folder: Path) -> None:
    """One ByteLevel with its regular expression, and digits before it: GPT-2 and SmolLM as published."""
    make_tokenizer(folder, "gpt-2")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    edit_json(folder, "tokenizer.json", pre_tokenizer=level)
    assert converted(folder)[1]["pre"] == "gpt-2"
    digits = {"type": "Digits", "individual_digits": True}
    edit_json(folder, "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [digits, level]})
    assert converted(folder)[1]["pre"] == "smollm"


def test_keys_of_byte_level_bpe(folder: Path) -> None:
    make_tokenizer(folder, "qwen2")
    _, metadata = converted(folder)
    own = json.loads((folder / "tokenizer.json").read_text())
    tokens, types = metadata["tokens"], metadata["token_type"]
    assert metadata["merges"] == [" ".join(m) for m in own["model"]["merges"]]
    assert {t: types[tokens.index(t)] for t in ("<|begin|>", "<tool>", "<|odd|>", "!", "[PAD319]")} == {
        "<|begin|>": 3,
        "<tool>": 4,
        "<|odd|>": 3,  # not called special, but it looks it
        "!": 1,
        "[PAD319]": 5,
    }
    assert metadata["bos_token_id"] == 0
    assert metadata["eos_token_id"] == 1
    assert metadata["add_bos_token"] is metadata["add_eos_token"] is False
    assert "padding_token_id" not in metadata
    make_tokenizer(folder, "qwen2", bos=True)
    assert converted(folder)[1]["add_bos_token"] is True


def test_a_token_after_the_text_that_does_not_end_a_turn(folder: Path) -> None:
    """Embedding models made of chat models."""
    end = {"SpecialToken": {"id": "<|odd|>", "type_id": 0}}
    ids = {e["content"]: e["id"] for e in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"<|odd|>": {"id": "<|odd|>", "ids": [ids["<|odd|>"]], "tokens": ["<|odd|>"]}}
    template = {"type": "TemplateProcessing", "single": [text, end], "pair": [text, end], "special_tokens": special}
    edit_json(folder, "tokenizer.json", post_processor=template)
    tokenizer, metadata = converted(folder)
    assert (metadata["eos_token_id"], metadata["eot_token_id"]) == (ids["<|odd|>"], 1)
    assert tokenizer.encode("hello")[-1] == ids["<|odd|>"]


def test_roles_and_templates(folder: Path) -> None:
    edit_json(folder, "tokenizer_config.json", bos_token={"content": "<tool>"}, eos_token=..., chat_template=...)
    edit_json(folder, "config.json", eos_token_id=[7, 8], pad_token_id=3)
    _, metadata = converted(folder)
    assert metadata["tokens"][metadata["bos_token_id"]] == "<tool>"
    assert (metadata["eos_token_id"], metadata["padding_token_id"]) == (7, 3)
    assert "tokenizer.chat_template" not in metadata
    (folder / "chat_template.jinja").write_text("{{ messages }} é", encoding="utf-8")
    assert converted(folder)[1]["tokenizer.chat_template"] == "{{ messages }} é"
    named = [{"name": "default", "template": "a"}, {"name": "tool-use", "template": "b"}]
    edit_json(folder, "tokenizer_config.json", chat_template=named)
    _, metadata = converted(folder)
    assert metadata["tokenizer.chat_template"] == "a"
    assert metadata["tokenizer.chat_template.tool_use"] == "b"
    assert metadata["tokenizer.chat_templates"] == ["tool_use"]


def test_merges_as_older_files_have_them(folder: Path) -> None:
    own = json.loads((folder / "tokenizer.json").read_text())
    before = converted(folder)[1]["merges"]
    own["model"]["merges"] = [" ".join(m) for m in own["model"]["merges"]]
    edit_json(folder, "tokenizer.json", model=own["model"])
    assert converted(folder)[1]["merges"] == before


def test_a_tokenizer_without_merges(folder: Path) -> None:
    own = json.loads((folder / "tokenizer.json").read_text())
    edit_json(folder, "tokenizer.json", model=own["model"] | {"merges": []})
    with pytest.raises(ConversionError, match="the tokenizer has no merges"):
        converted(folder)


# --- SentencePiece


def sentencepiece_model(
    pieces: Sequence[tuple[str, float, int]], *, kind: int = 2, prefix: bool = True, trim: bool = False
) -> bytes:
    """A ``tokenizer.model``: type, length and value of each field, as the format of Protocol Buffers has it."""

    def message(number: int, raw: bytes) -> bytes:
        assert len(raw) < 128
        return bytes([number << 3 | 2, len(raw)]) + raw

    out = b""
    for text, score, type in pieces:
        fields = message(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score)
        out += message(1, fields + (bytes([3 << 3, type]) if type != 1 else b""))
    out += message(2, bytes([3 << 3, kind, 0x98, 0x02, 1]))  # field 35: byte_fallback
    return out + message(3, bytes([3 << 3, prefix, 4 << 3, trim]))


BYTES = [(f"<0x{b:02X}>", 0.0, 6) for b in range(256)]
PIECES = [
    *(("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *BYTES),
    *(("he", -1.0, 1), ("▁he", -2.0, 1), ("▁", -3.0, 1), ("h", -4.0, 1), ("e", -5.0, 1), ("<user>", 0.0, 4)),
]


@pytest.fixture
def spm(folder: Path) -> Path:
    (folder / "tokenizer.json").unlink()
    settings = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(PIECES))
    return folder


def test_tokenizer_model(spm: Path) -> None:
    edit_json(spm, "tokenizer_config.json", added_tokens_decoder={"300": {"content": "<|x|>", "special": True}})
    tokenizer, metadata = converted(spm)
    assert (metadata["model"], metadata["pre"], metadata["add_space_prefix"]) == ("llama", "default", True)
    assert metadata["scores"][258:265] == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, 0.0]
    assert metadata["scores"][300:302] == [-1000.0, -10000.0]
    assert metadata["token_type"][:4] == [2, 3, 3, 6]
    assert metadata["token_type"][263:266] == [1, 4, 5]
    assert (metadata["tokens"][300], metadata["token_type"][300]) == ("<|x|>", 3)
    roles = ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token")
    assert [metadata[role] for role in roles] == [1, 2, 0, True]
    assert tokenizer.encode("he he<|x|><user>") == [1, 260, 260, 300, 264]
    assert tokenizer.encode("éhe") == [1, 261, 3 + 0xC3, 3 + 0xA9, 259]
    assert tokenizer.decode([260, 260]) == "he he"
    (spm / "tokenizer.model").write_bytes(sentencepiece_model(PIECES, prefix=False))
    assert converted(spm)[0].encode("he he") == [1, 259, 260]


def test_sentencepiece_reads_the_same(spm: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(spm / "tokenizer.model"))
    tokenizer, _ = converted(spm)
    for text in ("he he", "  hehe e", "éhe", "he<user>", "h"):
        assert tokenizer.encode(text, False) == theirs.encode(text)


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (b"", ModelFileError, "has no pieces"),
        (b"\x0a\x7fabc", ModelFileError, "claims 127 bytes, but 3 are left"),
        (b"\xff" * 20, ModelFileError, "does not end"),
        (b'{"a": 1}', ModelFileError, "is not a SentencePiece model"),
        (sentencepiece_model([("a", 0.0, 9)]), ModelFileError, "a piece has the type 9"),
        (sentencepiece_model(PIECES, kind=1), ConversionError, "its kind is unigram"),
        (sentencepiece_model(PIECES, trim=True), ConversionError, "changes the text before it is split"),
    ],
)
def test_bad_tokenizer_models(spm: Path, raw: bytes, error: type[HotshoeError], message: str) -> None:
    (spm / "tokenizer.model").write_bytes(raw)
    with pytest.raises(error, match=message):
        converted(spm)


# --- what a GGUF file cannot say

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def _split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
    return {"type": "Sequence", "pretokenizers": [part, LEVEL]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_tokenizer": _split("[a-z]+")}, r"splits by \[a-z\]\+ .*no tokenizer.ggml.pre(.|\n)*_pretokenizers.py"),
        ({"pre_tokenizer": _split("[a-z]+", "Removed")}, "a Split that is Removed"),
        ({"pre_tokenizer": LEVEL}, "splits by nothing"),
        ({"pre_tokenizer": LEVEL | {"add_prefix_space": True}}, "ByteLevel with add_prefix_space"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [LEVEL, LEVEL]}}, "a step after ByteLevel"),
        ({"pre_tokenizer": None}, "without byte_fallback"),
        ({"normalizer": {"type": "Lowercase"}}, "the normalizer is 'Lowercase'"),
    ],
)
def test_tokenizers_that_gguf_cannot_express(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_json(folder, "tokenizer.json", **changes)
    with pytest.raises(ConversionError, match=message):
        converted(folder)


def test_a_prefix_that_is_not_the_bos_token(folder: Path) -> None:
    make_tokenizer(folder, "qwen2", bos=True)
    edit_json(folder, "tokenizer_config.json", bos_token="<tool>")
    with pytest.raises(ConversionError, match=r"puts the tokens \[0\] before a text(.|\n)*bos token"):
        converted(folder)


def test_scores_that_cannot_stand_for_the_merges(folder: Path) -> None:
    make_tokenizer(folder, "spaces")
    own = json.loads((folder / "tokenizer.json").read_text())
    # "er" is made first for its own sake, but by its merges only after "he" has taken the e
    own["model"]["merges"] = [["h", "e"], ["▁t", "he"], ["e", "r"], ["▁", "t"], ["▁", "he"], ["a", "r"]][3:]
    edit_json(folder, "tokenizer.json", model=own["model"])
    with pytest.raises(ConversionError, match="does something that a GGUF file cannot express"):
        converted(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tokenizer.json", {"added_tokens": [{"id": -1, "content": "x"}]}, "package cannot use it"),
        ("tokenizer.json", {"added_tokens": 3}, "package cannot use it"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": 0}}}, "package cannot use it"),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": [], "merges": []}}, "package cannot use it"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added tokens: expected objects with id"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added tokens: expected objects with id"),
        ("tokenizer_config.json", {"chat_template": 3}, "chat_template: expected a text"),
    ],
)
def test_broken_tokenizer_files(folder: Path, name: str, changes: dict[str, Any], message: str) -> None:
    edit_json(folder, name, **changes)
    with pytest.raises(ModelFileError, match=message):
        converted(folder)


def test_a_tokenizer_that_is_larger_than_the_model(folder: Path) -> None:
    entry = {"id": 400, "content": "<extra>", "special": True}
    edit_json(folder, "tokenizer_config.json", added_tokens_decoder={"400": entry})
    with pytest.raises(ConversionError, match=r"token '<extra>' with id 400, but config.json says vocab_size 320"):
        converted(folder)


def test_no_tokenizer_files(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        converted(folder)
