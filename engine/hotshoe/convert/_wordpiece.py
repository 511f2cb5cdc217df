"""Convert the tokenizer files of a BERT folder to ``tokenizer.ggml.*`` metadata.

A setting is read from tokenizer_config.json, then from tokenizer.json, then from BERT's defaults: the first that has it
wins, as in transformers. At the end the tokenizer is rebuilt from the metadata and compared with the folder's
tokenizer. A difference is an error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.convert._json import read_object, regular
from hotshoe.convert._tokenfiles import package_errors
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


@dataclass(frozen=True)
class _Files:
    """The content of a folder's tokenizer files."""

    folder: Path
    tokenizer: dict[str, Any]  # tokenizer.json; empty if it is missing
    settings: dict[str, Any]  # tokenizer_config.json
    vocab: dict[str, int]
    added: list[dict[str, Any]] = field(default_factory=list)  # as in tokenizer.json: id, content, special, …

    @property
    def bert_class(self) -> bool:
        """True if transformers would build a BERT tokenizer, whatever else tokenizer.json contains."""
        return str(self.settings.get("tokenizer_class", "BertTokenizer")) in _BERT_CLASSES


def wordpiece_metadata(checkpoint: Checkpoint, n_tokens: int) -> dict[str, Any]:
    """Read the tokenizer files. Return the ``tokenizer.ggml.*`` metadata, with ``n_tokens`` tokens.

    Ids that have an embedding but no token get a placeholder, "[PAD…]".

    Raises ModelFileError if files are missing or damaged; ConversionError if GGUF cannot express the tokenizer.
    """
    files = _read(checkpoint.model)
    by_id = {i: token for token, i in files.vocab.items()}
    by_id.update({entry["id"]: entry["content"] for entry in files.added})
    if max(by_id) >= n_tokens:
        raise ConversionError(
            f"{files.folder}: the tokenizer has a token {by_id[max(by_id)]!r} with id {max(by_id)}, "
            f"but config.json says vocab_size {n_tokens}",
            hint="use the tokenizer files that belong to these weights",
        )
    ids = {token: i for i, token in by_id.items()}
    roles = _roles(files, ids)
    types = [TokenType.NORMAL if by_id.get(i) else TokenType.UNUSED for i in range(n_tokens)]
    for entry in files.added:
        types[entry["id"]] = TokenType.CONTROL if entry.get("special") else TokenType.USER_DEFINED
    for i in roles.values():
        types[i] = TokenType.CONTROL
    tokens = [by_id.get(i) or f"[PAD{i}]" for i in range(n_tokens)]
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
    verbatim = [e["id"] for e in files.added if not e.get("special") and e.get("normalized") is False]
    if verbatim:
        metadata[wordpiece.KEY_VERBATIM] = verbatim
    _compare(files, normalizer, metadata, checkpoint.sentence.lowercase, roles)
    return metadata


def _read(folder: Path) -> _Files:
    settings = _optional(folder / "tokenizer_config.json")
    if not (folder / "tokenizer.json").is_file():
        return _read_vocab_txt(folder, settings)
    path = folder / "tokenizer.json"
    tokenizer = read_object(path)
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens") or []
    if not isinstance(model, dict) or model.get("type", "WordPiece") != "WordPiece":
        kind = model.get("type") if isinstance(model, dict) else model
        raise ConversionError(f"{path}: the tokenizer is {kind!r}; expected WordPiece, which BERT models use")
    if (prefix := model.get("continuing_subword_prefix", "##")) != "##":
        raise ConversionError(f"{path}: continuing_subword_prefix is {prefix!r}; a GGUF file can only express '##'")
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab or not all(type(i) is int and i >= 0 for i in vocab.values()):
        raise ModelFileError("expected an object of token ids", path=path, field="model.vocab")
    if not isinstance(added, list) or not all(_is_added_token(e) for e in added):
        raise ModelFileError("expected objects with id and content", path=path, field="added_tokens")
    return _Files(folder, tokenizer, settings, vocab, added)


