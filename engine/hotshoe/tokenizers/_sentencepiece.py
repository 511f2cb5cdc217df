"""SentencePiece BPE (``tokenizer.ggml.model`` "llama"): Llama 2, Mistral, Phi-3, Gemma 1 to 3, …

SentencePiece has no list of merges. It joins the two neighbours that make the token with the highest score; of several
such pairs, the leftmost. Here, every way to split a token in two becomes a merge, ranked by the token's score. The
result is the same if no two tokens have the same score, as in trained vocabularies. Of two tokens with the same score,
the one with the smaller id is joined first, wherever it is in the text.

As in SentencePiece, special tokens are not made by joining characters. (llama.cpp does join them.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from hotshoe.tokenizers._added import AddedTokens, hidden_ids, unusual_names
from hotshoe.tokenizers._decoding import BYTE_TOKENS, SentencePieceDecoder
from hotshoe.tokenizers._lazy_bpe import LazyBPE
from hotshoe.tokenizers._roles import KNOWN_TOKENS, find_affixes, find_roles
from hotshoe.tokenizers._strings import Characters, StringTable, TokenIds
from hotshoe.tokenizers._tokenizer import Tokenizer
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType, Vocabulary

__all__ = ["build"]

SPACE = "\u2581"
_JOINED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
# ids in vocabularies that SentencePiece writes, if a file has no keys for them
_DEFAULTS = {"unk": 0, "bos": 1, "eos": 2}


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer. Raises TokenizerError if two tokens are equal, or if there is not a score for each token."""
    import tokenizers
    from tokenizers import models, normalizers

    vocabulary.refuse_long_tokens()
    tokens, ids = vocabulary.table()
    roles = find_roles(vocabulary, ids.find(KNOWN_TOKENS), _DEFAULTS)
    types, unk = roles.types, roles.special.unk
    space_prefix = vocabulary.flag(PREFIX + "add_space_prefix", True)

    named = unusual_names(tokens, types)
    spaced = [i for i, name in named.items() if types[i] == TokenType.USER_DEFINED and SPACE in name]
    literal = bytearray(types)
    if space_prefix:
        # After a special token, the package puts a space before the text; SentencePiece puts none after these tokens.
        # So they are not searched for, but made by merges.
        for i in spaced:
            literal[i] = TokenType.NORMAL
    else:
        # these are searched for before spaces are escaped, so they need a name with spaces; the id is the same
        named |= {i: named[i].replace(SPACE, " ") for i in spaced}
    known = ids.find([named[i] for i in spaced])
    further = {named[i]: i for i in spaced if named[i] not in known}
    searched = AddedTokens(vocabulary, named, literal)

    is_joined = np.isin(np.frombuffer(types, np.uint8), _JOINED)
    characters = tokens.characters()
    inside = _inside(characters, is_joined)
    letters = _missing_letters(characters, is_joined, inside)
    byte_tokens = ids.find(BYTE_TOKENS)
    expand = {len(tokens) + n: _spell(letter, byte_tokens, unk) for n, letter in enumerate(letters)}
    ids = TokenIds(tokens, further | {letter: len(tokens) + n for n, letter in enumerate(letters)})

    def make_model(ids: dict[str, int], merges: list[tuple[str, str]]) -> models.BPE:
        name = None if unk is None else tokens[unk]
        return models.BPE(ids, merges, unk_token=name, fuse_unk=True, byte_fallback=True)

    escape: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    normalizer = normalizers.Sequence([*([normalizers.Prepend(SPACE)] if space_prefix else []), *escape])

    def wrap(model: models.Model) -> tokenizers.Tokenizer:
        inner = tokenizers.Tokenizer(model)
        inner.normalizer = normalizer
        searched.add_to(inner)
        return inner

    words = re.compile(".+" if _cross_words(characters, inside) else f"{SPACE}*[^{SPACE}]+|{SPACE}+", re.DOTALL)
    inner = LazyBPE(
        ids,
        _ScoredMerges(tokens, vocabulary.scores(), is_joined, ids),
        [*named.values(), *byte_tokens, *([] if unk is None else [tokens[unk]])],
        make_model=make_model,
        wrap=wrap,
        spell=lambda piece: words.findall(normalizer.normalize_str(piece)),
    )
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


@final
class _ScoredMerges:
    """All ways to split a token in two, ranked by the token's score."""

    def __init__(
        self, tokens: StringTable, scores: npt.NDArray[np.float64], is_joined: npt.NDArray[np.bool_], ids: TokenIds
    ) -> None:
        self._tokens, self._scores, self._is_joined, self._ids = tokens, scores, is_joined, ids

    def find(
        self, pairs: Sequence[tuple[str, str]], ids: Mapping[str, int]
    ) -> dict[tuple[str, str], tuple[float, int, int]]:
        found = {}
        for a, b in pairs:
            made = ids[a + b]
            if self._joins(made) and self._joins(ids[a]) and self._joins(ids[b]):
                # the longest left part first, so that runs of one character are joined from the left
                found[a, b] = -self._scores[made], made, -len(a)
        return found

    def all(self) -> list[tuple[str, str]]:
        tokens = list(self._tokens)
        parts = {token for token, id in self._ids.all().items() if self._joins(id)}
        return [
            (token[:cut], token[cut:])
            for token in (tokens[i] for i in np.argsort(-self._scores, kind="stable").tolist() if self._is_joined[i])
            for cut in range(len(token) - 1, 0, -1)
            if token[:cut] in parts and token[cut:] in parts
        ]

    def _joins(self, id: int) -> bool:
        return id >= self._is_joined.size or bool(self._is_joined[id])


def _inside(characters: Characters, is_joined: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """For each character of a table, whether it is in a token that is joined."""
    changes = np.zeros(characters.codes.size + 1, np.int8)
    changes[characters.starts[is_joined]] = 1
    changes[(characters.starts + characters.lengths)[is_joined]] = -1
    return np.cumsum(changes[:-1], dtype=np.int8) > 0


def _missing_letters(
    characters: Characters, is_joined: npt.NDArray[np.bool_], inside: npt.NDArray[np.bool_]
) -> list[str]:
    """The letters of tokens that are not tokens themselves. SentencePiece joins them anyway."""
    missing = np.zeros(0x110000, np.bool_)
    missing[characters.codes[inside]] = True
    missing[characters.codes[characters.starts[is_joined & (characters.lengths == 1)]]] = False
    return list(map(chr, np.flatnonzero(missing).tolist()))


def _cross_words(characters: Characters, inside: npt.NDArray[np.bool_]) -> bool:
    """Whether a token has a space after another character, so that the words of a text are not joined by themselves."""
    space = characters.codes == ord(SPACE)
    return bool(np.any(inside[1:] & inside[:-1] & space[1:] & ~space[:-1]))


def _spell(letter: str, ids: Mapping[str, int], unk: int | None) -> list[int]:
    spelled = [ids.get(BYTE_TOKENS[byte], unk) for byte in letter.encode()]
    return [] if None in spelled else [i for i in spelled if i is not None]
