"""Read SentencePiece unigram vocabularies (``tokenizer.ggml.model`` "t5"): XLM-RoBERTa and related models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.convert._tokenfiles import Vocab, charsmap, is_metaspace, parts, puts_space_first
from hotshoe.tokenizers import TokenType
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["is_unigram", "read_unigram"]


def is_unigram(files: TextTokenizer) -> bool:
    """True if tokenizer.json has a score for each token and no merges."""
    return files.model.get("type") == "Unigram"


def read_unigram(files: TextTokenizer) -> Vocab:
    """Read the vocabulary.

    Raises ModelFileError if tokenizer.json is damaged; ConversionError if GGUF cannot express the tokenizer.
    """
    pieces = files.model.get("vocab")
    if not isinstance(pieces, list) or not all(
        isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) and type(p[1]) in (int, float) for p in pieces
    ):
        raise ModelFileError("expected an array of tokens and scores", path=files.path, field="model.vocab")
    tokens = {i: token for i, (token, _) in enumerate(pieces)}
    scores = {i: float(score) for i, (_, score) in enumerate(pieces)}
    types = dict.fromkeys(tokens, TokenType.NORMAL)
    for added in files.added:
        tokens[added.id], types[added.id] = added.content, added.type
        scores.setdefault(added.id, 0.0)
    if isinstance(unk := files.model.get("unk_id"), int) and unk in tokens:
        types[unk] = TokenType.UNKNOWN
    return Vocab(tokens, types, {"model": "t5", "pre": "default", **_spaces(files)}, scores)


def _spaces(files: TextTokenizer) -> dict[str, Any]:
    """The GGUF keys of the normalizer: SentencePiece's character map, and the treatment of spaces."""
    keys: dict[str, Any] = {"add_space_prefix": False, "remove_extra_whitespaces": False}
    for part in parts(files.tokenizer.get("normalizer")) + parts(files.tokenizer.get("pre_tokenizer")):
        kind = part.get("type")
        if kind == "Precompiled":
            keys["precompiled_charsmap"] = charsmap(part, files.path)
        elif kind == "WhitespaceSplit" or (kind == "Replace" and part.get("content") == " "):
            keys["remove_extra_whitespaces"] = True
        elif is_metaspace(part):
            keys["add_space_prefix"] = puts_space_first(part)
        elif kind not in ("Sequence", "Strip"):
            raise ConversionError(
                f"{files.path}: the tokenizer has {kind!r}; for a unigram vocabulary a GGUF file can only express "
                "Precompiled, and the treatment of spaces"
            )
    return keys
