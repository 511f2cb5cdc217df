"""Grammars: restrict the next token, so that the text matches a JSON schema, a regular expression or a grammar.

    vocabulary = GrammarVocabulary.from_tokenizer(tokenizer)     # make it once for each model: it reads every token
    grammar = Grammar.from_json_schema({"type": "object"})       # checked when made
    sampler = Sampler(params, vocab_size, grammar.start(vocabulary))

The package llguidance implements this. It is an optional dependency: ``pip install hotshoe[grammar]``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hotshoe.sampling._json_schema import WHITESPACE, check_length, prepare
from hotshoe_core.errors import GrammarError, MissingPackageError
from hotshoe_core.errors.install import pip_install

if TYPE_CHECKING:
    from typing import Self

    from hotshoe.sampling._sampler import Constraint
    from hotshoe.tokenizers import Tokenizer

__all__ = ["Grammar", "GrammarState", "GrammarVocabulary", "choose_grammar"]

_MAX_REASON = 2000  # characters of a message of llguidance


def _llguidance(module: str = "llguidance") -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name != "llguidance":
            raise
        raise MissingPackageError(
            "grammars need the package llguidance, which is not installed", hint=pip_install("hotshoe[grammar]")
        ) from None


@final
class GrammarVocabulary:
    """The bytes of every token of a vocabulary, as grammars need them. Make it once for each model. Thread-safe."""

    __slots__ = ("_native", "vocab_size")

    def __init__(
        self,
        tokens: Sequence[bytes],
        stop_ids: Collection[int],
        special_ids: Collection[int] = (),
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Make the vocabulary of a grammar.

        tokens: the bytes that each id adds to a text.
        stop_ids: ids that end a text.
        special_ids: ids that do not appear in a text.
        encode: encodes a text as the model's tokenizer does. If a grammar allows only one continuation of characters,
        only the tokens that the tokenizer would choose are allowed, because the model has not seen other ones there.
        None: the longest tokens first.

        Raises GrammarError if ``stop_ids`` is empty or an id is outside the vocabulary; MissingPackageError if
        llguidance is not installed.
        """
        if not stop_ids:
            raise GrammarError("the vocabulary has no token that ends a text, so a text could never end")
        for i in (*stop_ids, *special_ids):
            if not 0 <= i < len(tokens):
                raise GrammarError(f"token id {i} is outside the vocabulary of {len(tokens)} tokens")
        self.vocab_size = len(tokens)
        stops = sorted(stop_ids)
        wrapped = _Wrapped(tokens, stops[0], sorted({*stop_ids, *special_ids}), encode)
        try:
            self._native = _llguidance().LLTokenizer(wrapped, eos_token=stops)
        except ValueError as e:
            raise GrammarError(f"llguidance cannot use the vocabulary: {e}") from e

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> Self:
        """Make the vocabulary of a tokenizer. Raises GrammarError if the tokenizer has no token that ends a text."""
        ids = range(tokenizer.vocab_size)
        # special tokens are those that decode() skips by default, although they have a name
        special = [i for i in ids if not tokenizer.decode([i]) and tokenizer.decode([i], skip_special=False)]
        stops = tokenizer.stop_ids or {i for i in (tokenizer.eos,) if i is not None}

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special=False, parse_special=False)

        return cls([tokenizer.piece(i) for i in ids], stops, special, encode)


