"""Which ``tokenizer.ggml.pre`` a tokenizer.json's ``pre_tokenizer`` is: by its definition, not by a hash of ids.

A definition is read as the expressions it splits a text with, one after the other, and looked up among those that the
tokenizers of hotshoe have for each name. Names with the same expressions are one and the same thing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["recognize"]

# the names that llama.cpp's converter would write, where the table has others for the same thing before them
_PREFERRED = ("llama-bpe", "smollm", "gpt-2")
_GPT2 = PRE_TOKENIZERS["gpt-2"].splits
_NOT_A_TOKENIZER = "default"  # what a reader takes where a file says nothing: no tokenizer is made like that


class _UnknownError(Exception):
    """A part of the definition that no expression stands for."""


def recognize(files: TextTokenizer) -> str:
    """The name. Raises ConversionError for a definition that no name stands for."""
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
            # what follows would see GPT-2's letters for bytes, not the text
            raise _UnknownError("something after ByteLevel")
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
        # keeps what matches; as all that is not space matches something, nothing else is left
        return text
    raise _UnknownError(f"a Split that is {behavior}{', inverted' if invert else ''}")


def _plain(splits: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    # what is left between matches is a piece, too: a last "or spaces" after "spaces before spaces" changes nothing
    return tuple(s.removesuffix(r"|\s+") if s.endswith(r"|\s+(?!\S)|\s+") else s for s in splits)


def _not_known(files: TextTokenizer, what: str) -> ConversionError:
    return ConversionError(
        f"{files.path}: the pre_tokenizer {what}, which no tokenizer.ggml.pre stands for",
        hint="check that tokenizer.json is the model's own; if it is, this way to split a text has to be added to "
        "hotshoe/tokenizers/_pretokenizers.py, under the name that llama.cpp has for it",
    )
