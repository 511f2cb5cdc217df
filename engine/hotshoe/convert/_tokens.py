"""Convert the tokenizer files of a text model to ``tokenizer.*`` metadata.

``_bytebpe``, ``_spm``, ``_unigram``, ``_tiktoken`` and ``_tekken`` read the vocabulary, depending on its kind. This
module adds the parts that all kinds share: token roles, special tokens around a text, and chat templates. At the end it
rebuilds the tokenizer from the metadata and compares it with the folder's tokenizer. A difference is an error.
"""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

from hotshoe.convert._bytebpe import is_byte_level, read_bytes
from hotshoe.convert._json import regular
from hotshoe.convert._spm import read_spaces
from hotshoe.convert._tekken import is_tekken, read_tekken
from hotshoe.convert._tiktoken import is_tiktoken, read_ranks
from hotshoe.convert._tokenfiles import TextTokenizer, Vocab, optional, padded, read_text_tokenizer, require_same_ids
from hotshoe.convert._unigram import is_unigram, read_unigram
from hotshoe.tokenizers import load_tokenizer
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType
from hotshoe_core.errors import ConversionError, ModelFileError, TokenizerError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["tokenizer_metadata"]

# role in transformers: role in the name of the GGUF key ("seperator" is GGUF's spelling)
_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
_PROBES = (
    "Hello, World! It's 4 ½ o'clock. We'Ve a'lL  I'M",
    " leading, double  and   triple spaces, trailing ",
    "naïve Ünïcode Äpfel İstanbul ﬁ",
    "我想在apple工作1314151天～ ひらがな 한국어 สวัสดี مرحبا",
    "tabs\tand \t\n\n lines\r\n\r\n\n  \n\u00a0\u2003 end\n",
    "🚀 (normal) 😶\u200d🌫️ ✅ 1 12 123 1234 12345 3.14 1,000,000",
    "def f(x):\n    return x**2  # https://example.org/?q=1&r=_2",
    "HTTPServer camelCase snake_case ''''''```````\"\"\"\"......!!!!!!?????? --==",
)


def tokenizer_metadata(checkpoint: Checkpoint, n_tokens: int) -> dict[str, Any]:
    """Read the tokenizer files. Return the ``tokenizer.*`` metadata, with ``n_tokens`` tokens.

    Ids that have an embedding but no token get a placeholder, "[PAD…]".

    Raises ModelFileError if files are missing or damaged; ConversionError if GGUF cannot express the tokenizer.
    """
    if checkpoint.sentence.lowercase:
        raise ConversionError(
            f"{checkpoint.model / 'sentence_bert_config.json'}: do_lower_case is true; for this kind of vocabulary, a "
            "GGUF file cannot say that texts are lowercased",
            hint="set it to false, and pass texts in lower case to the model",
        )
    files = read_text_tokenizer(checkpoint)
    kinds = (
        *((is_tiktoken, read_ranks), (is_tekken, read_tekken)),
        *((is_unigram, read_unigram), (is_byte_level, read_bytes)),
    )
    vocab = next((read for applies, read in kinds if applies(files)), read_spaces)(files)
    metadata = {f"{PREFIX}{key}": value for key, value in vocab.metadata.items()}
    metadata[f"{PREFIX}tokens"] = padded(files, vocab.tokens, n_tokens)
    metadata[f"{PREFIX}token_type"] = [int(vocab.types.get(i, TokenType.UNUSED)) for i in range(n_tokens)]
    if vocab.scores is not None:
        # the score of placeholders is the one that llama.cpp's converter writes
        metadata[f"{PREFIX}scores"] = [vocab.scores.get(i, -10000.0) for i in range(n_tokens)]
    metadata |= _roles(files, vocab, n_tokens) | _chat_templates(files)
    if files.original is not None and vocab.exact:
        _compare(files, metadata)
    return metadata


def _roles(files: TextTokenizer, vocab: Vocab, n_tokens: int) -> dict[str, Any]:
    ids = {token: i for i, token in vocab.tokens.items()} | {a.content: a.id for a in files.added}
    roles: dict[str, int] = {}
    for role in _ROLES:
        entry = files.settings.get(f"{role}_token")
        entry = entry.get("content") if isinstance(entry, dict) else entry
        found = ids.get(entry) if isinstance(entry, str) else None
        if found is None:
            found = files.config.get(f"{role}_token_id")
            # if there are several, the first one ended the training texts
            found = found[0] if isinstance(found, list) and found else found
        if type(found) is int and 0 <= found < n_tokens:
            roles[role] = found
    add = _added_tokens(files, roles)
    return {
        **{f"{PREFIX}{_ROLES.get(role, role)}_token_id": i for role, i in roles.items()},
        **{f"{PREFIX}add_{role}_token": flag for role, flag in add.items()},
    }


