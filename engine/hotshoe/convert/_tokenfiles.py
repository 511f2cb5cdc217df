"""Read the tokenizer files of a text model, with any kind of vocabulary, and check them."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe.convert._json import read_object
from hotshoe.tokenizers import TokenType
from hotshoe.tokenizers._charsmap import checked_charsmap
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    import tokenizers

    from hotshoe.convert._checkpoint import Checkpoint

__all__ = [
    *(
        "RANKS",
        "SPACE",
        "TEKKEN",
        "Added",
        "TextTokenizer",
        "Vocab",
        "charsmap",
        "is_metaspace",
        "no_files",
        "older_added",
        "optional",
    ),
    *("package_errors", "padded", "parts", "puts_space_first", "read_added", "read_text_tokenizer", "require_same_ids"),
]

RANKS, TEKKEN = "tiktoken.model", "tekken.json"
SPACE = "\u2581"  # SentencePiece's character for a space


class Added(NamedTuple):
    """A token that is added to the vocabulary: a special or user-defined token."""

    id: int
    content: str
    special: bool
    normalized: bool = True
    """Whether it is searched for in the normalized text, and not in the original one."""

    @property
    def type(self) -> TokenType:
        """CONTROL if the token is special or looks special, otherwise USER_DEFINED.

        Some models do not mark their special tokens. The rules for them are those of llama.cpp's converter.
        """
        text = self.content
        looks_special = text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
            len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end)
            for start, end in (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
        )
        return TokenType.CONTROL if self.special or looks_special else TokenType.USER_DEFINED

    @property
    def stored(self) -> str:
        """The token in the file. Readers search for user-defined tokens in the original text, with its spaces."""
        return self.content.replace(SPACE, " ") if self.type == TokenType.USER_DEFINED else self.content


@dataclass(frozen=True)
class TextTokenizer:
    """The content of a folder's tokenizer files."""

    folder: Path
    config: dict[str, Any]
    """The content of config.json."""
    tokenizer: dict[str, Any]
    """The content of tokenizer.json; empty if the file is missing."""
    settings: dict[str, Any]
    """The content of tokenizer_config.json; empty if the file is missing."""
    added: tuple[Added, ...]
    original: tokenizers.Tokenizer | None = field(repr=False)
    """The tokenizer that tokenizer.json describes, to compare with; None if the file is missing."""

    @property
    def path(self) -> Path:
        """The path of tokenizer.json, for messages."""
        return self.folder / "tokenizer.json"

    @property
    def model(self) -> dict[str, Any]:
        """The object ``model`` of tokenizer.json, which contains the vocabulary."""
        model = self.tokenizer.get("model")
        return model if isinstance(model, dict) else {}

    def vocab(self) -> dict[str, int]:
        """The ids by token, without added tokens. Raises ModelFileError if the vocabulary is missing or invalid."""
        vocab = self.model.get("vocab")
        if not isinstance(vocab, dict) or not vocab or not all(type(i) is int and i >= 0 for i in vocab.values()):
            raise ModelFileError("expected an object of token ids", path=self.path, field="model.vocab")
        return vocab

    def merges(self) -> list[tuple[str, str]]:
        """The merges, best first. Raises ModelFileError if they are missing or invalid."""
        merges = self.model.get("merges")
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else m for m in merges] if isinstance(merges, list) else [0]
        if not all(
            isinstance(p, (list, tuple)) and len(p) == 2 and all(isinstance(part, str) and part for part in p)
            for p in pairs
        ):
            raise ModelFileError("expected an array of pairs of tokens", path=self.path, field="model.merges")
        return [(a, b) for a, b in pairs]  # type: ignore[misc]

    def original_ids(self, text: str, special: bool, pair: str | None = None) -> list[int]:
        """Encode one or two texts with the folder's tokenizer. Raises ModelFileError if the package cannot."""
        with package_errors(self.path):
            return [] if self.original is None else self.original.encode(text, pair, add_special_tokens=special).ids


class Vocab(NamedTuple):
    """A vocabulary, as the reader of one kind returns it."""

    tokens: dict[int, str]
    types: dict[int, TokenType]
    metadata: dict[str, Any]
    """Keys that only this kind has, without the prefix ``tokenizer.ggml.``."""
    scores: dict[int, float] | None = None
    exact: bool = True
    """True if the vocabulary was read from tokenizer.json, so that it must give the same ids."""


