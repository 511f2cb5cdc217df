"""Vocabulary: the ``tokenizer.ggml.*`` keys of a GGUF file, checked, for every kind of tokenizer."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotshoe_core.errors import TokenizerError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hotshoe.tokenizers._strings import StringTable, TokenIds

__all__ = ["TokenType", "Vocabulary"]

PREFIX = "tokenizer.ggml."

# Limits far above those of real vocabularies. Without them, a file could keep a reader busy for minutes.
MAX_TOKEN_LENGTH = 2048  # characters; for kinds whose time per character of a text grows with the longest token
MAX_SQUARES = 2**30  # sum over all tokens of the square of their characters
MAX_LITERALS = 2**20  # characters of all tokens that are searched for in a text


class TokenType(enum.IntEnum):
    """The type of a token. Source: the GGUF specification, ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a GGUF file."""

    model: str
    """The kind of vocabulary: ``tokenizer.ggml.model``."""
    pre: str
    """The pre-tokenizer: ``tokenizer.ggml.pre``."""
    tokens: StringTable
    types: bytes
    """A value of TokenType for each token."""
    metadata: Mapping[str, Any] = field(repr=False)
    """All keys of the file, for those that only one kind of tokenizer reads."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Read the keys. Raises TokenizerError if keys are missing, have another type, or contradict each other."""
        model = metadata.get(PREFIX + "model")
        if model is None:
            raise TokenizerError(
                "the file has no key tokenizer.ggml.model, so it has no vocabulary",
                hint="convert the model again, from a folder that has its tokenizer files",
            )
        if not isinstance(model, str):
            raise TokenizerError(f"tokenizer.ggml.model is {_short(model)}; expected a string")
        pre = metadata.get(PREFIX + "pre", "default")
        if not isinstance(pre, str):
            raise TokenizerError(f"tokenizer.ggml.pre is {_short(pre)}; expected a string")
        tokens = _strings(metadata, PREFIX + "tokens")
        if not tokens:
            raise TokenizerError("tokenizer.ggml.tokens is empty; expected at least one token")
        return cls(model, pre or "default", tokens, _types(metadata, len(tokens)), metadata)

    def special_id(self, *names: str) -> int | None:
        """The id under the first key ``tokenizer.ggml.<name>_token_id`` that the file has, or None.

        Raises TokenizerError if the id is outside the vocabulary or not an integer.
        """
        for name in names:
            key = f"{PREFIX}{name}_token_id"
            value = self.metadata.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TokenizerError(f"{key} is {_short(value)}; expected an integer")
            if not 0 <= value < len(self.tokens):
                raise TokenizerError(
                    f"{key} is {value}, but the vocabulary has {len(self.tokens)} tokens (0 to {len(self.tokens) - 1})"
                )
            return value
        return None

    def flag(self, key: str, default: bool) -> bool:
        """The boolean under ``key`` (the full name), or ``default``. Raises TokenizerError for another type."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TokenizerError(f"{key} is {_short(value)}; expected true or false")
        return value

    def integer(self, key: str, default: int) -> int:
        """The integer under ``key`` (the full name), or ``default``. Raises TokenizerError if it is below 1."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TokenizerError(f"{key} is {_short(value)}; expected an integer of at least 1")
        return value

    def require(self, name: str, id: int | None) -> int:
        """Return ``id``. Raises TokenizerError if it is None: the file adds the token to texts but does not name it."""
        if id is None:
            raise TokenizerError(
                f"{PREFIX}add_{name}_token is true, but the file has no key {PREFIX}{name}_token_id",
                hint="convert the model again from its Hugging Face folder",
            )
        return id

    def table(self) -> tuple[StringTable, TokenIds]:
        """The tokens by id, and the ids by token. An empty token is named "[EMPTY_…]", as in llama.cpp.

        Raises TokenizerError if two tokens are equal.
        """
        from hotshoe.tokenizers._strings import StringTable, TokenIds

        tokens = self.tokens
        if tokens.find([""]):
            tokens = StringTable(token or f"[EMPTY_{i}]" for i, token in enumerate(tokens))
        if (repeated := tokens.repeated()) is not None:
            raise self._repeated(*repeated)
        return tokens, TokenIds(tokens)

    def numbered(self) -> tuple[Sequence[str], dict[str, int]]:
        """The same as ``table``, for kinds of tokenizer that need all tokens at once: a tuple and a dictionary."""
        table, _ = self.table()
        tokens = tuple(table)
        return tokens, dict(zip(tokens, range(len(tokens))))

    def ids_of(self, tokens: Sequence[str]) -> dict[str, int]:
        """The ids by token, of the tokens of the file in another spelling. Raises TokenizerError if two are equal."""
        ids = dict(zip(tokens, range(len(tokens))))
        if len(ids) != len(tokens):
            i = next(i for i, token in enumerate(tokens) if ids[token] != i)
            raise self._repeated(i, ids[tokens[i]])
        return ids

    def _repeated(self, first: int, second: int) -> TokenizerError:
        return TokenizerError(
            f"tokenizer.ggml.tokens has {self.tokens[first][:60]!r} both at {first} and at {second}; "
            "expected every token once",
            hint="convert the model again from its Hugging Face folder: hotshoe convert FOLDER",
        )

    def strings(self, key: str) -> StringTable:
        """The array of strings under ``key`` (the full name). Raises TokenizerError if missing or of another type."""
        return _strings(self.metadata, key)

    def scores(self) -> npt.NDArray[np.float64]:
        """``tokenizer.ggml.scores``, one for each token. Raises TokenizerError if they are missing or not numbers."""
        from hotshoe.tokenizers._arrays import floats

        key = PREFIX + "scores"
        value = self.metadata.get(key)
        if value is None:
            raise TokenizerError(
                f"the file has no key {key}, but a vocabulary of the kind {self.model!r} needs a score for each token",
                hint="convert the model again from a folder that has its tokenizer.model",
            )
        scores = None
        if _is_array(value) and len(value) == len(self.tokens):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                scores = floats(value)
        if scores is None or (scores != scores).any():  # NaN
            raise TokenizerError(
                f"{key} is {_short(value)}; expected an array of {len(self.tokens)} numbers, one for each token"
            )
        return scores

    def refuse_long_tokens(self) -> None:
        """Raise TokenizerError if tokens are so long that splitting them at every position would take minutes."""
        lengths = self.tokens.n_characters()
        longest = lengths.max()
        if longest > MAX_TOKEN_LENGTH:
            raise TokenizerError(
                f"{PREFIX}tokens[{lengths.argmax()}] has {longest} characters; "
                f"expected at most {MAX_TOKEN_LENGTH} in a vocabulary of the kind {self.model!r}"
            )
        if (lengths * lengths).sum() > MAX_SQUARES:
            raise TokenizerError(
                f"the {len(self.tokens)} strings of {PREFIX}tokens have {lengths.sum()} characters, too many of "
                f"them in long tokens for a vocabulary of the kind {self.model!r}"
            )

    def refuse_long_literals(self, tokens: Iterable[str]) -> None:
        """Raise TokenizerError if these tokens, which are searched for in every text, are too long in total."""
        total = sum(map(len, tokens))
        if total > MAX_LITERALS:
            raise TokenizerError(
                f"the control and user-defined strings of {PREFIX}tokens have {total} characters in total; "
                f"expected at most {MAX_LITERALS}"
            )

    def ids(self, key: str) -> frozenset[int]:
        """The array of token ids under ``key`` (the full name); empty if the key is missing.

        Raises TokenizerError for another type, or an id outside the vocabulary.
        """
        value = self.metadata.get(key)
        if value is None:
            return frozenset()
        ids = _integers(value)
        if ids is None or ((ids < 0) | (ids >= len(self.tokens))).any():
            raise TokenizerError(f"{key} is {_short(value)}; expected an array of ids below {len(self.tokens)}")
        return frozenset(ids.tolist())


