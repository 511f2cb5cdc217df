"""SentencePiece BPE (``tokenizer.ggml.model`` "llama"): Llama 2, Mistral, Phi-3, Gemma 1 to 3, …

SentencePiece has no list of merges. It joins the two neighbours that make the token with the highest score; of several
such pairs, the leftmost. Here, every way to split a token in two becomes a merge, ranked by the token's score. The
result is the same if no two tokens have the same score, as in trained vocabularies. Of two tokens with the same score,
the one with the smaller id is joined first, wherever it is in the text.

As in SentencePiece, special tokens are not made by joining characters. (llama.cpp does join them.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hotshoe.tokenizers._added import add_tokens, hidden_ids
from hotshoe.tokenizers._decoding import SentencePieceDecoder
from hotshoe.tokenizers._roles import find_affixes, find_roles
from hotshoe.tokenizers._tokenizer import Tokenizer
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType, Vocabulary

__all__ = ["build"]

SPACE = "\u2581"
_JOINED = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED})
# ids in vocabularies that SentencePiece writes, if a file has no keys for them
_DEFAULTS = {"unk": 0, "bos": 1, "eos": 2}


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer. Raises TokenizerError if two tokens are equal, or if there is not a score for each token."""
    import tokenizers
    from tokenizers import models, normalizers

    vocabulary.refuse_long_tokens()
    tokens, ids = vocabulary.numbered()
    roles = find_roles(vocabulary, ids, _DEFAULTS)
    types = roles.types
    space_prefix = vocabulary.flag(PREFIX + "add_space_prefix", True)

    names = list(tokens)
    if not space_prefix:
        # these are searched for before spaces are escaped, so they need a name with spaces; the id is the same
        for i, kind in enumerate(types):
            if kind == TokenType.USER_DEFINED and SPACE in names[i]:
                names[i] = names[i].replace(SPACE, " ")
                ids.setdefault(names[i], i)
    joined = {token for token, kind in zip(tokens, types, strict=True) if kind in _JOINED}
    letters = _missing_letters(joined)
    expand = {len(tokens) + n: _spell(letter, ids, roles.special.unk) for n, letter in enumerate(letters)}
    ids |= {letter: len(tokens) + n for n, letter in enumerate(letters)}
    model = models.BPE(
        ids,
        _merges(tokens, vocabulary.scores(), joined, joined.union(letters)),
        unk_token=None if roles.special.unk is None else tokens[roles.special.unk],
        fuse_unk=True,
        byte_fallback=True,
    )
    inner = tokenizers.Tokenizer(model)
    escape: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    inner.normalizer = normalizers.Sequence([*([normalizers.Prepend(SPACE)] if space_prefix else []), *escape])
    literal = bytes(types)
    if space_prefix:
        # the text after a special token gets a space prefix, but SentencePiece puts none after these: merges find them
        literal = bytes(
            TokenType.NORMAL if k == TokenType.USER_DEFINED and SPACE in t else k for t, k in zip(tokens, types)
        )
    add_tokens(inner, vocabulary, names, literal)

    return Tokenizer(
        inner,
        tokens,
        roles.special,
        SentencePieceDecoder(tokens, types, strip=space_prefix),
        hidden=hidden_ids(types),
        stop_ids=roles.stop_ids,
        affixes=find_affixes(vocabulary, roles.special, bos=roles.special.bos is not None),
        expand=expand or None,
    )


def _merges(
    tokens: Sequence[str], scores: Sequence[float], joined: Collection[str], parts: Collection[str]
) -> list[tuple[str, str]]:
    order = sorted((i for i, t in enumerate(tokens) if len(t) > 1 and t in joined), key=lambda i: -scores[i])
    return [
        (token[:cut], token[cut:])
        for token in map(tokens.__getitem__, order)
        # the longest left part first, so that runs of one character are joined from the left
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in parts and token[cut:] in parts
    ]


def _missing_letters(joined: Collection[str]) -> list[str]:
    # A token may contain letters that are not tokens themselves. SentencePiece joins them anyway.
    return sorted({letter for token in joined for letter in token}.difference(joined))


def _spell(letter: str, ids: Mapping[str, int], unk: int | None) -> list[int]:
    spelled = [ids.get(f"<0x{byte:02X}>", unk) for byte in letter.encode()]
    return [] if None in spelled else [i for i in spelled if i is not None]