def read_text_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """Read the tokenizer files of a folder. Raises ModelFileError if they are missing or damaged."""
    folder = checkpoint.model
    tokenizer, settings = optional(folder / "tokenizer.json"), optional(folder / "tokenizer_config.json")
    if not tokenizer and not any((folder / name).is_file() for name in ("tokenizer.model", RANKS, TEKKEN)):
        raise no_files(folder, "tokenizer.model")
    # first, because the package checks the structure of tokenizer.json
    original = _original(tokenizer, folder / "tokenizer.json") if tokenizer else None
    added = read_added(folder, chain(older_added(folder, settings), tokenizer.get("added_tokens") or []))
    return TextTokenizer(folder, checkpoint.config, tokenizer, settings, added, original)


def older_added(folder: Path, settings: dict[str, Any]) -> Iterator[Any]:
    """The entries of added tokens in added_tokens.json and tokenizer_config.json, for ``read_added``."""
    for token, i in optional(folder / "added_tokens.json").items():
        yield {"id": i, "content": token}
    for i, entry in (settings.get("added_tokens_decoder") or {}).items():
        yield {**entry, "id": int(i)}


def read_added(folder: Path, entries: Iterable[Any]) -> tuple[Added, ...]:
    """The added tokens of a folder by id, from their entries as in tokenizer.json. Later ones win.

    Raises ModelFileError if an entry lacks an id or a content.
    """
    try:
        added = {
            e["id"]: Added(e["id"], e["content"], e.get("special") is True, e.get("normalized") is not False)
            for e in entries
        }
        fine = all(type(a.id) is int and a.id >= 0 and isinstance(a.content, str) and a.content for a in added.values())
    except (AttributeError, KeyError, TypeError, ValueError):
        fine = False
    if not fine:
        raise ModelFileError("expected objects with id and content", path=folder, field="added tokens")
    return tuple(sorted(added.values()))


def optional(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object; {} if the file is missing. Raises ModelFileError if it is damaged."""
    return read_object(path) if path.is_file() else {}


def no_files(folder: Path, other: str) -> ModelFileError:
    """An error about a folder that has neither tokenizer.json nor ``other``. The caller raises it."""
    return ModelFileError(
        f"has neither tokenizer.json nor {other}",
        path=folder,
        hint="copy the tokenizer files of the model into the folder",
    )


def padded(files: TextTokenizer, tokens: Mapping[int, str], n_tokens: int) -> list[str]:
    """The tokens by id. An id that has an embedding but no token gets a placeholder.

    Raises ConversionError if a token has a larger id than the embedding has rows.
    """
    last = max(tokens)
    if last >= n_tokens:
        raise ConversionError(
            f"{files.folder}: the tokenizer has a token {tokens[last]!r} with id {last}, "
            f"but config.json says vocab_size {n_tokens}",
            hint="use the tokenizer files that belong to these weights",
        )
    return [tokens.get(i) or f"[PAD{i}]" for i in range(n_tokens)]


def require_same_ids(files: TextTokenizer, text: str, ids: list[int], got: list[int]) -> None:
    """Raise ConversionError unless the tokenizer of the file gives the ids of the folder's."""
    if got != ids:
        raise ConversionError(
            f"{files.path}: the tokenizer does something that a GGUF file cannot express: {text!r} gives {ids}, "
            f"but the tokenizer of the file would give {got}"
        )


def parts(part: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer, followed by the steps inside it if it is a Sequence."""
    if not isinstance(part, dict):
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    return [part, *(found for p in (inner if isinstance(inner, list) else []) for found in parts(p))]


def is_metaspace(part: dict[str, Any]) -> bool:
    """True for the step that writes spaces as U+2581."""
    return part.get("type") == "Metaspace" and part.get("replacement", SPACE) == SPACE


def puts_space_first(part: dict[str, Any]) -> bool:
    """True if a Metaspace step puts a space before a text."""
    scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
    return scheme in ("always", "first")


def charsmap(part: dict[str, Any], path: Path) -> bytes:
    """The character map of a "Precompiled" normalizer. Raises ModelFileError if it is damaged."""
    try:
        return checked_charsmap(base64.b64decode(part.get("precompiled_charsmap", ""), validate=True))
    except (TypeError, ValueError) as error:
        raise ModelFileError(
            f"is not a character map of SentencePiece: {error}", path=path, field="precompiled_charsmap"
        ) from None


def _original(tokenizer: dict[str, Any], path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    for part in parts(tokenizer.get("normalizer")):
        if part.get("type") == "Precompiled":
            charsmap(part, path)
    with package_errors(path):
        return tokenizers.Tokenizer.from_str(json.dumps(tokenizer | {"truncation": None, "padding": None}))


@contextlib.contextmanager
def package_errors(path: Path) -> Iterator[None]:
    """Convert exceptions of the ``tokenizers`` package, including Rust panics, to ModelFileError."""
    try:
        yield
    except BaseException as error:
        # the package panics, for example, if a template names tokens that are not defined
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        raise ModelFileError(f"the tokenizers package cannot use it: {error}", path=path) from None
