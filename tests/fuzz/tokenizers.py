"""Tokenizers: vocabularies with something changed, and random texts there and back through sound ones.

A changed vocabulary is refused in words, or encodes and decodes. Of a sound one is asked what its kind promises:
byte-level BPE gives back every text, SentencePiece's every text except its own sign for a space, WordPiece and unigram,
which normalize, what they gave before; and of all, that a text alone and one in a batch have the same ids.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe.tokenizers import Tokenizer, load_tokenizer
from hotshoe_core.errors import TokenizerError
from hotshoe_core.gguf import GGUFFile
from tests.fuzz.fault import Fault
from tests.support.vocabularies import byte_bpe, charsmap, spaced_bpe

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS: tuple[int, ...] = ()
SHARE = 150
SECONDS = 5.0  # of one case, in which at most 30,000 characters are encoded; a sound one takes 0.1 for them
DATA = Path(__file__).parents[1] / "data"
PREFIX = "tokenizer.ggml."

Metadata = dict[str, Any]


class Base(NamedTuple):
    """``promise``: what decoding gives of a text without special tokens; None: what it gave before."""

    metadata: Metadata
    promise: Callable[[str], str] | None


_bases: dict[str, Base] = {}
_MERGES = ("t h", "th e", "Ġ the", "Ġ t", "e r", "Ġ Ġ", "a a", "aa a", "Ã ¤", "ä ¸")
_WORDS = {"▁": -2.0, "▁the": -1.0, "th": -3.0, "e": -4.0, "t": -5.0, "h": -6.0, "a": -7.0, "aa": -6.5, "漢": -8.0}
_VALUES = (
    *(None, 0, 1, -1, 2**31, 2**63, 10**30, True, False, 1.5, float("nan"), float("inf"), "", "x", "gpt2", "bert"),
    *("a" * 10**6, b"\xff", [], [0], ["a"], [None], [[]], [1.5], ["a", 1], [2**63], {}, {"a": 1}, "\x1b[1m"),
)
_KEYS = (
    *("model", "pre", "tokens", "token_type", "scores", "merges", "add_space_prefix", "precompiled_charsmap"),
    *("bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id", "padding_token_id", "mask_token_id"),
    *("add_bos_token", "add_eos_token", "add_sep_token", "remove_extra_whitespaces", "token_type_count"),
    *("normalizer.lowercase", "normalizer.strip_accents", "seperator_token_id", "fim_pad_token_id"),
)
_ODD = (
    *("", " ", "▁", "▁▁", "a b", "\n", "\0", "\x1b[2J", "\u202e", "a" * 10**6, "漢" * 3000, "<0x41>", "<0xZZ>"),
    *("<|im_end|>", "</s>", "[UNK]", "[CLS]", "##a", "Ġ", "\U0010ffff", "<s>", "<unk>", "e\u0301"),
)  # no lone surrogates: the reader of files refuses them


def setup() -> None:
    files = {
        "bpe": "llamacpp/Qwen2ForCausalLM",
        "wordpiece": "bert-tiny-llamacpp",
        "unigram": "llamacpp/XLMRobertaForSequenceClassification",
    }
    for name, path in files.items():
        with GGUFFile(DATA / f"{path}.gguf") as file:
            metadata = {k: _plain(file.metadata[k]) for k in file.metadata if k.startswith("tokenizer.ggml.")}
        _bases[name] = Base(metadata, str if name == "bpe" else None)
    for pre in ("gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-v3", "gpt-4o", "starcoder", "default"):
        made = byte_bpe(merges=_MERGES, special=["<|end|>", "<s>"], user=["<tool>", "    "], pre=pre)
        _bases[pre] = Base(made, str)
    table = list(charsmap({"ﬁ": "fi", "A": "a", "\u00a0": " "}))
    for prefix in (False, True):
        # with a prefix, what follows a user-defined token gets a space as well, as in llama.cpp
        user = [] if prefix else ["<tool>"]
        made = spaced_bpe(_WORDS, special=["<end>"], user=user, add_space_prefix=prefix, add_bos_token=False)
        _bases[f"spaces, {prefix}"] = Base(made, _without_space_sign)
    own = {PREFIX + "model": "t5", PREFIX + "precompiled_charsmap": table}
    _bases["unigram by bytes"] = Base(spaced_bpe(_WORDS) | own, None)


def _plain(value: Any) -> Any:
    return list(value) if hasattr(value, "numpy") else value


def _without_space_sign(text: str) -> str:
    """The sign stands for a space, so one in a text comes back as that."""
    return text.replace("▁", " ")


def run(seed: int) -> str:
    rng = random.Random(seed)
    name = rng.choice(sorted(_bases))
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a vocabulary without "pre" says so
        try:
            outcome = _changed(rng, _bases[name].metadata) if rng.random() < 0.6 else _sound(rng, name)
        except TokenizerError as error:
            odd = next((c for c in str(error) if not c.isprintable() and c != "\n"), None)
            if odd is not None or len(str(error)) > 5000:
                raise Fault("escape", f"{odd!r}, {len(str(error))} characters: {str(error)[:200]!r}") from error
            outcome = "refused"
    if (seconds := time.process_time() - begun) > SECONDS:
        raise Fault("slow", f"{name}: {seconds:.1f} s until {outcome}")
    return outcome


# Changed vocabularies


def _changed(rng: random.Random, base: Metadata) -> str:
    metadata = dict(base)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change(metadata, rng)
    tokenizer = load_tokenizer(metadata)
    for text in (_text(rng), _text(rng), "the fox <tool> </s>"):
        ids = tokenizer.encode(text)
        outside = [i for i in ids if not 0 <= i < tokenizer.vocab_size]
        if outside:
            raise Fault("different", f"ids {outside[:3]} outside the vocabulary of {tokenizer.vocab_size}")
        tokenizer.decode(ids, skip_special=rng.random() < 0.5)
        tokenizer.encode_pair(text, "b")
    tokenizer.decode(rng.randrange(tokenizer.vocab_size) for _ in range(20))
    return "answered"


def _change(metadata: Metadata, rng: random.Random) -> None:
    kind = rng.randrange(6)
    arrays = [k for k, v in metadata.items() if isinstance(v, list) and v]
    if kind == 0:
        metadata[PREFIX + rng.choice(_KEYS)] = rng.choice(_VALUES)
    elif kind == 1:
        del metadata[rng.choice(sorted(metadata))]
    elif kind == 2:
        n = len(metadata[PREFIX + "tokens"]) if isinstance(metadata.get(PREFIX + "tokens"), list) else 1
        metadata[PREFIX + rng.choice([k for k in _KEYS if k.endswith("_id")])] = rng.choice((0, n - 1, n, -1, n // 2))
    elif arrays:
        key = rng.choice(arrays)
        items = metadata[key] = list(metadata[key])
        at = rng.randrange(len(items))
        if kind == 3:
            items[at] = _item(items[at], rng)
        elif kind == 4:
            items[at:] = items[at + 1 :] if rng.random() < 0.5 else [items[at], *items[at:]]
        else:
            for _ in range(rng.choice((2, 20))):
                items[rng.randrange(len(items))] = rng.choice((_item(items[at], rng), rng.choice(items)))


def _item(old: Any, rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice(_VALUES)
    if isinstance(old, str):
        return rng.choice((*_ODD, old + old, old[::-1], old[:-1]))
    if isinstance(old, float):
        return rng.choice((0.0, -1e30, 1e30, float("nan"), float("-inf"), float("inf"), old + 1))
    return rng.choice((0, 1, 2, 3, 4, 5, 6, 7, -1, 127, 255, 256, 2**31))


# Sound vocabularies


def _sound(rng: random.Random, name: str) -> str:
    metadata, promise = _bases[name]
    tokenizer = load_tokenizer(metadata)
    texts = [_text(rng) for _ in range(3)]
    if rng.random() < 0.05:
        texts.append(_long(rng))
    together = load_tokenizer(metadata).encode_batch(texts, add_special=False, parse_special=False)
    for text, expected in zip(texts, together, strict=True):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        if ids != expected:
            raise Fault("different", f"{name}: {text[:80]!r} is {ids[:20]} alone and {expected[:20]} in a batch")
        decoded = tokenizer.decode(ids, skip_special=False)
        stream = tokenizer.stream(skip_special=False)
        if "".join([*map(stream.add, ids), stream.flush()]) != decoded:
            raise Fault("different", f"{name}: a stream of {ids[:20]} is not what decode gives")
        if promise is not None:
            if decoded != promise(_mended(text)):
                raise Fault("different", f"{name}: {text[:80]!r} comes back as {decoded[:80]!r}")
        else:
            _check_settled(tokenizer, name, tokenizer.decode(ids))  # without the tokens of what is unknown
    return "same"


def _check_settled(tokenizer: Tokenizer, name: str, decoded: str) -> None:
    """What was normalized once stays as it is from the second time on."""
    again = tokenizer.decode(tokenizer.encode(decoded, add_special=False, parse_special=False))
    last = tokenizer.decode(tokenizer.encode(again, add_special=False, parse_special=False))
    if last != again:
        raise Fault("different", f"{name}: {again[:80]!r} comes back as {last[:80]!r}")


def _mended(text: str) -> str:
    """As a tokenizer reads it: pairs of surrogates are a character, lone ones U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_ALPHABETS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: rng.choice("the quick brown fox aaa '"),
    lambda rng: rng.choice("\n\r\t \u00a0\u2003\u200b  "),
    lambda rng: chr(rng.randrange(0x80)),
    lambda rng: chr(rng.randrange(0x3000)),
    lambda rng: chr(rng.randrange(sys.maxunicode + 1)),
    lambda rng: chr(rng.randrange(0xD800, 0xE000)),
    lambda rng: rng.choice(("漢字", "가", "e\u0301", "\u0301", "👩\u200d👩\u200d👧", "🇩🇪", "ﬁ", "Ǆ", "İ", "ẞ")),
    lambda rng: rng.choice(("<tool>", "<|end|>", "</s>", "[SEP]", "<0x0A>", "▁", "##", "<s>", "Ġ", "123", "1")),
)


def _text(rng: random.Random) -> str:
    some = rng.sample(_ALPHABETS, rng.randint(1, 3))
    return "".join(rng.choice(some)(rng) for _ in range(rng.choice((0, 1, 3, 10, 80, 400))))


def _long(rng: random.Random) -> str:
    """One that could take the square of its length: one word, one run of spaces, or of what nearly matches."""
    piece = rng.choice(
        ("a", " ", "\n", " \n", "\t ", "漢", "'", "1", "\u0301", "▁", "a ", "<", "e\u0301", _text(rng) or "b")
    )
    return (piece * (30_000 // len(piece) + 1))[:30_000]
