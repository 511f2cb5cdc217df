"""Read the ranks of tiktoken (``tiktoken.model``), which Kimi's checkpoints have instead of tokenizer.json.

Each line has the bytes of a token in base64 and its rank, which is its id. A token is made of the two that the merges
of lower rank leave, so the merges follow from the ranks.
"""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import TYPE_CHECKING

from hotshoe.convert._tokenfiles import RANKS, Vocab
from hotshoe.tokenizers._decoding import byte_letters
from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe_core.errors import ConversionError, ModelFileError
from hotshoe_core.errors.arguments import regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["LONGEST", "is_tiktoken", "named_by_rank", "read_ranks", "require_bytes"]

_KIMI = "tokenization_kimi"  # the module with the pattern that splits texts into words
_MOST = 1 << 22  # tokens, and bytes of one token
LONGEST = 1 << 10
"""Bytes of the longest token."""


def is_tiktoken(files: TextTokenizer) -> bool:
    """True if the folder has tiktoken's ranks, and no other vocabulary."""
    return not files.tokenizer and (files.folder / RANKS).is_file()


def read_ranks(files: TextTokenizer) -> Vocab:
    """Read the vocabulary. Ids after the ranks are special tokens, whether config files name them or not.

    Raises ModelFileError if the file is damaged; ConversionError if nothing says how texts are split into words.
    """
    if _KIMI not in str(files.settings.get("auto_map")):
        raise ConversionError(
            f"{files.folder / RANKS} does not say how a text is split into words; hotshoe knows it for tokenizers of "
            f"{_KIMI}.py only, which tokenizer_config.json does not name",
            hint="save the tokenizer as tokenizer.json",
        )
    ranks = _read(files)
    named, merges = named_by_rank(ranks)
    tokens = {rank: named[token] for token, rank in ranks.items()}
    types = dict.fromkeys(tokens, TokenType.NORMAL)
    n_tokens = files.config.get("vocab_size")
    for i in range(len(ranks), n_tokens if isinstance(n_tokens, int) and n_tokens <= _MOST else 0):
        tokens[i], types[i] = f"<|reserved_token_{i}|>", TokenType.CONTROL
    for added in files.added:
        tokens[added.id], types[added.id] = added.stored, TokenType.CONTROL
    return Vocab(tokens, types, {"model": "gpt2", "pre": "kimi-k2", "merges": merges}, exact=False)


def named_by_rank(ranks: Mapping[bytes, int]) -> tuple[dict[bytes, str], list[str]]:
    """What GGUF calls each token, a letter for each byte; and the merges that follow from the ranks, best first."""
    letters = byte_letters()
    named = {token: "".join(letters[byte] for byte in token) for token in ranks}
    pairs = (_halves(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    return named, [f"{named[pair[0]]} {named[pair[1]]}" for pair in pairs if len(pair) == 2]


def require_bytes(ranks: Mapping[bytes, int], path: Path) -> None:
    """Raise ModelFileError if a byte has no token."""
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None:
        raise ModelFileError(f"has no token for the byte {missing:#04x}", path=path)


def _read(files: TextTokenizer) -> dict[bytes, int]:
    path = files.folder / RANKS
    ranks: dict[bytes, int] = {}
    try:
        lines = regular(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror or error}", path=path) from error
    for number, line in enumerate(lines[: _MOST + 1], 1):
        if not line.strip():
            continue
        try:
            stored, rank = line.split()
            token = base64.b64decode(stored, validate=True)
            if int(rank) != len(ranks) or not 0 < len(token) <= LONGEST or token in ranks:
                raise ValueError("expected the bytes of a new token, and the next rank")
        except ValueError as error:
            raise ModelFileError(f"line {number} is {line[:60]!r}: {error}", path=path) from None
        ranks[token] = len(ranks)
    require_bytes(ranks, path)
    return ranks


def _halves(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Merge the bytes of a token by all ranks below its own; usually two parts are left."""
    parts = [token[i : i + 1] for i in range(len(token))]
    own = ranks[token]
    while len(parts) > 2:
        best, at = min((ranks.get(a + b, own), i) for i, (a, b) in enumerate(pairwise(parts)))
        if best >= own:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts
