"""Tokenizers: text to token ids and back, with the vocabulary of a GGUF file.

``load_tokenizer(metadata)`` reads the ``tokenizer.ggml.*`` keys and builds a ``Tokenizer`` around an object of the
``tokenizers`` package. ``Tokenizer.stream()`` decodes one token after another.

Each kind of vocabulary (``tokenizer.ggml.model``) has a function ``build(vocabulary: Vocabulary) -> Tokenizer``. It is
found by entry point, in any installed distribution, and imported when a file needs it:

    [project.entry-points."hotshoe.tokenizers"]
    mine = "my_package.tokenizer:build"

Such a function can import from here: ``Vocabulary`` and ``TokenType`` (the checked keys of the file), ``find_roles``
(tokens with a role), ``find_affixes`` (tokens around a text), ``add_tokens`` (tokens that are searched for in a text),
``hidden_ids``, and for decoding a ``TokenDecoder``, such as ``ByteLevelDecoder`` or ``SentencePieceDecoder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe import families
from hotshoe.tokenizers._added import add_tokens, hidden_ids
from hotshoe.tokenizers._decoding import ByteLevelDecoder, SentencePieceDecoder, StreamDecoder, TokenDecoder
from hotshoe.tokenizers._roles import Roles, find_affixes, find_roles
from hotshoe.tokenizers._tokenizer import Affixes, EncodedPair, SpecialIds, Tokenizer
from hotshoe.tokenizers._vocabulary import TokenType, Vocabulary
from hotshoe_core.errors import TokenizerError, UnknownArchitectureError

__all__ = [
    "Affixes",
    "ByteLevelDecoder",
    "EncodedPair",
    "TokenDecoder",
    "Roles",
    "SentencePieceDecoder",
    "SpecialIds",
    "StreamDecoder",
    "TokenType",
    "Tokenizer",
    "Vocabulary",
    "add_tokens",
    "find_affixes",
    "find_roles",
    "hidden_ids",
    "load_tokenizer",
]


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes. ``metadata`` maps the file's keys to plain values.

    Raises TokenizerError, which names the key, if the kind of vocabulary or the pre-tokenizer is unknown, or if the
    vocabulary is inconsistent. Raises ModelError if several distributions offer this kind.
    """
    vocabulary = Vocabulary.from_metadata(metadata)
    try:
        build = families.find(families.TOKENIZERS, vocabulary.model)
    except UnknownArchitectureError as error:
        known = ", ".join(families.names(families.TOKENIZERS))
        raise TokenizerError(
            f"tokenizer.ggml.model is {vocabulary.model[:60]!r}; hotshoe has tokenizers for: {known}", hint=error.hint
        ) from None
    tokenizer = build(vocabulary)
    if not isinstance(tokenizer, Tokenizer):
        raise TokenizerError(
            f"the tokenizer of {vocabulary.model!r} (entry point of {families.TOKENIZERS!r}) returned "
            f"{type(tokenizer).__name__}; expected a hotshoe.tokenizers.Tokenizer"
        )
    return tokenizer
