r"""The pre-tokenizers (``tokenizer.ggml.pre``): how each splits a text into words, before BPE merges inside a word.

The names and settings are those of llama.cpp's ``src/llama-vocab.cpp``. In some cases, that file quotes the expression
of a model's ``tokenizer.json`` but uses another one, because its C++ library lacks a feature (``(?i:)``, ``\p{Lu}``,
possessive quantifiers). This table has the original expression: the model was trained with it, and the engine of the
``tokenizers`` package (Oniguruma) has those features.

``splits`` are applied in order, each inside the pieces that the one before left. Each match is a piece, and so is the
text between two matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]


class PreTokenizer(NamedTuple):
    """Regular expressions and settings of one ``tokenizer.ggml.pre``."""

    splits: tuple[str, ...]
    bytes: bool = True  # tokens are written in GPT-2's letters for bytes; otherwise in UTF-8, with bytes as <0xXX>
    ignore_merges: bool = False  # a word that is a token becomes that token, even if the merges lead elsewhere
    add_bos: bool = False  # the default, if the file has no tokenizer.ggml.add_bos_token
    always_bos: bool = False  # add bos even if the file says not to: published files of this kind are wrong
    escape_spaces: bool = False  # tokens have U+2581 for a space, as in SentencePiece
    newline_runs: bool = False  # a run of newlines that is a token becomes that token
    drop_spaces: bool = False  # white space separates words and is not encoded


def _splits(*splits: str) -> PreTokenizer:
    return PreTokenizer(splits)


# alternatives that occur in many expressions
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
)
_PATH_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2_SPLIT = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_DEEPSEEK3_SPLIT = rf"{_ASCII_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_GPT4O_SPLIT = rf"{_CASED}|\p{{N}}{{1,3}}|{_PATH_PUNCTUATION}|{_SPACES}"
_CHINESE_AND_KANA = "[一-龥぀-ゟ゠-ヿ]+"
_CHINESE_AND_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_SENTENCE_WORD = " ?[^(\\s|.,!?…。，、।۔،)]+"

# letters with a case, except mathematical ones
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
# alphabets that are written without spaces, and half-width katakana
_UNSPACED = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"

_GPT2 = _splits(_GPT2_SPLIT)
_DIGITS_GPT2 = _splits(r"\p{N}", _GPT2_SPLIT)
_LLAMA3_BARE = _splits(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}")
_LLAMA3 = _LLAMA3_BARE._replace(ignore_merges=True, add_bos=True)
_QWEN2 = _splits(_QWEN2_SPLIT)
_DEEPSEEK3 = _splits(r"\p{N}{1,3}", _CHINESE_AND_KANA, _DEEPSEEK3_SPLIT)
_GPT4O = _splits(_GPT4O_SPLIT)
_TINY_AYA = _splits(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O_SPLIT)
_SENTENCES = _splits(_SENTENCE_WORD)
_BAILING = _splits(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_GEMMA4 = PreTokenizer(
    (r"[^\n]+|[\n]+",), bytes=False, add_bos=True, always_bos=True, escape_spaces=True, newline_runs=True
)
# Chinese characters are separate from other letters; "&&" is the intersection of two classes
_NOT_HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_NOT_HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_SPLIT = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": _splits(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code"),
            *("roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4"),
            *("mpt", "olmo", "jais", "trillion", "granite-docling"),
        ),
        _GPT2,
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS_GPT2
    ),
    **dict.fromkeys(
        (
            *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"),
            *("midm-2.0", "lfm2", "jina-v5-nano"),
        ),
        _LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _LLAMA3_BARE),
    **dict.fromkeys(("glm4", "glm5"), _LLAMA3_BARE._replace(ignore_merges=True)),
    **dict.fromkeys(
        (
            *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
            *("stablelm2", "hunyuan", "solar-open", "grok-2"),
        ),
        _QWEN2,
    ),
    "qwen35": _splits(
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
    ),
    "ufakzeka": _splits(rf"{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"),
    "laguna": _splits(r"[^\n]+|[\n]+", _QWEN2_SPLIT),
    "seed-coder": _splits(rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_PUNCTUATION}|{_SPACES}"), ignore_merges=True
    ),
    "jais-2": _splits(
        rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|\s*[\r\n]+"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
        r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    ),
    "exaone-moe": _splits(
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "deepseek-llm": _splits(
        "[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CHINESE_AND_HANGUL, r"\p{N}+"
    ),
    "deepseek-coder": _splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE_AND_HANGUL, r"\p{N}"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": _splits(
        r"\p{N}{1,3}", _CHINESE_AND_KANA, rf"{_ASCII_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"
    ),
    # groups of three digits from the right
    "afmoe": _splits(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _UNSPACED, _DEEPSEEK3_SPLIT),
    "superbpe": _splits(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "youtu": PreTokenizer(
        (
            f"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|{_CHINESE_AND_KANA}",
            rf"{_CASED}|\p{{N}}|{_PATH_PUNCTUATION}|{_SPACES}",
        ),
        ignore_merges=True,
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "granite-embed-multi-97m": _GPT4O._replace(ignore_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _TINY_AYA),
    "tekken": PreTokenizer(
        (
            (
                rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
                rf"|\p{{N}}|{_PATH_PUNCTUATION}|{_SPACES}"
            ),
        ),
        ignore_merges=True,
        add_bos=True,
    ),
    "kimi-k2": _splits(_KIMI_SPLIT),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _SENTENCES),
    "viking": _splits(_SENTENCE_WORD, r"\p{N}"),
    "falcon": _splits(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_SPLIT, "[0-9][0-9][0-9]"),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2_SPLIT,
        ),
        add_bos=True,
    ),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4),
    "sarvam-moe": PreTokenizer((r"[^\n]+|[\n]+",), bytes=False, escape_spaces=True),
    "whitespace": PreTokenizer((r"\S+",), bytes=False, drop_spaces=True),
}
