"""BPE with a list of merges (``tokenizer.ggml.model`` "gpt2", "gemma4", …): GPT-2, Llama 3, Qwen, DeepSeek, Gemma 4, …

``tokenizer.ggml.pre`` names how a text is split into words first: see ``_pretokenizers``. A text is not normalized, as
in llama.cpp, so decoding returns the original text. (Qwen's original tokenizer composes accents, NFC.) The key
``tokenizer.ggml.add_space_prefix`` is ignored: llama.cpp reads it for this kind only to decode, and would lose a space.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import final

from hotshoe.tokenizers._added import AddedTokens, hidden_ids, unusual_names
from hotshoe.tokenizers._decoding import (
    BYTE_TOKENS,
    ByteLevelDecoder,
    SentencePieceDecoder,
    TokenDecoder,
    byte_letters,
)
from hotshoe.tokenizers._lazy_bpe import LazyBPE
from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS, PreTokenizer
from hotshoe.tokenizers._roles import KNOWN_TOKENS, find_affixes, find_roles
from hotshoe.tokenizers._strings import StringTable, TokenIds
from hotshoe.tokenizers._tokenizer import Tokenizer
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType, Vocabulary
from hotshoe_core.errors import TokenizerError, did_you_mean

__all__ = ["build"]

SPACE = "\u2581"
KEY_MERGES = PREFIX + "merges"
_LETTERS = byte_letters()


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer.

    Raises TokenizerError if the pre-tokenizer is unknown, if two tokens are equal, or if merges do not fit the tokens.
    """
    import tokenizers
    from tokenizers import Regex, models, normalizers, pre_tokenizers

    pre = _pre_tokenizer(vocabulary)
    tokens, ids = vocabulary.table()
    roles = find_roles(vocabulary, ids.find(KNOWN_TOKENS))
    types = roles.types
    merges = _ListedMerges(vocabulary.strings(KEY_MERGES), tokens, ids)
    fallback = not pre.bytes and "<0x0A>" in ids
    lowercase = pre.drop_spaces and vocabulary.flag(PREFIX + "normalizer.lowercase", False)
    added = _with_newlines(tokens, types) if pre.newline_runs else types
    named = unusual_names(tokens, added)
    searched = AddedTokens(vocabulary, named, added)

    def make_model(ids: dict[str, int], merges: list[tuple[str, str]]) -> models.BPE:
        return models.BPE(ids, merges, byte_fallback=fallback, ignore_merges=pre.ignore_merges)

    def wrap(model: models.Model) -> tokenizers.Tokenizer:
        inner = tokenizers.Tokenizer(model)
        if pre.escape_spaces:
            inner.normalizer = normalizers.Replace(" ", SPACE)
        elif lowercase:
            inner.normalizer = normalizers.Lowercase()
        steps: list[pre_tokenizers.PreTokenizer]
        steps = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
        if pre.bytes:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        if pre.drop_spaces:
            steps = [pre_tokenizers.WhitespaceSplit()]
        inner.pre_tokenizer = pre_tokenizers.Sequence(steps)
        searched.add_to(inner)
        return inner

    def spell(piece: str) -> list[str]:
        if pre.escape_spaces:
            piece = piece.replace(" ", SPACE)
        elif lowercase:
            piece = normalizers.Lowercase().normalize_str(piece)
        return ["".join(map(_LETTERS.__getitem__, piece.encode())) if pre.bytes else piece]

    always = [*named.values(), *(BYTE_TOKENS if fallback else ())]
    inner = LazyBPE(ids, merges, always, make_model=make_model, wrap=wrap, spell=spell)

    decoder: TokenDecoder
    decoder = ByteLevelDecoder(tokens, types) if pre.bytes else SentencePieceDecoder(tokens, types, strip=False)
    affixes = find_affixes(vocabulary, roles.special, bos=pre.add_bos and roles.special.bos is not None)
    if pre.always_bos:
        # even if the file says otherwise
        affixes = affixes._replace(prefix=[vocabulary.require("bos", roles.special.bos)])
    return Tokenizer(
        inner,
        tokens,
        roles.special,
        decoder,
        hidden=hidden_ids(types),
        stop_ids=roles.stop_ids,
        affixes=affixes,
    )


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    name = vocabulary.pre
    if vocabulary.model in ("gemma4", "whitespace"):  # these have one pre-tokenizer, whatever name the file gives
        name = vocabulary.model
    elif name == "default":
        warnings.warn(
            "the file does not say how its tokenizer splits a text into words (tokenizer.ggml.pre); hotshoe uses the "
            "same default as llama.cpp, but the model was trained with another one: convert the model again",
            stacklevel=4,
        )
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        near = did_you_mean(name, PRE_TOKENIZERS)
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name[:60]!r}, an unknown pre-tokenizer for BPE; "
            f"known: {', '.join(sorted(PRE_TOKENIZERS))}",
            hint=near if near.startswith("did") else "a newer version of hotshoe may know it",
        ) from None


@final
class _ListedMerges:
    """The merges of a file: "a b", best first."""

    def __init__(self, lines: StringTable, tokens: StringTable, ids: TokenIds) -> None:
        """Raises TokenizerError unless each merge is "a b" and makes a token. (Tokens contain no spaces.)"""
        self._lines, self._ids = lines, ids
        if lines.unknown_joins(tokens):
            _refuse_merges(lines, ids)

    def find(self, pairs: Sequence[tuple[str, str]], ids: Mapping[str, int]) -> dict[tuple[str, str], int]:
        ranks = self._lines.find([f"{a} {b}" for a, b in pairs])
        return {(a, b): ranks[line] for a, b in pairs if (line := f"{a} {b}") in ranks}

    def all(self) -> list[tuple[str, str]]:
        # a merge whose parts are not tokens never applies; what it makes was only checked by its hash
        ids = self._ids.all()
        cuts = (line.partition(" ") for line in self._lines)
        return [(a, b) for a, _, b in cuts if a in ids and b in ids and a + b in ids]


def _refuse_merges(lines: StringTable, ids: TokenIds) -> None:
    known = ids.all()
    for i, line in enumerate(lines):
        a, _, b = line.partition(" ")
        if not a or not b:
            raise TokenizerError(f"{KEY_MERGES}[{i}] is {line[:60]!r}; expected two tokens with a space between")
        if a + b not in known:
            missing = next(token for token in (a, b, a + b) if token not in known)
            raise TokenizerError(
                f"{KEY_MERGES}[{i}] is {line[:60]!r}, but the vocabulary of {len(ids)} tokens has no {missing[:60]!r}",
                hint="the tokens and the merges in the file belong to different models: convert the model again",
            )


def _with_newlines(tokens: StringTable, types: bytearray) -> bytearray:
    changed = bytearray(types)
    for i in tokens.starting_with("\n"):
        if types[i] == TokenType.NORMAL and not tokens[i].strip("\n"):
            changed[i] = TokenType.USER_DEFINED
    return changed