def _read_vocab_txt(folder: Path, settings: dict[str, Any]) -> _Files:
    path = folder / "vocab.txt"
    try:
        # not splitlines, which would split at other characters too
        lines = regular(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise ModelFileError(
            "has neither tokenizer.json nor vocab.txt",
            path=folder,
            hint="copy the tokenizer files of the model into the folder",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot be read as UTF-8 text: {error}", path=path) from None
    vocab = {line: i for i, line in enumerate(lines[:-1] if lines[-1] == "" else lines)}
    decoder = settings.get("added_tokens_decoder")
    added = [{**e, "id": int(i)} for i, e in decoder.items()] if isinstance(decoder, dict) else []
    added += [{"id": i, "content": token} for token, i in _optional(folder / "added_tokens.json").items()]
    if not vocab or not all(_is_added_token(e) for e in added):
        raise ModelFileError("is empty, or added tokens lack id or content", path=path)
    return _Files(folder, {}, settings, vocab, added)


def _is_added_token(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and type(entry.get("id")) is int
        and entry["id"] >= 0
        and isinstance(entry.get("content"), str)
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _roles(files: _Files, ids: dict[str, int]) -> dict[str, int]:
    special_map = _optional(files.folder / "special_tokens_map.json")
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


def _normalizer(files: _Files) -> dict[str, Any]:
    """The BertNormalizer that transformers would use. If strip_accents is None, it follows lowercase."""
    stated = files.tokenizer.get("normalizer") or {}
    split = files.tokenizer.get("pre_tokenizer") or {}
    path = files.folder / "tokenizer.json"
    for what, part, expected in (
        ("normalizer", stated, "BertNormalizer"),
        ("pre_tokenizer", split, "BertPreTokenizer"),
    ):
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in (None, expected) or (kind is None and files.tokenizer and not files.bert_class):
            raise ConversionError(f"{path}: the {what} is {kind!r}; a GGUF file can only express {expected}")
    normalizer = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True} | {
        key: value for key, value in stated.items() if key != "type"
    }
    if files.bert_class:
        for setting, key in (
            ("do_lower_case", "lowercase"),
            ("strip_accents", "strip_accents"),
            ("tokenize_chinese_chars", "handle_chinese_chars"),
        ):
            if setting in files.settings:
                normalizer[key] = files.settings[setting]
    return {"type": "BertNormalizer", **normalizer}


def _normalizer_metadata(files: _Files, normalizer: dict[str, Any], lowercase_first: bool) -> dict[str, Any]:
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
    longest = files.tokenizer.get("model", {}).get("max_input_chars_per_word", wordpiece.DEFAULT_WORD_LENGTH)
    if longest != wordpiece.DEFAULT_WORD_LENGTH:
        if type(longest) is not int or not 1 <= longest <= wordpiece.MAX_WORD_LENGTH:
            raise ConversionError(
                f"{files.folder / 'tokenizer.json'}: max_input_chars_per_word is {longest!r}; hotshoe splits words of "
                f"1 to {wordpiece.MAX_WORD_LENGTH} characters"
            )
        metadata[wordpiece.KEY_MAX_WORD] = longest
    return metadata


def _compare(
    files: _Files, normalizer: dict[str, Any], metadata: dict[str, Any], lowercase_first: bool, roles: dict[str, int]
) -> None:
    if not files.tokenizer:
        return
    path = files.folder / "tokenizer.json"
    if lowercase_first:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, normalizer]}
    with package_errors(path):
        expected = _original_ids(files, normalizer, roles)
    rebuilt = load_tokenizer(metadata)
    for probe, ids in zip(_PROBES, expected, strict=True):
        got = rebuilt.encode(probe)
        if got != ids:
            raise ConversionError(
                f"{path}: the tokenizer does something that a GGUF file cannot express: {probe!r} gives {ids}, "
                f"but the tokenizer of the file would give {got}"
            )


def _original_ids(files: _Files, normalizer: dict[str, Any], roles: dict[str, int]) -> list[list[int]]:
    """The ids of the probes, from the folder's tokenizer as transformers would build it."""
    import tokenizers
    from tokenizers import processors

    text = json.dumps(files.tokenizer | {"normalizer": normalizer, "truncation": None, "padding": None})
    original = tokenizers.Tokenizer.from_str(text)
    if files.bert_class:
        cls, sep = ((original.id_to_token(roles[role]), roles[role]) for role in ("cls", "sep"))
        original.post_processor = processors.TemplateProcessing(
            single=[cls[0], "$A", sep[0]], pair=[cls[0], "$A", sep[0], "$B:1", sep[0]], special_tokens=[cls, sep]
        )
    return [original.encode(probe).ids for probe in _PROBES]
