"""BPE from GGUF metadata: exact against llama.cpp's recorded ids, every pre-tokenizer, special tokens, bad files."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.tokenizers import Tokenizer, _lazy_bpe, load_tokenizer
from hotshoe.tokenizers._decoding import byte_letters
from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS
from hotshoe_core.errors import TokenizerError
from hotshoe_core.gguf import GGUFFile
from tests.support.vocabularies import byte_bpe, fresh, keys, recorded, recorded_ids, spaced_bpe

TRICKY = (
    "Hello world, it's WE'LL don'T 1 22 333 4444 1234567 a1b22\n\n  indented\t\ttabs \r\n end. \n"
    "x=+-*/(y);//z  été e\u0301 straße HTMLParser café's 漢字かなカナ 12年 한국어 你好，世界。 ภาษา हिन्दी слово ٣٤ ½Ⅳ "
    "🦙🌍 …“q”— <sentinel:12> IMGIMGABZ $5^`~|    !"
)


def load(**changes: Any) -> Tokenizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that "default" is a guess has a test of its own
        return load_tokenizer(byte_bpe(**changes))


def words(pre: str, text: str) -> list[str]:
    """How this pre-tokenizer cuts a text."""
    tokenizer = load(pre=pre) if PRE_TOKENIZERS[pre].bytes else load_tokenizer(utf8_bpe(pre=pre))
    inner = tokenizer._inner([text], parse_special=True)
    normal = text if inner.normalizer is None else inner.normalizer.normalize_str(text)
    cut = inner.pre_tokenizer.pre_tokenize_str(normal)
    if not PRE_TOKENIZERS[pre].bytes:
        return [word for word, _ in cut]
    values = {letter: byte for byte, letter in enumerate(byte_letters())}
    return [bytes(values[letter] for letter in word).decode() for word, _ in cut]


def utf8_bpe(**changes: Any) -> dict[str, Any]:
    """A vocabulary of UTF-8 tokens with bytes to fall back on, as Gemma 4 has it."""
    tokens = [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "\n", "\n\n", "ab", "\u2581ab", "<bos>"]
    types = [6] * 256 + [1] * 7 + [3]
    settings = {"model": "gpt2", "pre": "gemma4", "merges": ["a b", "\u2581 ab"], "bos_token_id": 263}
    return keys(**{"tokens": tokens, "token_type": types} | settings | changes)


# --- recorded ids


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_recorded_ids_of_llama_cpp(name: str) -> None:
    tokenizer = recorded(name)
    for text, ids in recorded_ids(name):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_decoding_gives_the_text_back(text: str) -> None:
    for name in ("llama-bpe", "qwen2"):
        tokenizer = recorded(name)
        for parse in (True, False):
            ids = tokenizer.encode(text, add_special=False, parse_special=parse)
            assert tokenizer.decode(ids, skip_special=False) == text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_decoding_gives_the_text_back_without_recorded_vocabularies(text: str) -> None:
    tokenizer = load_tokenizer(byte_bpe(merges=["a b", "\u0120 ab"], special=["<|im_end|>"], user=["  "]))
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_roles_in_recorded_vocabularies() -> None:
    llama, qwen = recorded("llama-bpe"), recorded("qwen2")
    assert (llama.bos, llama.eos, llama.eot) == (128000, 128001, 128009)
    assert llama.stop_ids == {128001, 128009}
    assert llama.encode("hi")[0] == 128000  # by its pre-tokenizer: this file has no key for it
    assert (qwen.eos, qwen.pad, qwen.eot) == (151643, 151643, 151645)
    # "</s>" is an ordinary token there, and llama.cpp stops at it all the same
    assert qwen.stop_ids == {151643, 151645, 128247}
    assert qwen.encode("hi") == qwen.encode("hi", add_special=False)
    assert qwen.encode("<|im_start|>") == [151644]
    assert len(qwen.encode("<|im_start|>", parse_special=False)) > 1
    assert qwen.decode([151644, *qwen.encode("hi"), 151645]) == "hi"
    assert qwen.decode([151644], skip_special=False) == "<|im_start|>"


# --- pre-tokenizers


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_words_are_what_another_engine_finds(pre: str) -> None:
    regex = pytest.importorskip("regex")
    pieces = [TRICKY.replace(" ", "\u2581") if PRE_TOKENIZERS[pre].escape_spaces else TRICKY]
    for split in PRE_TOKENIZERS[pre].splits:
        # "$" is the end of a line to Oniguruma
        expression = regex.compile(split, regex.V1 | regex.MULTILINE)
        pieces = [part for piece in pieces for part in _isolated(expression, piece)]
    if PRE_TOKENIZERS[pre].drop_spaces:
        pieces = [piece for piece in pieces if not piece.isspace()]
    assert words(pre, TRICKY) == pieces
    if PRE_TOKENIZERS[pre].bytes:
        assert "".join(pieces) == TRICKY
        tokenizer = load(pre=pre)
        assert tokenizer.encode(TRICKY, add_special=False) == list(TRICKY.encode())
        assert tokenizer.decode(tokenizer.encode(TRICKY)) == TRICKY


def _isolated(expression: Any, text: str) -> list[str]:
    cut, end = [], 0
    for match in expression.finditer(text):
        cut += [text[end : match.start()], match.group()]
        end = match.end()
    return [piece for piece in [*cut, text[end:]] if piece]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "it's 12345  ok!\n\nx", ["it", "'s", " 12345", " ", " ok", "!", "\n", "\n", "x"]),
        ("llama-bpe", "IT'S 12345 ok!\n\nx", ["IT", "'S", " ", "123", "45", " ok", "!\n\n", "x"]),
        ("qwen2", "a 123 $b\n  c", ["a", " ", "1", "2", "3", " $", "b", "\n", " ", " c"]),
        ("deepseek-v3", "x 1234\u6f22\u5b57\u304b $ab", ["x", " ", "123", "4", "\u6f22\u5b57\u304b", " $", "ab"]),
        ("starcoder", "a 12 b", ["a", " ", "1", "2", " b"]),
        ("gpt-4o", "HTMLParser can'T/go", ["HTMLParser", " can'T", "/go"]),
        ("tekken", "camelCase 12", ["camel", "Case", " ", "1", "2"]),
        ("kimi-k2", "go\u6f22\u5b57go", ["go", "\u6f22\u5b57", "go"]),
        ("afmoe", "a1234567", ["a", "1", "234", "567"]),
        ("tiny_aya", "n 1234567", ["n", " ", "1", "234", "567"]),
        ("superbpe", "by the way 12345", ["by the way ", "12", "345"]),
        ("falcon", "a1234, b", ["a", "123", "4", ",", " b"]),
        ("viking", "a12 b.", ["a", "1", "2", " b", "."]),
        ("gemma4", "a b\n\nc", ["a\u2581b", "\n\n", "c"]),
        ("whitespace", " a  b\n", ["a", "b"]),
        ("laguna", "a \n b", ["a", " ", "\n", " b"]),
        ("ufakzeka", "Ali'nin", ["Ali", "'nin"]),
    ],
)
def test_words_of_some_pre_tokenizers(pre: str, text: str, expected: list[str]) -> None:
    assert words(pre, text) == expected


def test_a_file_that_does_not_say_how_is_warned_about() -> None:
    for pre in (None, "default", ""):
        with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre"):
            assert load_tokenizer(byte_bpe(pre=pre)).encode("ab") == [97, 98]


def test_an_unknown_pre_tokenizer_is_named_with_the_known_ones() -> None:
    with pytest.raises(TokenizerError, match=r"is 'qwen22'(.|\n)*known: a\.x-4\.0(.|\n)*did you mean 'qwen2'"):
        load(pre="qwen22")
    with pytest.raises(TokenizerError, match=r"is 'zzzzzz'(.|\n)*newer version of hotshoe"):
        load(pre="zzzzzz")


# --- a part of the vocabulary for the words of a text


def vocabularies() -> Iterator[tuple[str, dict[str, Any]]]:
    with GGUFFile(Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf") as file:
        plain = (str, int, float)
        yield "kjv", {key: v if isinstance(v, plain) else list(v) for key, v in file.metadata.items()}
    for name in ("llama-bpe", "qwen2", "gpt-4o"):
        changes = {"pre": name, "special": ["<|im_end|>", "<x>"], "user": ["  ", "<t>"]}
        merges = ["a b", "t h", "\u0120 th", "th e", "\u0120th e", "i n", "e r", "\u0120 a", "\u0120a b"]
        yield name, byte_bpe(merges=merges, **changes)

    # a control token that merges make too, and that others are made of: found as letters where it is not looked for
    made = byte_bpe(merges=["a b", "ab c", "< x", "<x >", "t h", "th e"], user=["<t>"])
    made["tokenizer.ggml.token_type"] = [1] * 256 + [3, 1, 1, 3, 1, 4, 4]
    yield "made control tokens", made

    scores = {"a": -9.0, "b": -9.5, "c": -9.7, "ab": -3.0, "\u2581the": -1.0, "the": -1.5, "th": -2.0, "abc": -2.0}
    scores |= {"\u2581": -8.0, "\u2581\u2581": -7.0, "An": -4.0, "And": -4.0, "漢字": -5.0, "t": -9.0, "he": -6.0}
    user = ["<t>", "\u2581" * 3, "\u2581in"]
    for prefix in (True, False):
        yield f"scores, {prefix}", spaced_bpe(scores, special=["<x>", "n"], user=user, add_space_prefix=prefix)
    untyped = spaced_bpe(scores, add_space_prefix=False)
    del untyped["tokenizer.ggml.token_type"]
    yield "scores without types", untyped
    yield "scores of tokens across words", spaced_bpe(scores | {"a\u2581": -6.0, "a\u2581b": -5.0})


VOCABULARIES = dict(vocabularies())


@pytest.mark.parametrize("name", [*VOCABULARIES, "real llama-bpe", "real qwen2", "real llama-spm"])
def test_a_part_of_the_vocabulary_gives_the_ids_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lazy_bpe, "MAX_PARTS", 10**9)  # random texts come near it

    def make() -> Tokenizer:
        return load_tokenizer(VOCABULARIES[name]) if name in VOCABULARIES else fresh(name.removeprefix("real "))

    part, whole = make(), make()
    part._parsing._most_made = 10**9
    whole._parsing._make_whole()
    known = ["<|im_end|>", "<x>", "abc", "ab", "<t>", "  ", " the", " in", "er", "\n", "\ud800", "And", "<|eot_id|>"]
    written = st.sampled_from([*known, "🦙", "a b", "漢字", "漢"])
    texts = st.lists(st.text(max_size=12) | written, max_size=8).map("".join)

    @settings(max_examples=150, deadline=None)
    @given(texts | st.just(TRICKY), st.booleans())
    def same(text: str, parse: bool) -> None:
        assert part.encode(text, parse_special=parse) == whole.encode(text, parse_special=parse)

    same()
    assert part._parsing._merges is not None


@pytest.mark.parametrize(
    "text",
    ["the " * 6000, "a" * 400, " ".join(map("".join, itertools.permutations("abcdefg", 6)))[:20_000]],
    ids=["long", "word", "words"],
)
def test_long_texts_get_the_whole_vocabulary(text: str) -> None:
    tokenizer, whole = load(merges=["a b", "t h", "th e"]), load(merges=["a b", "t h", "th e"])
    whole._parsing._make_whole()
    assert tokenizer.encode("the ab") == whole.encode("the ab")
    assert tokenizer._parsing._merges is not None
    assert tokenizer.encode(text) == whole.encode(text)
    assert tokenizer._parsing._merges is None


def test_tokens_may_stand_in_another_order_than_their_merges() -> None:
    merges = ["t h", "h e", "th e", "e r", "the r", "r e", "i n", "re in"]
    made = [merge.replace(" ", "") for merge in merges]
    orders = ([*byte_letters(), *made[::step]] for step in (1, -1))
    a, b = (load(merges=merges, tokens=tokens, token_type=[1] * len(tokens)) for tokens in orders)
    for text in ("the rein there", "herein then the other", "thethere", "reinin"):
        assert list(map(a.token, a.encode(text))) == list(map(b.token, b.encode(text)))
    assert "ther" in map(a.token, a.encode("there"))


def test_many_short_texts_get_the_whole_vocabulary() -> None:
    """Otherwise each of them would make a model of all words so far."""
    tokenizer = load(merges=["a b", "t h", "th e"])
    made = []
    make_model = tokenizer._parsing._make_model
    tokenizer._parsing._make_model = lambda ids, merges: made.append(len(ids)) or make_model(ids, merges)
    for a, b in itertools.permutations("abcdefghijklmnop", 2):
        tokenizer.encode(f"{a}{b}")
    assert tokenizer._parsing._merges is None
    assert sum(made) < 3 * tokenizer.vocab_size


@pytest.mark.parametrize("name", ["kjv", "scores, True"])
def test_an_interrupt_while_a_model_is_made_changes_no_ids(name: str) -> None:
    tokenizer, other = load_tokenizer(VOCABULARIES[name]), load_tokenizer(VOCABULARIES[name])
    make_model = tokenizer._parsing._make_model

    def interrupted(*_: Any) -> None:
        tokenizer._parsing._make_model = make_model
        raise KeyboardInterrupt

    tokenizer._parsing._make_model = interrupted
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("And the ab")
    for text in ("And the ab", "the abc"):
        assert tokenizer.encode(text) == other.encode(text)


def test_a_merge_whose_hash_is_that_of_a_token() -> None:
    tokens = [*byte_letters(), "abcdefghijklmnop", "ZHmAwKfU", "rMq8!@T/"]
    tokenizer = load(tokens=tokens, token_type=[1] * len(tokens), merges=["ZHmAwKfU rMq8!@T/"])
    assert tokenizer.encode("ZHmAwKfUrMq8!@T/") == list(b"ZHmAwKfUrMq8!@T/")
    assert tokenizer.encode("a" * 500) == [97] * 500  # by the whole model
    long = ["a" * 511, "a" * 512, "a" * 512 + "c"]
    tokens = [*byte_letters(), *long]
    with pytest.raises(TokenizerError, match="the vocabulary of 259 tokens has no 'aaa"):
        load(tokens=tokens, token_type=[1] * len(tokens), merges=["a" * 512 + " b"])


def test_several_threads_make_parts_at_once() -> None:
    tokenizer, whole = load_tokenizer(VOCABULARIES["kjv"]), load_tokenizer(VOCABULARIES["kjv"])
    whole._parsing._make_whole()
    texts = [
        f"{a} begat {b} in the wilderness" for a in ("Abram", "Isaac", "Esau") for b in ("Dan", "Gad", "Levi", "Ham")
    ]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts * 20)) == [whole.encode(text) for text in texts * 20]


# --- merges, special tokens


def test_merges_in_their_order() -> None:
    tokenizer = load(merges=["b c", "a b", "a bc"])
    assert tokenizer.encode("abc") == [258]
    assert tokenizer.encode("ab") == [257]
    assert tokenizer.encode("abab") == [257, 257]
    assert tokenizer.token(258) == "abc"
    assert tokenizer.piece(258) == b"abc"


def test_ignore_merges_takes_a_whole_word_first() -> None:
    tokens = [*byte_letters(), "ab", "bc", "abc"]
    lone: dict[str, Any] = {"tokens": tokens, "token_type": [1] * 259, "merges": ["b c"], "bos_token_id": 0}
    assert load_tokenizer(byte_bpe(**lone)).encode("abc", add_special=False) == [97, 257]
    assert load_tokenizer(byte_bpe(**lone, pre="llama-bpe")).encode("abc", add_special=False) == [258]


def test_what_stands_around_a_text() -> None:
    roles = {"special": ["<s>", "</s>"], "bos_token_id": 256, "eos_token_id": 257}
    assert load(**roles).encode("a") == [97]
    assert load(**roles, add_bos_token=True, add_eos_token=True).encode("a") == [256, 97, 257]
    assert load(**roles, pre="llama-bpe").encode("a") == [256, 97]
    assert load(**roles, pre="llama-bpe", add_bos_token=False).encode("a") == [97]
    assert load(pre="llama-bpe").encode("a") == [97]
    for name in ("bos", "eos"):
        with pytest.raises(TokenizerError, match=f"add_{name}_token is true, but the file has no key"):
            load(**{f"add_{name}_token": True})


def test_special_and_user_defined_tokens_in_a_text() -> None:
    tokenizer = load(special=["<|im_end|>", "<|x|>"], user=["<think>", "  "], merges=["a b"])
    end, x, think, spaces = 257, 258, 259, 260
    assert tokenizer.encode("ab<|im_end|>") == [256, end]
    assert tokenizer.encode("ab<|im_end|>", parse_special=False) == [256, *b"<|im_end|>"]
    for parse in (True, False):
        assert tokenizer.encode("<think>a  b", parse_special=parse) == [think, 97, spaces, 98]
    assert tokenizer.decode([97, end, think, x, spaces]) == "a<think>  "
    assert tokenizer.decode([97, end, think], skip_special=False) == "a<|im_end|><think>"
    assert tokenizer.stop_ids == {end}


def test_names_of_roles_count_where_keys_are_missing() -> None:
    named = load(special=["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|eom_id|>", "<|eot_id|>"])
    assert named.special[7:12] == (260, 259, 256, 257, 258)
    assert named.stop_ids == {259, 260}
    keyed = load(special=["<a>", "<b>"], eot_token_id=257, fim_pre_token_id=256, prefix_token_id=257)
    assert (keyed.eot, keyed.special.fim_pre) == (257, 256)
    old = load(special=["<a>", "<b>"], prefix_token_id=257)
    assert old.special.fim_pre == 257


def test_names_that_mean_something_else_in_some_models() -> None:
    harmony = load(special=["<|return|>", "<|call|>", "<|end|>", "<|channel|>"])
    assert harmony.stop_ids == {256, 257}
    assert harmony.decode([258, 259, 256]) == "<|end|><|channel|>"
    gemma = load(special=["</s>", "<|tool_response>"])
    assert gemma.stop_ids == {257}


def test_white_space_beside_special_tokens() -> None:
    phi = byte_bpe(special=["<|user|>", "<s>"]) | {"general.name": "Phi-3 mini"}
    assert load_tokenizer(phi).encode("<|user|>\n a") == [256, 97]
    assert load_tokenizer(phi).encode("<s> a") == [257, 32, 97]
    mask = load(special=["<mask>"], pre="jina-v2-de")
    assert mask.encode("a <mask> b") == [97, 256, 32, 98]


def test_unused_tokens_are_not_shown() -> None:
    tokens = [*byte_letters(), "[PAD256]"]
    tokenizer = load_tokenizer(byte_bpe(tokens=tokens, token_type=[1] * 256 + [5]))
    assert tokenizer.decode([97, 256]) == "a"
    assert tokenizer.decode([97, 256], skip_special=False) == "a[PAD256]"
    assert tokenizer.encode("[PAD256]") == list(b"[PAD256]")


def test_vocabularies_in_utf8_fall_back_on_bytes() -> None:
    tokenizer = load_tokenizer(utf8_bpe(add_bos_token=False))
    assert tokenizer.encode("a ab") == [263, 257, 262]  # published files are wrong about bos, as llama.cpp knows
    assert tokenizer.encode("\n\na\n", add_special=False) == [260, 257, 259]
    text = "ab \u00e9 ab\n\U0001f999"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_without_their_spaces() -> None:
    tokens, types = ["a", "b", "ab", "A"], [1] * 4
    plain = keys(model="whitespace", tokens=tokens, token_type=types, merges=["a b"])
    assert load_tokenizer(plain).encode(" ab \n bA") == [2, 1, 3]
    lower = plain | {"tokenizer.ggml.normalizer.lowercase": True}
    assert load_tokenizer(lower).encode("ab A") == [2, 0]


# --- files that are wrong


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merges": None}, "tokenizer.ggml.merges is missing; expected an array of strings"),
        ({"merges": "a b"}, "tokenizer.ggml.merges is 'a b'; expected an array"),
        ({"merges": ["a b", 3]}, r"merges\[1\] is 3; expected a string"),
        ({"merges": ["a \ud800"]}, r"merges has 'a \\ud800'; expected text without lone surrogates"),
        ({"merges": ["ab"]}, r"merges\[0\] is 'ab'; expected two tokens"),
        ({"merges": ["a zz"]}, r"merges\[0\].*has no 'zz'"),
        ({"merges": ["a b"]}, r"merges\[0\].*has no 'ab'"),
        ({"tokens": [*byte_letters(), "a"], "token_type": None}, "'a' both at 97 and at 256"),
        ({"token_type": [1] * 255}, "token_type is an array of 255; expected an array of 256"),
        ({"eot_token_id": 256}, "eot_token_id is 256, but the vocabulary has 256 tokens"),
        ({"fim_pre_token_id": -1}, "fim_pre_token_id is -1"),
        ({"add_bos_token": "yes"}, "add_bos_token is 'yes'; expected true or false"),
    ],
)
def test_inconsistent_metadata_is_a_tokenizer_error(changes: dict[str, Any], message: str) -> None:
    metadata = byte_bpe()
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer({key: value for key, value in metadata.items() if value is not None})


def test_empty_tokens_get_a_name() -> None:
    tokenizer = load_tokenizer(byte_bpe(tokens=[*byte_letters(), "", ""], token_type=None))
    assert (tokenizer.token(256), tokenizer.token(257)) == ("[EMPTY_256]", "[EMPTY_257]")
    assert tokenizer.encode("ab") == [97, 98]
