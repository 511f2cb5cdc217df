"""The tokenizer files of a text model, checked as they are read, whatever kind of vocabulary they hold."""

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

SPACE = "\u2581"  # what SentencePiece writes for a space


class Added(NamedTuple):
    """A token beside the vocabulary proper."""

    id: int
    content: str
    special: bool

    @property
    def type(self) -> TokenType:
        """CONTROL, also for tokens that their maker forgot to call special, else USER_DEFINED."""
        text = self.content
        looks = text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
            len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end)
            for start, end in (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
        )
        return TokenType.CONTROL if self.special or looks else TokenType.USER_DEFINED


@dataclass(frozen=True)
class TextTokenizer:
    """What the folder says. ``tokenizer`` is tokenizer.json and ``settings`` tokenizer_config.json, or empty.

    ``own`` is the tokenizer that tokenizer.json describes, None where there is none.
    """

    folder: Path
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    settings: dict[str, Any]
    added: tuple[Added, ...]
    own: tokenizers.Tokenizer | None = field(repr=False)

    @property
    def path(self) -> Path:
        """tokenizer.json, for messages."""
        return self.folder / "tokenizer.json"

    @property
    def model(self) -> dict[str, Any]:
        """The part of tokenizer.json with the vocabulary."""
        model = self.tokenizer.get("model")
        return model if isinstance(model, dict) else {}

    def vocab(self) -> dict[str, int]:
        """Ids by token, without added ones. Raises ModelFileError if it is not that."""
        vocab = self.model.get("vocab")
        if not isinstance(vocab, dict) or not vocab or not all(type(i) is int and i >= 0 for i in vocab.values()):
            raise ModelFileError("expected an object of token ids", path=self.path, field="model.vocab")
        return vocab

    def merges(self) -> list[tuple[str, str]]:
        """The merges, best first. Raises ModelFileError if they are missing or something else."""
        merges = self.model.get("merges")
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else m for m in merges] if isinstance(merges, list) else [0]
        if not all(
            isinstance(p, (list, tuple)) and len(p) == 2 and all(isinstance(part, str) and part for part in p)
            for p in pairs
        ):
            raise ModelFileError("expected an array of pairs of tokens", path=self.path, field="model.merges")
        return [(a, b) for a, b in pairs]  # type: ignore[misc]

    def own_ids(self, text: str, special: bool, pair: str | None = None) -> list[int]:
        """What the folder's own tokenizer makes of a text or of two. Raises ModelFileError where the package cannot."""
        with package_errors(self.path):
            return [] if self.own is None else self.own.encode(text, pair, add_special_tokens=special).ids


class Vocab(NamedTuple):
    """What a kind of vocabulary finds: tokens by id, their types, and the keys that only this kind has."""

    tokens: dict[int, str]
    types: dict[int, TokenType]
    metadata: dict[str, Any]
    scores: dict[int, float] | None = None
    exact: bool = True  # tokenizer.json is what was converted, so it must give the same ids


def read_text_tokenizer(checkpoint: Checkpoint) -> TextTokenizer:
    """Raises ModelFileError for files that are missing or broken."""
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
    # first of all: what the package can use has the parts that it should
    own = _own(tokenizer, folder / "tokenizer.json") if tokenizer else None
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
    return TextTokenizer(folder, checkpoint.config, tokenizer, settings, tuple(sorted(added.values())), own)


def parts(part: Any) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer and, in a Sequence, all its parts."""
    if not isinstance(part, dict):
        return []
    inner = part.get("normalizers") or part.get("pretokenizers")
    return [part, *(found for p in (inner if isinstance(inner, list) else []) for found in parts(p))]


def charsmap(part: dict[str, Any], path: Path) -> bytes:
    """The table of a normalizer "Precompiled". Raises ModelFileError for one that cannot be used."""
    try:
        return checked_charsmap(base64.b64decode(part.get("precompiled_charsmap", ""), validate=True))
    except (TypeError, ValueError) as error:
        raise ModelFileError(
            f"is not a table of SentencePiece: {error}", path=path, field="precompiled_charsmap"
        ) from None


def _own(tokenizer: dict[str, Any], path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    for part in parts(tokenizer.get("normalizer")):
        if part.get("type") == "Precompiled":
            charsmap(part, path)
    with package_errors(path):
        return tokenizers.Tokenizer.from_str(json.dumps(tokenizer | {"truncation": None, "padding": None}))


@contextlib.contextmanager
def package_errors(path: Path) -> Iterator[None]:
    """Turns what the package raises, bare Exceptions and panics, into ModelFileError."""
    try:
        yield
    except BaseException as error:
        # how the package fails at a template that names tokens it does not define
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        raise ModelFileError(f"the tokenizers package cannot use it: {error}", path=path) from None
