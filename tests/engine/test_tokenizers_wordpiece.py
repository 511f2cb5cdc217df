"""WordPiece from GGUF metadata: exact against llama.cpp's recorded ids and against transformers."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.tokenizers import Tokenizer, load_tokenizer
from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe.tokenizers._wordpiece import phantom, restore
from hotshoe_core.errors import TokenizerError
from hotshoe_core.gguf import GGUFFile
from tests.support.minilm import Reference
from tests.support.texts import load_texts
from tests.support.tiny_bert import SPECIAL, VOCAB
from tests.support.vocabularies import recorded, recorded_ids


def metadata(**changes: Any) -> dict[str, Any]:
    """The tiny vocabulary as GGUF metadata; ``changes`` are keys after "tokenizer.ggml.", None removes one."""
    types = [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in VOCAB]
    keys = {
        "model": "bert",
        "pre": "bert-bge",
        "tokens": list(map(phantom, VOCAB, types)),
        "token_type": [int(t) for t in types],
        "bos_token_id": 2,
        "eos_token_id": 3,
        "unknown_token_id": 1,
        "seperator_token_id": 3,
        "padding_token_id": 0,
        "mask_token_id": 4,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return load_tokenizer(metadata())


@pytest.fixture(scope="module")
def minilm(minilm_gguf: Callable[[str], Path]) -> Tokenizer:
    with GGUFFile(minilm_gguf("f16")) as file:
        return load_tokenizer(file.metadata)


# --- against recorded and live oracles


def test_recorded_ids_of_llama_cpp() -> None:
    for text, ids in recorded_ids("bert-bge"):
        assert recorded("bert-bge").encode(text, add_special=False) == ids, text


def test_equal_to_transformers_on_the_corpus(minilm: Tokenizer, minilm_reference: Reference) -> None:
    for text in load_texts():
        ids = minilm.encode(text.text)
        assert ids == minilm_reference.ids(text.text), text.name
        assert text.tokens is None or len(ids) == text.tokens, text.name


def test_equal_to_transformers_on_random_texts(minilm: Tokenizer, minilm_reference: Reference) -> None:
    rng = random.Random(20)
    pieces = [t.text for t in load_texts(max_tokens=200) if t.text]
    texts = []
    for _ in range(300):
        drawn = [_random_word(rng) if rng.random() < 0.5 else _cut(rng, rng.choice(pieces)) for _ in range(8)]
        texts.append(rng.choice([" ", "", "\n", "-"]).join(drawn))
    assert minilm.encode_batch(texts) == [minilm_reference.ids(text) for text in texts]


def test_decode_is_equal_to_transformers(minilm: Tokenizer, minilm_reference: Reference) -> None:
    for text in load_texts(max_tokens=300):
        ids = minilm.encode(text.text)
        for skip in (True, False):
            expected = minilm_reference.tokenizer.decode(ids, skip_special_tokens=skip)
            assert minilm.decode(ids, skip_special=skip) == expected, text.name


def test_tokens_are_those_of_vocab_txt(minilm: Tokenizer, minilm_folder: Path) -> None:
    lines = (minilm_folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert [minilm.token(i) for i in range(minilm.vocab_size)] == lines


def _cut(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text))
    return text[start : start + rng.randrange(1, 30)]


def _random_word(rng: random.Random) -> str:
    blocks = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x5FF), (0x2000, 0x2BFF), (0x3040, 0x9FFF)]
    blocks += [(0xAC00, 0xD7A3), (0xFB00, 0xFFFD), (0x1F300, 0x1FAFF), (0x0, 0xFF)]
    low, high = rng.choice(blocks)
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.randrange(1, 12)))


# --- the class


def test_ids_and_roles(tiny: Tokenizer) -> None:
    assert tiny.vocab_size == len(VOCAB)
    assert (tiny.bos, tiny.eos, tiny.cls, tiny.sep, tiny.pad, tiny.unk, tiny.mask) == (2, 3, 2, 3, 0, 1, 4)
    assert tiny.token(2) == "[CLS]"
    assert tiny.token(VOCAB.index("##ing")) == "##ing"
    with pytest.raises(IndexError, match=f"token id {len(VOCAB)} is outside the vocabulary"):
        tiny.token(len(VOCAB))
    with pytest.raises(IndexError):
        tiny.token(-1)
    with pytest.raises(IndexError):
        tiny.decode([2, 10**6])


def test_encode_with_and_without_special(tiny: Tokenizer) -> None:
    inner = [VOCAB.index("hello"), VOCAB.index(","), VOCAB.index("world")]
    assert tiny.encode("Hello, World") == [2, *inner, 3]
    assert tiny.encode("Hello, World", add_special=False) == inner
    assert tiny.encode("") == [2, 3]
    assert tiny.encode("", add_special=False) == []
    assert tiny.count("Hello, World") == 5
    assert tiny.decode(tiny.encode("Hello, World")) == "hello, world"


def test_a_batch_is_its_texts_one_by_one(tiny: Tokenizer) -> None:
    texts = ["hello", "", "the quick brown fox", "\u6f22\u5b57"]
    assert tiny.encode_batch(texts) == [tiny.encode(t) for t in texts]
    assert tiny.encode_batch(iter(texts), add_special=False) == [tiny.encode(t, add_special=False) for t in texts]
    assert tiny.encode_batch([]) == []


@pytest.mark.parametrize("length", [2, 3, 5, 100])
def test_max_length_keeps_the_closing_token(tiny: Tokenizer, length: int) -> None:
    text = "the quick brown fox"
    whole = tiny.encode(text)
    cut = tiny.encode(text, max_length=length)
    assert len(cut) == min(length, len(whole))
    assert cut[0] == tiny.cls
    assert cut[-1] == tiny.sep
    assert cut[:-1] == whole[: len(cut) - 1]
    assert tiny.encode_batch([text, ""], max_length=length) == [cut, tiny.encode("")]
    assert tiny.encode(text, add_special=False, max_length=length) == whole[1:-1][:length]


def test_max_length_without_room_is_an_error(tiny: Tokenizer) -> None:
    with pytest.raises(ValueError, match="max_length is 1; expected at least 2"):
        tiny.encode("hello", max_length=1)


def test_special_tokens_in_a_text(tiny: Tokenizer) -> None:
    assert tiny.encode("hello [SEP]", add_special=False) == [VOCAB.index("hello"), 3]
    plain = tiny.encode("hello [SEP]", add_special=False, parse_special=False)
    assert not set(plain) & set(range(len(SPECIAL)))
    assert tiny.decode(plain) == "hello [ sep ]"
    # and the first object is as it was
    assert tiny.encode("[SEP]", add_special=False) == [3]


def test_wrong_kinds_of_text(tiny: Tokenizer) -> None:
    wrong: Any
    for wrong in (b"hello", None, 3, ["hello"]):
        with pytest.raises(TypeError, match="expected str"):
            tiny.encode(wrong)
    for wrong in ("hello", b"hello"):
        with pytest.raises(TypeError, match="expected an iterable of str"):
            tiny.encode_batch(wrong)
    wrong = ["hello", 3]
    with pytest.raises(TypeError, match=r"texts\[1\] is 3 \(int\)"):
        tiny.encode_batch(wrong)


def test_surrogates_are_mended(tiny: Tokenizer) -> None:
    assert tiny.encode("a\ud800b") == tiny.encode("a\ufffdb")
    assert tiny.encode("\ud83d\ude00") == tiny.encode("\U0001f600")
    assert tiny.encode_batch(["hello", "\udfff"]) == [tiny.encode("hello"), tiny.encode("")]


def test_threads_share_a_tokenizer(tiny: Tokenizer) -> None:
    texts = [f"hello {'world ' * (i % 7)}[SEP]" for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        parsed = pool.map(tiny.encode, texts)
        plain = pool.map(lambda t: tiny.encode(t, parse_special=False), texts)
        assert list(parsed) == tiny.encode_batch(texts)
        assert list(plain) == tiny.encode_batch(texts, parse_special=False)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec=None), max_size=80))
def test_any_text_has_ids_inside_the_vocabulary(text: str) -> None:
    tokenizer = load_tokenizer(metadata())
    ids = tokenizer.encode(text)
    assert ids[0] == 2
    assert ids[-1] == 3
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.encode(unicodedata.normalize("NFC", text).lower())[0] == 2


# --- what the file says


def test_words_longer_than_a_hundred_characters_are_unknown() -> None:
    assert load_tokenizer(metadata()).encode("a" * 101, add_special=False) == [1]
    longer = metadata() | {"hotshoe.tokenizer.max_characters_per_word": 101}
    assert len(load_tokenizer(longer).encode("a" * 101, add_special=False)) == 101


def test_case_and_accents_follow_the_file() -> None:
    hello, capital = VOCAB.index("hello"), VOCAB.index("Hello")
    lower, e, accented = metadata(), VOCAB.index("e"), VOCAB.index("é")
    assert load_tokenizer(lower).encode("Hello é", add_special=False) == [hello, e]
    cased = metadata(**{"normalizer.lowercase": False})
    assert load_tokenizer(cased).encode("Hello é", add_special=False) == [capital, accented]
    keep = metadata(**{"normalizer.strip_accents": False})
    assert load_tokenizer(keep).encode("Hello é", add_special=False) == [hello, accented]
    strip = metadata(**{"normalizer.lowercase": False, "normalizer.strip_accents": True})
    assert load_tokenizer(strip).encode("Hello é", add_special=False) == [capital, e]


def test_hotshoe_keys_for_what_gguf_cannot_say() -> None:
    assert load_tokenizer(metadata()).encode("漢字", add_special=False) == [VOCAB.index("漢"), VOCAB.index("字")]
    joined = metadata() | {"hotshoe.tokenizer.split_chinese_characters": False}
    assert load_tokenizer(joined).encode("漢字", add_special=False) == [1]
    unclean = metadata() | {"hotshoe.tokenizer.clean_text": False}
    assert load_tokenizer(metadata()).encode("a\x00a", add_special=False) != load_tokenizer(unclean).encode(
        "a\x00a", add_special=False
    )


def test_user_defined_tokens() -> None:
    tokens = [*metadata()["tokenizer.ggml.tokens"], "▁[Query]"]
    types = [*metadata()["tokenizer.ggml.token_type"], 4]
    keys = metadata(tokens=tokens, token_type=types)
    assert load_tokenizer(keys).encode("[query]hello", add_special=False)[0] == len(VOCAB)
    verbatim = load_tokenizer(keys | {"hotshoe.tokenizer.verbatim_ids": [len(VOCAB)]})
    assert verbatim.encode("[Query]hello", add_special=False) == [len(VOCAB), VOCAB.index("hello")]
    assert len(VOCAB) not in verbatim.encode("[query]hello", add_special=False)


def test_roles_are_found_by_name_in_files_without_their_keys() -> None:
    names = ("bos", "eos", "unknown", "seperator", "padding", "mask")
    bare = load_tokenizer(metadata(token_type=None, **{f"{n}_token_id": None for n in names}))
    assert bare.special[2:7] == (2, 3, 0, 1, 4)
    assert bare.encode("[MASK]") == [2, 4, 3]


def test_arrays_may_be_of_numpy() -> None:
    keys = metadata(token_type=np.array(metadata()["tokenizer.ggml.token_type"], np.int32))
    assert load_tokenizer(keys).encode("hello") == load_tokenizer(metadata()).encode("hello")


def test_phantom_and_restore() -> None:
    vocab = ["[CLS]", "[unused7]", "a", "##a", "##", "#", "###", "▁", "▁▁", "b", "##▁b", "##▁", "[", "##["]
    types = [TokenType.CONTROL] + [TokenType.NORMAL] * (len(vocab) - 1)
    stored = list(map(phantom, vocab, types))
    assert stored == ["[CLS]", "▁[unused7]", "▁a", "a", "", "▁#", "#", "▁▁", "▁▁▁", "▁b", "▁b", "▁", "▁[", "["]
    assert restore(stored, types) == vocab
    # as files from before 2025 have it
    assert restore(["[unused7]"], [TokenType.NORMAL]) == ["[unused7]"]


# --- files that are wrong


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no key tokenizer.ggml.model"),
        ({"model": 3}, "tokenizer.ggml.model is 3; expected a string"),
        ({"model": "brt"}, "tokenizer.ggml.model is 'brt'(.|\n)*did you mean 'bert'"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre is 'qwen2'(.|\n)*bert-bge"),
        ({"pre": 1}, "tokenizer.ggml.pre is 1; expected a string"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens is 'abc'; expected an array"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": ["a", 3], "token_type": [1, 1]}, r"tokenizer.ggml.tokens\[1\] is 3; expected a string"),
        ({"token_type": [1, 2]}, f"token_type is an array of 2; expected an array of {len(VOCAB)}"),
        ({"token_type": 7}, "token_type is 7"),
        ({"token_type": ["x"] * len(VOCAB)}, "token_type is an array"),
        ({"unknown_token_id": len(VOCAB)}, f"unknown_token_id is {len(VOCAB)}, but the vocabulary has {len(VOCAB)}"),
        ({"unknown_token_id": -1}, "unknown_token_id is -1"),
        ({"bos_token_id": "x"}, "bos_token_id is 'x'; expected an integer"),
        ({"normalizer.lowercase": 1}, "normalizer.lowercase is 1; expected true or false"),
    ],
)
def test_inconsistent_metadata_is_a_tokenizer_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(metadata(**changes))


def test_equal_tokens_and_missing_roles_are_errors() -> None:
    with pytest.raises(TokenizerError, match="both at 0 and at 1"):
        load_tokenizer(metadata(tokens=["[CLS]", "[CLS]", "[SEP]"], token_type=[3, 3, 3], mask_token_id=None))
    few = {"tokens": ["▁a", "▁b"], "token_type": [1, 1]}
    none = {f"{n}_token_id": None for n in ("bos", "eos", "unknown", "seperator", "padding", "mask")}
    with pytest.raises(TokenizerError, match=r"no \[CLS\]"):
        load_tokenizer(metadata(**few, **none))
    with pytest.raises(TokenizerError, match="verbatim_ids"):
        load_tokenizer(metadata() | {"hotshoe.tokenizer.verbatim_ids": [10**6]})
    with pytest.raises(TokenizerError, match="max_characters_per_word is 0"):
        load_tokenizer(metadata() | {"hotshoe.tokenizer.max_characters_per_word": 0})
