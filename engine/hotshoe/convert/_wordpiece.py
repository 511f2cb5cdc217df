"""Convert the tokenizer files of a BERT folder to ``tokenizer.ggml.*`` metadata.

A setting is read from tokenizer_config.json, then from tokenizer.json, then from BERT's defaults: the first that has it
wins, as in transformers. At the end the tokenizer is rebuilt from the metadata and compared with the folder's
tokenizer. A difference is an error.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.convert._json import regular
from hotshoe.convert._tokenfiles import (
    TextTokenizer,
    no_files,
    older_added,
    optional,
    package_errors,
    padded,
    read_added,
    require_same_ids,
)
from hotshoe.tokenizers import _wordpiece as wordpiece
from hotshoe.tokenizers import load_tokenizer
from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["wordpiece_metadata"]

_ROLES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_BERT_CLASSES = frozenset({"BertTokenizer", "BertTokenizerFast"})

_PROBES = (
    "",
    "Hello, World! It's 4 ½ o'clock.",
    "naïve Ünïcode Äpfel İstanbul e\u0301 ﬁ",
    "我想在apple工作 ひらがな 한국어 สวัสดี مرحبا",
    "tabs\tand\nlines\r\n\u00a0\u2003 \u200b\ufeff\x00\x07\ufffd",
    "🚀 (normal) 😶\u200d🌫️ ✅",
    "[CLS] a [MASK] b [SEP] [UNK] [PAD] [unused1] ##x",
    "def f(x): return x**2  # https://example.org/?q=1&r=_2",
    "w" * 99 + " " + "x" * 101 + " " + "ab" * 60,
    "▁a b▁c antidisestablishmentarianism",
)


def wordpiece_metadata(checkpoint: Checkpoint, n_tokens: int) -> dict[str, Any]:
    """Read the tokenizer files. Return the ``tokenizer.ggml.*`` metadata, with ``n_tokens`` tokens.

    Ids that have an embedding but no token get a placeholder, "[PAD…]".

    Raises ModelFileError if files are missing or damaged; ConversionError if GGUF cannot express the tokenizer.
    """
    files = _read(checkpoint)
    by_id = {i: token for token, i in files.vocab().items()} | {a.id: a.content for a in files.added}
    tokens = padded(files, by_id, n_tokens)
    roles = _roles(files, {token: i for i, token in by_id.items()})
    types = [TokenType.NORMAL if by_id.get(i) else TokenType.UNUSED for i in range(n_tokens)]
    for added in files.added:
        types[added.id] = TokenType.CONTROL if added.special else TokenType.USER_DEFINED
    for i in roles.values():
        types[i] = TokenType.CONTROL
    stored = list(map(wordpiece.phantom, tokens, types))
    for i, restored in enumerate(wordpiece.restore(stored, types)):
        if restored != tokens[i]:
            raise ConversionError(
                f"{files.folder}: token {i}, {tokens[i]!r}, would be equal to another token in a GGUF file"
            )
    metadata = {
        "tokenizer.ggml.model": "bert",
        # WordPiece has only one way to split a text, and no reader reads it from here
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": stored,
        "tokenizer.ggml.token_type": [int(t) for t in types],
        "tokenizer.ggml.bos_token_id": roles["cls"],
        "tokenizer.ggml.eos_token_id": roles["sep"],
        "tokenizer.ggml.unknown_token_id": roles["unk"],
        "tokenizer.ggml.seperator_token_id": roles["sep"],
        **({"tokenizer.ggml.padding_token_id": roles["pad"]} if "pad" in roles else {}),
        "tokenizer.ggml.cls_token_id": roles["cls"],
        **({"tokenizer.ggml.mask_token_id": roles["mask"]} if "mask" in roles else {}),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.add_sep_token": False,
    }
    normalizer = _normalizer(files)
    metadata |= _normalizer_metadata(files, normalizer, checkpoint.sentence.lowercase)
    verbatim = [added.id for added in files.added if not added.special and not added.normalized]
    if verbatim:
        metadata[wordpiece.KEY_VERBATIM] = verbatim
    if files.path.is_file():
        rebuilt = load_tokenizer(metadata)
        expected = _original_ids(files, normalizer, checkpoint.sentence.lowercase, roles)
        for probe, ids in zip(_PROBES, expected, strict=True):
            require_same_ids(files, probe, ids, rebuilt.encode(probe))
    return metadata


def _read(checkpoint: Checkpoint) -> TextTokenizer:
    folder, config = checkpoint.model, checkpoint.config
    tokenizer, settings = optional(folder / "tokenizer.json"), optional(folder / "tokenizer_config.json")
    if not (folder / "tokenizer.json").is_file():
        tokenizer = {"model": {"vocab": _vocab_txt(folder)}}
        return TextTokenizer(
            folder, config, tokenizer, settings, read_added(folder, older_added(folder, settings)), None
        )
    files = TextTokenizer(folder, config, tokenizer, settings, (), None)
    kind = files.model.get("type", "WordPiece") if files.model else None
    if kind != "WordPiece":
        raise ConversionError(f"{files.path}: the tokenizer is {kind!r}; expected WordPiece, which BERT models use")
    if (prefix := files.model.get("continuing_subword_prefix", "##")) != "##":
        raise ConversionError(
            f"{files.path}: continuing_subword_prefix is {prefix!r}; a GGUF file can only express '##'"
        )
    files.vocab()
    return replace(files, added=read_added(folder, tokenizer.get("added_tokens") or []))


def _vocab_txt(folder: Path) -> dict[str, int]:
    path = folder / "vocab.txt"
    try:
        # not splitlines, which would split at other characters too
        lines = regular(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise no_files(folder, "vocab.txt") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot be read as UTF-8 text: {error}", path=path) from None
    return {line: i for i, line in enumerate(lines)}


def _bert_class(files: TextTokenizer) -> bool:
    """True if transformers would build a BERT tokenizer, whatever else tokenizer.json contains."""
    return str(files.settings.get("tokenizer_class", "BertTokenizer")) in _BERT_CLASSES


def _roles(files: TextTokenizer, ids: dict[str, int]) -> dict[str, int]:
    special_map = optional(files.folder / "special_tokens_map.json")
    roles = {}
    for role, usual in _ROLES.items():
        token = files.settings.get(f"{role}_token") or special_map.get(f"{role}_token") or usual
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in ids:
            roles[role] = ids[text]
        elif role in ("cls", "sep", "unk"):
            raise ConversionError(
                f"{files.folder}: the vocabulary has no {text!r}, the token for {role!r}; a BERT model needs one",
                hint="check that the tokenizer files belong to this model",
            )
    return roles


def _normalizer(files: TextTokenizer) -> dict[str, Any]:
    """The BertNormalizer that transformers would use. If strip_accents is None, it follows lowercase."""
    stated = files.tokenizer.get("normalizer") or {}
    split = files.tokenizer.get("pre_tokenizer") or {}
    for what, part, expected in (
        ("normalizer", stated, "BertNormalizer"),
        ("pre_tokenizer", split, "BertPreTokenizer"),
    ):
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in (None, expected) or (kind is None and files.path.is_file() and not _bert_class(files)):
            raise ConversionError(f"{files.path}: the {what} is {kind!r}; a GGUF file can only express {expected}")
    normalizer = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True} | {
        key: value for key, value in stated.items() if key != "type"
    }
    if _bert_class(files):
        for setting, key in (
            ("do_lower_case", "lowercase"),
            ("strip_accents", "strip_accents"),
            ("tokenize_chinese_chars", "handle_chinese_chars"),
        ):
            if setting in files.settings:
                normalizer[key] = files.settings[setting]
    return {"type": "BertNormalizer", **normalizer}


def _normalizer_metadata(files: TextTokenizer, normalizer: dict[str, Any], lowercase_first: bool) -> dict[str, Any]:
    lowercase, strip = bool(normalizer["lowercase"]), normalizer["strip_accents"]
    if lowercase_first and not lowercase:
        # lowercasing before the tokenizer does not strip accents, so the default of strip_accents becomes false
        lowercase, strip = True, bool(strip)
    metadata: dict[str, Any] = {wordpiece.KEY_LOWERCASE: lowercase}
    if strip is not None:
        metadata[wordpiece.KEY_STRIP_ACCENTS] = bool(strip)
    if not normalizer["clean_text"]:
        metadata[wordpiece.KEY_CLEAN_TEXT] = False
    if not normalizer["handle_chinese_chars"]:
        metadata[wordpiece.KEY_SPLIT_CHINESE] = False
    longest = files.model.get("max_input_chars_per_word", wordpiece.DEFAULT_WORD_LENGTH)
    if longest != wordpiece.DEFAULT_WORD_LENGTH:
        if type(longest) is not int or not 1 <= longest <= wordpiece.MAX_WORD_LENGTH:
            raise ConversionError(
                f"{files.path}: max_input_chars_per_word is {longest!r}; hotshoe splits words of "
                f"1 to {wordpiece.MAX_WORD_LENGTH} characters"
            )
        metadata[wordpiece.KEY_MAX_WORD] = longest
    return metadata


def _original_ids(
    files: TextTokenizer, normalizer: dict[str, Any], lowercase_first: bool, roles: dict[str, int]
) -> list[list[int]]:
    """The ids of the probes, from the folder's tokenizer as transformers would build it."""
    import tokenizers
    from tokenizers import processors

    if lowercase_first:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, normalizer]}
    with package_errors(files.path):
        text = json.dumps(files.tokenizer | {"normalizer": normalizer, "truncation": None, "padding": None})
        original = tokenizers.Tokenizer.from_str(text)
        if _bert_class(files):
            cls, sep = ((original.id_to_token(roles[role]), roles[role]) for role in ("cls", "sep"))
            original.post_processor = processors.TemplateProcessing(
                single=[cls[0], "$A", sep[0]], pair=[cls[0], "$A", sep[0], "$B:1", sep[0]], special_tokens=[cls, sep]
            )
        return [original.encode(probe).ids for probe in _PROBES]
