"""Read SentencePiece BPE vocabularies (``tokenizer.ggml.model`` "llama"): Llama 2, Mistral, Phi-3, Gemma.

tokenizer.model has a score for each token. tokenizer.json has merges instead: if the folder has only this file, the
score of a token is the negative rank of the first merge that makes it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hotshoe.convert._sentencepiece import read_model
from hotshoe.convert._tokenfiles import SPACE, Vocab, is_metaspace, parts, puts_space_first
from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["read_spaces"]

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_ADDED_SCORE = -1000.0  # llama.cpp's converter writes this score; no reader uses it


def read_spaces(files: TextTokenizer) -> Vocab:
    """Read the vocabulary.

    Raises ModelFileError if a file is damaged; ConversionError if GGUF cannot express the tokenizer.
    """
    vocab = _from_model(files) if (files.folder / "tokenizer.model").is_file() else _from_json(files)
    tokens, types, scores = vocab.tokens, vocab.types, vocab.scores or {}
    for added in files.added:
        if types.get(added.id) == TokenType.UNKNOWN and tokens[added.id] == added.content:
            continue
        tokens[added.id], types[added.id], scores[added.id] = added.stored, added.type, _ADDED_SCORE
    return vocab


def _from_model(files: TextTokenizer) -> Vocab:
    model = read_model(files.folder / "tokenizer.model")
    stated = files.settings.get("add_prefix_space")
    prefix = stated if isinstance(stated, bool) else model.space_prefix
    user = TokenType.USER_DEFINED
    return Vocab(
        # user-defined tokens are searched for in the original text, with its spaces
        {i: p.text.replace(SPACE, " ") if p.type == user else p.text for i, p in enumerate(model.pieces)},
        {i: TokenType(p.type) for i, p in enumerate(model.pieces)},
        {"model": "llama", "pre": "default", "add_space_prefix": prefix},
        {i: p.score for i, p in enumerate(model.pieces)},
        exact=False,
    )


def _from_json(files: TextTokenizer) -> Vocab:
    model = files.model
    if model.get("type", "BPE") != "BPE" or not model.get("byte_fallback"):
        raise ConversionError(
            f"{files.path}: the tokenizer is {model.get('type')!r} "
            f"{'with' if model.get('byte_fallback') else 'without'} byte_fallback; hotshoe converts byte-level BPE, "
            "and BPE with byte_fallback",
            hint="if the model has a tokenizer.model, copy it into the folder",
        )
    tokens = {i: token for token, i in files.vocab().items()}
    ranks: dict[str, int] = {}
    for a, b in files.merges():
        ranks.setdefault(a + b, len(ranks))
    types, scores = {}, {}
    for i, token in tokens.items():
        if _BYTE.fullmatch(token):
            types[i], scores[i] = TokenType.BYTE, 0.0
        elif token == model.get("unk_token"):
            types[i], scores[i] = TokenType.UNKNOWN, 0.0
        else:
            # single letters rank after all tokens that merges make
            types[i], scores[i] = TokenType.NORMAL, -float(ranks.get(token, len(ranks) + i))
    metadata = {"model": "llama", "pre": "default", "add_space_prefix": _space_prefix(files)}
    return Vocab(tokens, types, metadata, scores)


def _space_prefix(files: TextTokenizer) -> bool:
    """True if a space is put before each text. Raises ConversionError for a normalizer that GGUF cannot express."""
    prefix = False
    for part in parts(files.tokenizer.get("normalizer")) + parts(files.tokenizer.get("pre_tokenizer")):
        kind = part.get("type")
        if kind == "Prepend" and part.get("prepend") == SPACE:
            prefix = True
        elif is_metaspace(part):
            prefix = prefix or puts_space_first(part)
        elif kind not in ("Sequence", "Replace", "Split"):
            raise ConversionError(
                f"{files.path}: the tokenizer has {kind!r}; for BPE with byte_fallback a GGUF file can only express "
                "that spaces become U+2581, with or without a space before the text"
            )
    return prefix
