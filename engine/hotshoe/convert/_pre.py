"""Find the ``tokenizer.ggml.pre`` of a tokenizer.json from the definition of its ``pre_tokenizer``.

The definition becomes a list of regular expressions that split the text. This list is looked up in the table that
hotshoe's tokenizers use. Names with the same expressions are interchangeable. (llama.cpp's converter compares a hash of
the ids of a sample text instead.)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["recognize"]

# names that llama.cpp's converter writes, although the table has synonyms before them
_PREFERRED = ("llama-bpe", "smollm", "gpt-2")
_GPT2 = PRE_TOKENIZERS["gpt-2"].splits
_NOT_A_TOKENIZER = "default"  # what readers use for files without the key; no model is trained with it


class _UnknownError(Exception):
    """A part of the definition that has no equivalent regular expression."""


def recognize(files: TextTokenizer) -> str:
    """Return the name of the pre-tokenizer. Raises ConversionError if no name has the same definition."""
    definition = files.tokenizer.get("pre_tokenizer")
    try:
        splits = _plain(_splits(definition, last=True))
    except _UnknownError as unknown:
        raise _not_known(files, f"has {unknown}") from None
    ignore_merges = files.model.get("ignore_merges") is True
    names = [
        name
        for name, pre in PRE_TOKENIZERS.items()
        if name != _NOT_A_TOKENIZER
        and pre.bytes
        and not (pre.escape_spaces or pre.newline_runs or pre.drop_spaces or pre.always_bos)
        and pre.ignore_merges == ignore_merges
        and _plain(pre.splits) == splits
    ]
    if not names:
        merges = "ignore_merges true" if ignore_merges else "no ignore_merges"
        raise _not_known(files, f"splits by {' then '.join(splits) or 'nothing'} ({merges})")
    return next((name for name in _PREFERRED if name in names), names[0])


def _splits(part: Any, *, last: bool) -> list[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "Sequence":
        parts = part.get("pretokenizers")
        if not isinstance(parts, list) or not parts:
            raise _UnknownError("an empty Sequence")
        return [s for i, inner in enumerate(parts) for s in _splits(inner, last=last and i == len(parts) - 1)]
    if kind == "Digits":
        return [r"\p{N}" if part.get("individual_digits") else r"\p{N}+"]
    if kind == "ByteLevel":
        if not last:
            # the next step would split GPT-2's letters for bytes instead of the text
            raise _UnknownError("a step after ByteLevel")
        if part.get("add_prefix_space", True):
            raise _UnknownError("ByteLevel with add_prefix_space")
        return list(_GPT2) if part.get("use_regex", True) else []
    if kind == "Split":
        return [_split(part)]
    raise _UnknownError("no pre_tokenizer" if part is None else str(kind))


def _split(part: dict[str, Any]) -> str:
    pattern, behavior, invert = part.get("pattern"), part.get("behavior"), bool(part.get("invert"))
    stated = pattern if isinstance(pattern, dict) else {}
    text = stated.get("Regex") or re.escape(str(stated.get("String") or ""))
    if not isinstance(text, str) or not text:
        raise _UnknownError("a Split without a pattern")
    if behavior == "Isolated" and not invert:
        return text
    if behavior == "Removed" and invert and text.endswith(r"|\s+"):
        # It keeps only matches. This drops nothing, because the pattern matches every character.
        return text
    raise _UnknownError(f"a Split that is {behavior}{', inverted' if invert else ''}")


def _plain(splits: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    # Text between two matches is a piece too. So a last alternative \s+ after \s+(?!\S) changes nothing.
    return tuple(s.removesuffix(r"|\s+") if s.endswith(r"|\s+(?!\S)|\s+") else s for s in splits)


def _not_known(files: TextTokenizer, what: str) -> ConversionError:
    return ConversionError(
        f"{files.path}: the pre_tokenizer {what}; no tokenizer.ggml.pre has this definition",
        hint="check that tokenizer.json belongs to the model; if it does, add this definition to "
        "hotshoe/tokenizers/_pretokenizers.py, under the name that llama.cpp uses for it",
    )
