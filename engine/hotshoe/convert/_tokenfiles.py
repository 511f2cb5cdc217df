"""Read the tokenizer files of a text model, with any kind of vocabulary, and check them."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe.convert._json import read_object
from hotshoe.tokenizers import TokenType
from hotshoe.tokenizers._charsmap import checked_charsmap
from hotshoe_core.errors import ModelFileError

if TYPE_CHECKING:
    import tokenizers

    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["SPACE", "Added", "TextTokenizer", "Vocab", "charsmap", "package_errors", "parts", "read_text_tokenizer"]

SPACE = "\u2581"  # SentencePiece's character for a space


class Added(NamedTuple):
    """A token that is added to the vocabulary: a special or user-defined token."""

    id: int
    content: str
    special: bool

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
    tokenizer, settings, extra = (
        read_object(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json")
    )
    if not tokenizer and not (folder / "tokenizer.model").is_file():
        raise ModelFileError(
            "has neither tokenizer.json nor tokenizer.model",
            path=folder,
            hint="copy the tokenizer files of the model into the folder",
        )
    # first, because the package checks the structure of tokenizer.json
    original = _original(tokenizer, folder / "tokenizer.json") if tokenizer else None
    decoder = settings.get("added_tokens_decoder") or {}
    stated = tokenizer.get("added_tokens") or []
    try:
        entries = [{"id": i, "content": token} for token, i in extra.items()]
        entries += [{**entry, "id": int(i)} for i, entry in decoder.items()] + list(stated)
        added = {e["id"]: Added(e["id"], e["content"], e.get("special") is True) for e in entries}
        fine = all(type(a.id) is int and a.id >= 0 and isinstance(a.content, str) and a.content for a in added.values())
    except (AttributeError, KeyError, TypeError, ValueError):
        fine = False
    if not fine:
        raise ModelFileError("expected objects with id and content", path=folder, field="added tokens")
    return TextTokenizer(folder, checkpoint.config, tokenizer, settings, tuple(sorted(added.values())), original)


def parts(part: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer, followed by the steps inside it if it is a Sequence."""
    if not isinstance(part, dict):
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    return [part, *(found for p in (inner if isinstance(inner, list) else []) for found in parts(p))]


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
