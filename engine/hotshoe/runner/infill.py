"""Prompts for filling a gap in a text ("fill in the middle", arXiv:2207.14255), with the tokens of the model's file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotshoe_core.errors import ModelError

if TYPE_CHECKING:
    from hotshoe.tokenizers import Tokenizer

__all__ = ["infill_prompt"]


def infill_prompt(
    tokenizer: Tokenizer, prefix: str, suffix: str, files: Sequence[tuple[str, str]] = (), name: str = "current"
) -> list[int]:
    """Return the prompt for the text between ``prefix`` and ``suffix``, as token ids.

    files: names and contents of other files of the repository, for models that have seen them in training. name: that
    of the file with the gap. Raises ModelError if the model was not trained to fill a gap, or not among files.
    """
    special = tokenizer.special
    marks = (special.fim_pre, special.fim_suf, special.fim_mid)
    if None in marks:
        raise ModelError(
            "the model's vocabulary has no tokens around a gap: it was not trained to fill one",
            hint="use a code model such as Qwen2.5-Coder, or send the text before the gap only",
        )

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    pre, suf, mid = (mark for mark in marks if mark is not None)
    ids = list(tokenizer.encode("")) if tokenizer.bos is not None else []
    ids = ids[:1] if ids and ids[0] == tokenizer.bos else []
    if files:
        if special.fim_rep is None or special.fim_sep is None:
            raise ModelError("the model's vocabulary has no tokens between files", hint="leave the other files out")
        ids += [special.fim_rep, *encode("repository\n")]
        for path, content in files:
            ids += [special.fim_sep, *encode(f"{path}\n{content}\n")]
        ids += [special.fim_sep, *encode(f"{name}\n")]
    return [*ids, pre, *encode(prefix), suf, *encode(suffix), mid]
