"""Find the tokens with a role (begin, end, end of turn, fill in the middle, …) and those that end a generation.

Keys of the file name them. Older files lack some keys, so well-known names of tokens are used as well. The names, and
the exceptions for models that use them differently, are those of llama.cpp (``src/llama-vocab.cpp``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from hotshoe.tokenizers._tokenizer import Affixes, SpecialIds
from hotshoe.tokenizers._vocabulary import PREFIX, TokenType, Vocabulary

__all__ = ["KNOWN_TOKENS", "Roles", "find_affixes", "find_roles"]

_NAMES: Mapping[str, tuple[str, ...]] = {
    "eot": (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
        *("<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_STOPS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
    *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
)
# tokens that structure an answer (gpt-oss) and must be visible, whatever type the file gives them
_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
KNOWN_TOKENS = (*itertools.chain(*_NAMES.values()), *_STOPS, *_SHOWN)
_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}


class Roles(NamedTuple):
    """The result of ``find_roles``."""

    special: SpecialIds
    types: bytearray
    """The type of each token: that of the file, corrected for tokens with a role."""
    stop_ids: frozenset[int]
    """Ids that end a generation."""


def find_roles(vocabulary: Vocabulary, ids: Mapping[str, int], defaults: Mapping[str, int] | None = None) -> Roles:
    """Find the tokens with a role.

    ids: maps tokens to ids; at least those of KNOWN_TOKENS that the vocabulary has.
    defaults: ids of roles, if the file does not name them.

    Raises TokenizerError if a key names an id outside the vocabulary.
    """
    types = bytearray(vocabulary.types)

    def role(name: str, *keys: str) -> int | None:
        found = vocabulary.special_id(*keys or (name,))
        if found is None and defaults is not None and defaults.get(name, len(types)) < len(types):
            return defaults[name]
        return found

    def named(name: str) -> int | None:
        found = vocabulary.special_id(name, *([_OLD_KEYS[name]] if name in _OLD_KEYS else []))
        if found is None:
            found = next((ids[token] for token in _NAMES[name] if token in ids), None)
            if found is not None:
                types[found] = TokenType.CONTROL
        return found

    special = SpecialIds(
        bos=role("bos"),
        eos=role("eos"),
        cls=role("cls"),
        sep=role("sep", "seperator"),  # the spelling in GGUF
        pad=role("pad", "padding"),
        unk=role("unk", "unknown"),
        mask=role("mask"),
        **{name: named(name) for name in _NAMES},
    )
    stops = {i for i in (special.fim_pad, special.fim_rep, special.fim_sep) if i is not None}
    for token in _STOPS:
        if token in ids:
            stops.add(ids[token])
            types[ids[token]] = TokenType.CONTROL
    for token in _SHOWN:
        if token in ids:
            types[ids[token]] = TokenType.USER_DEFINED
    stops.update(i for i in (special.eos, special.eot, special.eom) if i is not None)
    _correct(stops, types, ids)
    return Roles(special, types, frozenset(stops))


def find_affixes(vocabulary: Vocabulary, special: SpecialIds, *, bos: bool, eos: bool = False) -> Affixes:
    """Find the tokens around a text. bos, eos: whether these are added if the file does not say.

    Raises TokenizerError if a token is to be added but the file does not name it.
    """

    def added(name: str, default: bool, id: int | None) -> list[int]:
        return [vocabulary.require(name, id)] if vocabulary.flag(f"{PREFIX}add_{name}_token", default) else []

    return Affixes(added("bos", bos, special.bos), added("eos", eos, special.eos), added("sep", False, special.sep))


def _correct(stops: set[int], types: bytearray, ids: Mapping[str, int]) -> None:
    present = {token for token in _STOPS if ids.get(token) in stops}
    calls = present & {"<|call|>", "<|calls|>"}
    if calls and present & {"<|return|>", "<|flush|>"} and "<|end|>" in present:
        # in gpt-oss and Solar Open it ends a part of an answer, not the answer
        stops.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in present and "<|tool_response>" in present:  # in Gemma 4 it is an HTML tag
        stops.discard(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