def _strings(metadata: Mapping[str, Any], key: str) -> StringTable:
    from hotshoe.tokenizers._arrays import string_table

    array: Any = metadata.get(key)
    if not _is_array(array):
        what = "missing" if array is None else _short(array)
        raise TokenizerError(f"{key} is {what}; expected an array of strings")
    try:
        return string_table(array)
    except TypeError as error:
        i, item = error.args
        raise TokenizerError(f"{key}[{i}] is {_short(item)}; expected a string") from None
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{key} has {_short(error.object)}; expected text without lone surrogates") from None


def _types(metadata: Mapping[str, Any], n_tokens: int) -> bytes:
    types = metadata.get(PREFIX + "token_type")
    if types is None:
        return bytes([TokenType.NORMAL]) * n_tokens
    integers = _integers(types)
    if integers is None or len(integers) != n_tokens:
        raise TokenizerError(
            f"tokenizer.ggml.token_type is {_short(types)}; expected an array of {n_tokens} integers, "
            "one for each token"
        )
    (wrong,) = ((integers < 0) | (integers > max(TokenType))).nonzero()
    if wrong.size:
        raise TokenizerError(
            f"tokenizer.ggml.token_type[{wrong[0]}] is {integers[wrong[0]]}; expected {min(TokenType):d} to "
            f"{max(TokenType):d}, or 0 for an undefined type"
        )
    return integers.astype("u1").tobytes()


def _integers(value: Any) -> npt.NDArray[Any] | None:
    from hotshoe.tokenizers._arrays import integers

    try:
        return integers(value) if _is_array(value) else None
    except (TypeError, ValueError):
        return None


def _is_array(value: Any) -> bool:
    # a GGUF reader may return a list, a NumPy array, or a lazy sequence
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))


def _short(value: Any) -> str:
    if _is_array(value):
        return f"an array of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