class _Wrapped:
    """A vocabulary with the attributes that LLTokenizer expects."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], eos: int, special: list[int], encode: Callable[[str], list[int]] | None
    ) -> None:
        self.tokens = tokens
        self.eos_token_id = eos
        self.special_token_ids = special
        self._encode = encode
        self._by_bytes: dict[bytes, int] = {}
        self._longest = max(map(len, tokens), default=0)

    def __call__(self, text: str) -> list[int]:
        data = text.encode()
        if self._encode is not None:
            ids = self._encode(text)
            if self._spell(ids) == data:
                return ids
            # SentencePiece puts a space before a text, but not after a line end
            anchor, ids = self._encode("\n"), self._encode(f"\n{text}")
            n = len(anchor)
            if ids[:n] == anchor and self._spell(ids[n:]) == data:
                return ids[n:]
        return self._longest_first(data)

    def _spell(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.tokens[i] for i in ids)

    def _longest_first(self, data: bytes) -> list[int]:
        if not self._by_bytes:
            special = set(self.special_token_ids)
            self._by_bytes = {token: i for i, token in enumerate(self.tokens) if i not in special}
        ids, start = [], 0
        while start < len(data):
            lengths = range(min(len(data) - start, self._longest), 0, -1)
            token = next((data[start : start + n] for n in lengths if data[start : start + n] in self._by_bytes), b"")
            if not token:
                break  # the vocabulary cannot spell the rest
            ids.append(self._by_bytes[token])
            start += len(token)
        return ids


@final
class Grammar:
    """A description of the allowed texts. Immutable. ``start`` returns the state for one generation.

    Raises MissingPackageError if llguidance is not installed; GrammarError if the grammar is invalid or unsupported.
    """

    __slots__ = ("_compiled", "kind")

    def __init__(self, compiled: str, kind: str) -> None:
        """Make a grammar from llguidance's format. Use the ``from_…`` methods for other formats."""
        with _refusing(kind):
            failed, messages = _llguidance().LLMatcher.validate_grammar_with_warnings(compiled)
        if failed:
            raise GrammarError(f"the {kind} cannot be used: {messages[0].strip()}")
        self._compiled = compiled
        self.kind = kind

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, Any] | str, *, whitespace: bool = True) -> Self:
        """Allow JSON that matches a JSON schema. The schema ``{"type": "object"}`` allows any object.

        schema: a mapping, or JSON text.
        whitespace: between the elements, the model may write a space, or a line end and up to 20 spaces.

        So that a model finds the end, some texts that match the schema are not allowed: a property that is not among
        ``properties``, unless the schema has ``additionalProperties`` or combines objects (``allOf``, ``anyOf``,
        ``oneOf``, ``$ref``); an integer beyond 2^53 - 1, unless the schema has a limit. Strings without ``maxLength``,
        arrays without ``maxItems`` and the decimals of numbers without ``multipleOf`` have no end: ``max_tokens`` ends
        them.

        Raises GrammarError if the schema has a keyword that llguidance does not implement.
        """
        text = prepare(schema)
        options = {"whitespace_pattern": WHITESPACE} if whitespace else {"whitespace_flexible": False}
        with _refusing("JSON schema"):
            compiled = _llguidance().LLMatcher.grammar_from_json_schema(text, overrides=options)
        return cls(compiled, "JSON schema")

    @classmethod
    def from_regex(cls, pattern: str) -> Self:
        """Allow texts that match the whole ``pattern``, in the syntax of Rust's regex crate, without look-around.

        Character classes are those of Unicode: write ``[0-9]`` for ASCII digits.
        """
        return cls(_llguidance().LLMatcher.grammar_from_regex(_text("pattern", pattern)), "regular expression")

    @classmethod
    def from_lark(cls, ebnf: str) -> Self:
        """Allow texts of a context-free grammar in the syntax of Lark. The rule ``start`` is the whole text."""
        return cls(_llguidance().LLMatcher.grammar_from_lark(_text("grammar", ebnf)), "Lark grammar")

    @classmethod
    def from_gbnf(cls, gbnf: str) -> Self:
        """Allow texts of a grammar in the syntax of llama.cpp (GBNF). The rule ``root`` is the whole text."""
        module = _llguidance("llguidance.gbnf_to_lark")
        text = _text("grammar", gbnf)
        try:
            lark = module.gbnf_to_lark(text)
        except Exception as e:  # an unknown rule is a plain Exception in llguidance
            hint = None if "root" not in str(e) else "a GBNF grammar starts at the rule named root: root ::= …"
            raise GrammarError(f"the GBNF grammar cannot be used: {e}", hint=hint) from None
        return cls(_llguidance().LLMatcher.grammar_from_lark(lark), "GBNF grammar")

    def start(self, vocabulary: GrammarVocabulary) -> GrammarState:
        """The state at the start of a text. Raises GrammarError if the vocabulary lacks tokens of the grammar."""
        module = _llguidance()
        limits = module.LLParserLimits(verbose_errors=False)
        with _refusing(self.kind):
            matcher = module.LLMatcher(vocabulary._native, self._compiled, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(f"the {self.kind} cannot be used: {_first_line(matcher)}")
        return GrammarState(matcher, vocabulary.vocab_size, self.kind)

    def __repr__(self) -> str:
        return f"<Grammar {self.kind}>"


@final
class GrammarState:
    """The position of a text in a grammar. Make one for each sequence. Not thread-safe."""

    __slots__ = ("_bits", "_kind", "_matcher", "vocab_size")

    def __init__(self, matcher: Any, vocab_size: int, kind: str) -> None:
        self._matcher = matcher
        self._kind = kind
        self._bits = np.empty((vocab_size + 31) // 32, np.uint32)
        self.vocab_size = vocab_size

    @property
    def complete(self) -> bool:
        """True if the text is complete and no token except its end may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def may_end(self) -> bool:
        """True if the text is complete, whether or not more may follow."""
        return bool(self._matcher.is_accepting())

    def forbidden(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """True for each id that may not come next: bool (vocab_size,). Tokens that end a text are included."""
        bits = self._bits
        with _refusing(self._kind):
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()
        np.invert(bits, out=bits)
        # bit i of a little-endian word is token i, which is the order of unpackbits on its bytes
        as_bytes = bits.astype("<u4", copy=False).view(np.uint8)
        return np.unpackbits(as_bytes, count=self.vocab_size, bitorder="little").view(np.bool_)

    def accept(self, id: int) -> None:
        """Advance by a token. Raises GrammarError, and does not advance, if the token is not allowed here."""
        if not 0 <= id < self.vocab_size or not self._matcher.validate_tokens([id]):
            raise GrammarError(
                f"token {id} does not fit the {self._kind} here",
                hint="choose an id for which forbidden() is False",
            )
        self._matcher.consume_token(id)
        self._check()

    def rollback(self, n_tokens: int) -> None:
        """Go back by ``n_tokens`` tokens. Raises GrammarError if fewer were accepted."""
        if not self._matcher.rollback(n_tokens):
            raise GrammarError(f"{n_tokens} tokens cannot be taken back: {_first_line(self._matcher)}")

    def copy(self) -> GrammarState:
        """An independent state at the same position."""
        return GrammarState(self._matcher.deep_copy(), self.vocab_size, self._kind)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the {self._kind} failed: {_first_line(self._matcher)}")


def choose_grammar(
    json_schema: Mapping[str, Any] | str | None, regex: str | None, grammar: Grammar | Constraint | str | None
) -> Grammar | Constraint | None:
    """Return the grammar that one of these arguments describes; None if no argument is given.

    grammar: a GBNF grammar as text, a Grammar, or a Constraint. Raises GrammarError for several arguments, and for an
    invalid one.
    """
    given = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise GrammarError(f"{' and '.join(names)} are given; expected one of them")
    if json_schema is not None:
        return Grammar.from_json_schema(json_schema)
    if regex is not None:
        return Grammar.from_regex(regex)
    return Grammar.from_gbnf(grammar) if isinstance(grammar, str) else grammar


@contextlib.contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Raise GrammarError for what llguidance raises: a ValueError, or a PanicException, which is not an Exception."""
    try:
        yield
    except BaseException as e:
        if not isinstance(e, (ValueError, RuntimeError)) and type(e).__name__ != "PanicException":
            raise
        raise GrammarError(f"the {kind} cannot be used: {str(e)[:_MAX_REASON]}") from None


def _first_line(matcher: Any) -> str:
    lines = str(matcher.get_error()).strip().splitlines()
    return lines[0] if lines else str(matcher.stop_reason())


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"the {name} is {type(value).__name__}; expected str")
    check_length(name, value)
    with _refusing(name):
        value.encode()  # a lone surrogate has no bytes
    return value
