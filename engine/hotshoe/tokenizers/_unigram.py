"""SentencePiece unigram (``tokenizer.ggml.model`` "t5"): T5, XLM-RoBERTa and embedding models derived from it.

A text is split into the tokens with the highest sum of scores (Viterbi). Before that, the model's character map
(``tokenizer.ggml.precompiled_charsmap``) normalizes the text, so decoding does not always return the original text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.tokenizers._added import add_tokens, hidden_ids
from hotshoe.tokenizers._charsmap import checked_charsmap
from hotshoe.tokenizers._decoding import SentencePieceDecoder
from hotshoe.tokenizers._roles import find_affixes, find_roles
from hotshoe.tokenizers._tokenizer import Tokenizer
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType, Vocabulary
from hotshoe_core.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import normalizers

__all__ = ["build"]

SPACE = "\u2581"
KEY_TABLE = PREFIX + "precompiled_charsmap"
_FOUND_FIRST = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
# ids in T5, if a file has no keys for them
_DEFAULTS = {"pad": 0, "eos": 1, "unk": 2}


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer.

    Raises TokenizerError if two tokens are equal, scores or the unknown token are missing, or the character map is
    damaged.
    """
    import tokenizers
    from tokenizers import models

    vocabulary.refuse_long_tokens()
    tokens, ids = vocabulary.numbered()
    scores = vocabulary.scores().tolist()
    roles = find_roles(vocabulary, ids, _DEFAULTS)
    types = roles.types
    unk = roles.special.unk
    if unk is None:
        raise TokenizerError(
            f"the file has no key {PREFIX}unknown_token_id; a unigram vocabulary needs the unknown token",
            hint="convert the model again from a folder that has its tokenizer.model",
        )
    space_prefix = vocabulary.flag(PREFIX + "add_space_prefix", True)
    trim = vocabulary.flag(PREFIX + "remove_extra_whitespaces", False)

    # The model must not make a special token from ordinary text. So in the model, special tokens have a name with a
    # space, which no text contains, because spaces are escaped. If a text names a special token, the package gives it
    # another id, which ``expand`` maps back.
    names = [(f" {i}", 0.0) if k in _FOUND_FIRST else (tokens[i], scores[i]) for i, k in enumerate(types)]
    inner = tokenizers.Tokenizer(models.Unigram(names, unk_id=unk, byte_fallback=TokenType.BYTE in types))
    inner.normalizer = _normalizer(vocabulary, space_prefix=space_prefix or trim, trim=trim)
    add_tokens(inner, vocabulary, tokens, types)
    found = inner.get_added_tokens_decoder()

    return Tokenizer(
        inner,
        tokens,
        roles.special,
        SentencePieceDecoder(tokens, types, strip=space_prefix or trim),
        hidden=hidden_ids(types),
        stop_ids=roles.stop_ids,
        affixes=find_affixes(vocabulary, roles.special, bos=False, eos=roles.special.eos is not None),
        expand={number: [ids[token.content]] for number, token in found.items()},
    )


def _normalizer(vocabulary: Vocabulary, *, space_prefix: bool, trim: bool) -> normalizers.Normalizer:
    from tokenizers import Regex, normalizers

    steps: list[normalizers.Normalizer] = []
    table: Any = vocabulary.metadata.get(KEY_TABLE)
    if table is not None:
        try:
            steps.append(normalizers.Precompiled(checked_charsmap(table)))
        except Exception as e:  # the package raises bare Exception
            raise TokenizerError(f"{KEY_TABLE} is not a character map of SentencePiece: {e}") from None
    if trim:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if space_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(steps)