def _added_tokens(files: TextTokenizer, roles: dict[str, int]) -> dict[str, bool]:
    """Whether each of bos, eos and sep is added to a text. Adds roles that config.json does not name to ``roles``."""
    stated = {
        role: flag for role in ("bos", "eos") if isinstance(flag := files.settings.get(f"add_{role}_token"), bool)
    }
    if files.original is None:
        return stated
    middle, whole = (files.original_ids("a", special) for special in (False, True))
    if not middle or middle == whole:
        # a template that adds nothing is explicit; without a template, the settings decide
        has_template = "TemplateProcessing" in json.dumps(files.tokenizer.get("post_processor"))
        add = {"bos": False, "eos": False} | ({} if has_template else stated)
        return {role: flag and role in roles for role, flag in add.items()}
    start = next((i for i in range(len(whole)) if whole[i : i + len(middle)] == middle), 0)
    added = {"bos": whole[:start], "eos": whole[start + len(middle) :]}
    for role, tokens in added.items():
        if len(tokens) > 1 or (role == "bos" and tokens and roles.get("bos", tokens[0]) != tokens[0]):
            raise ConversionError(
                f"{files.path}: the tokenizer puts the tokens {tokens} {'before' if role == 'bos' else 'after'} a "
                f"text; a GGUF file can only express one, the {role} token ({roles.get(role)})"
            )
        if tokens and roles.setdefault(role, tokens[0]) != tokens[0]:
            # in embedding models made from chat models, one token ends a text and another ends a turn
            roles["eot"], roles["eos"] = roles["eos"], tokens[0]
    add = {role: bool(tokens) for role, tokens in added.items()}
    between = _between(files, middle, added["bos"], added["eos"])
    if between:
        # a separator is what follows the end of the first text
        add["sep"] = between != added["eos"]
        if add["sep"]:
            roles.setdefault("sep", between[-1])
    return add


def _between(files: TextTokenizer, middle: list[int], before: list[int], after: list[int]) -> list[int]:
    """The ids that the tokenizer puts between two texts, or [] if a GGUF file cannot express them."""
    pair = files.original_ids("a", True, "a")
    start, stop = len(before) + len(middle), len(pair) - len(after) - len(middle)
    between = pair[start:stop]
    if pair != [*before, *middle, *between, *middle, *after] or len(between) > len(after) + 1:
        return []
    return between if between[: len(after)] == after else []


def _chat_templates(files: TextTokenizer) -> dict[str, Any]:
    template = files.settings.get("chat_template")
    path = files.folder / "chat_template.jinja"
    if template is None and path.is_file():
        try:
            template = path.read_text(encoding="utf-8")
            others = sorted((files.folder / "additional_chat_templates").glob("*.jinja"))
            if others:
                template = [{"name": "default", "template": template}]
                template += [{"name": p.stem, "template": regular(p).read_text(encoding="utf-8")} for p in others]
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"cannot be read as UTF-8 text: {error}", path=path) from None
    elif template is None:
        template = optional(files.folder / "chat_template.json").get("chat_template")
    if template is None:
        return {}
    named = [{"name": "default", "template": template}] if isinstance(template, str) else template
    if not isinstance(named, list) or not all(
        isinstance(t, dict) and isinstance(t.get("name"), str) and isinstance(t.get("template"), str) for t in named
    ):
        raise ModelFileError(
            "expected a text, or a list of objects with name and template", path=files.folder, field="chat_template"
        )
    templates = {"".join(c if c.isascii() and c.isalnum() else "_" for c in t["name"]): t["template"] for t in named}
    keys: dict[str, Any] = {f"tokenizer.chat_template.{n}": t for n, t in templates.items() if n not in ("", "default")}
    if keys:
        keys["tokenizer.chat_templates"] = [name.rpartition(".")[2] for name in keys]
    return keys | ({"tokenizer.chat_template": templates["default"]} if "default" in templates else {})


def _compare(files: TextTokenizer, metadata: dict[str, Any]) -> None:
    try:
        rebuilt = load_tokenizer(metadata)
    except TokenizerError as error:
        raise ConversionError(f"{files.folder}: the vocabulary is not consistent: {error}") from error
    # Qwen composes accents first (NFC). GGUF cannot express this and no engine does it, so the probes are composed.
    for probe in (unicodedata.normalize("NFC", text) for text in _PROBES):
        for special in (False, True):
            require_same_ids(files, probe, files.original_ids(probe, special), rebuilt.encode(probe, special))
