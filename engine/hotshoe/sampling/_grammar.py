"""Grammars: which tokens may come next, so that the text fits a JSON schema, a regular expression or a grammar.

    vocabulary = GrammarVocabulary.of(tokenizer)                 # once for a model: it reads every token
    grammar = Grammar.from_json_schema({"type": "object"})       # checked when made
    sampler = Sampler(params, vocab_size, grammar.start(vocabulary))

The work is done by the package llguidance, an optional dependency: ``pip install hotshoe[grammar]``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hotshoe_core.errors import GrammarError, MissingPackageError

if TYPE_CHECKING:
    from typing import Self

    from hotshoe.tokenizers import Tokenizer

__all__ = ["Grammar", "GrammarState", "GrammarVocabulary"]


def _llguidance(module: str = "llguidance") -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name != "llguidance":
            raise
        raise MissingPackageError(
            "grammars need the package llguidance, which is not installed", hint="pip install 'hotshoe[grammar]'"
        ) from None


@final
class GrammarVocabulary:
    """A vocabulary as grammars see it: bytes. Make one for a model and keep it; may be used by several threads."""

    __slots__ = ("_native", "vocab_size")

    def __init__(
        self,
        tokens: Sequence[bytes],
        stop_ids: Collection[int],
        special_ids: Collection[int] = (),
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """``tokens``: what each id adds to a text. ``stop_ids`` end a text; ``special_ids`` are no part of one.

        ``encode`` says how the model's tokenizer cuts a text. Where a grammar leaves no choice of characters, only
        the tokens it would choose are allowed: others would be new to the model. None for the longest tokens first.
        """
        if not stop_ids:
            raise GrammarError("the vocabulary has no token that ends a text; a grammar could never be left")
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
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The vocabulary of a tokenizer. Raises GrammarError if no token of it ends a text."""
        ids = range(tokenizer.vocab_size)
        # special: what a reader is not shown, though it has a name
        special = [i for i in ids if not tokenizer.decode([i]) and tokenizer.decode([i], skip_special=False)]
        stops = tokenizer.stop_ids or {i for i in (tokenizer.eos,) if i is not None}

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special=False, parse_special=False)

        return cls([tokenizer.piece(i) for i in ids], stops, special, encode)


class _Wrapped:
    """The names that LLTokenizer looks for."""

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
            # SentencePiece puts a space before a text; after a line end it does not
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
        ids, at = [], 0
        while at < len(data):
            lengths = range(min(len(data) - at, self._longest), 0, -1)
            token = next((data[at : at + n] for n in lengths if data[at : at + n] in self._by_bytes), b"")
            if not token:
                break  # the vocabulary cannot spell it
            ids.append(self._by_bytes[token])
            at += len(token)
        return ids


@final
class Grammar:
    """What a text has to look like. Immutable; ``start`` gives the state for one generation.

    Raises MissingPackageError without llguidance, GrammarError for a grammar that it cannot use.
    """

    __slots__ = ("_compiled", "kind")

    def __init__(self, compiled: str, kind: str) -> None:
        """For llguidance's own format; the ``from_…`` methods make it."""
        failed, messages = _llguidance().LLMatcher.validate_grammar_with_warnings(compiled)
        if failed:
            raise GrammarError(f"the {kind} cannot be used: {messages[0].strip()}")
        self._compiled = compiled
        self.kind = kind

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, Any] | str, *, whitespace: bool = True) -> Self:
        """JSON that fits ``schema``, a mapping or JSON text. ``{"type": "object"}`` allows any object.

        whitespace: whether the model may put blanks and line ends between the elements.
        A keyword of JSON Schema that llguidance does not implement is a GrammarError, not ignored.
        """
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else dict(schema)
            text = json.dumps(parsed)
        except (TypeError, ValueError) as e:
            raise GrammarError(f"the JSON schema is not JSON: {e}") from None
        if not isinstance(parsed, dict):
            raise GrammarError(f"the JSON schema is {text[:40]}; expected an object")
        options = {"whitespace_flexible": whitespace}
        return cls(_llguidance().LLMatcher.grammar_from_json_schema(text, overrides=options), "JSON schema")

    @classmethod
    def from_regex(cls, pattern: str) -> Self:
        """Text that matches ``pattern`` as a whole, in the syntax of Rust's regex, without look-around.

        Classes of characters are Unicode's: for plain digits write ``[0-9]``.
        """
        return cls(_llguidance().LLMatcher.grammar_from_regex(_text("pattern", pattern)), "regular expression")

    @classmethod
    def from_lark(cls, ebnf: str) -> Self:
        """A context-free grammar in Lark's notation; the rule ``start`` is the text."""
        return cls(_llguidance().LLMatcher.grammar_from_lark(_text("grammar", ebnf)), "Lark grammar")

    @classmethod
    def from_gbnf(cls, gbnf: str) -> Self:
        """A grammar in llama.cpp's notation; the rule ``root`` is the text."""
        module = _llguidance("llguidance.gbnf_to_lark")
        try:
            lark = module.gbnf_to_lark(_text("grammar", gbnf))
        except module.GbnfToLarkError as e:
            raise GrammarError(f"the GBNF grammar cannot be used: {e}") from None
        return cls(_llguidance().LLMatcher.grammar_from_lark(lark), "GBNF grammar")

    def start(self, vocabulary: GrammarVocabulary) -> GrammarState:
        """The state at the beginning of a text. Raises GrammarError if it names tokens the vocabulary lacks."""
        module = _llguidance()
        limits = module.LLParserLimits(verbose_errors=False)
        matcher = module.LLMatcher(vocabulary._native, self._compiled, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(f"the {self.kind} cannot be used: {_first_line(matcher)}")
        return GrammarState(matcher, vocabulary.vocab_size, self.kind)

    def __repr__(self) -> str:
        return f"<Grammar {self.kind}>"


@final
class GrammarState:
    """Where a text stands in its grammar. One for each sequence; not for several threads."""

    __slots__ = ("_bits", "_kind", "_matcher", "vocab_size")

    def __init__(self, matcher: Any, vocab_size: int, kind: str) -> None:
        self._matcher = matcher
        self._kind = kind
        self._bits = np.empty((vocab_size + 31) // 32, np.uint32)
        self.vocab_size = vocab_size

    @property
    def complete(self) -> bool:
        """Whether the text is whole and nothing but its end may follow."""
        return bool(self._matcher.is_stopped())

    @property
    def may_end(self) -> bool:
        """Whether the text is whole as it stands."""
        return bool(self._matcher.is_accepting())

    def forbidden(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """True for the ids that may not come next: bool (vocab_size,). Tokens that end a text count as such."""
        bits = self._bits
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()
        np.invert(bits, out=bits)
        # bit i of a little-endian word is token i, so byte by byte it is the order unpackbits gives
        as_bytes = bits.astype("<u4", copy=False).view(np.uint8)
        return np.unpackbits(as_bytes, count=self.vocab_size, bitorder="little").view(np.bool_)

    def accept(self, id: int) -> None:
        """This token came. Raises GrammarError, and stays where it was, if it may not come here."""
        if not 0 <= id < self.vocab_size or not self._matcher.validate_tokens([id]):
            raise GrammarError(
                f"token {id} does not fit the {self._kind} here",
                hint="choose among the ids that forbidden() leaves",
            )
        self._matcher.consume_token(id)
        self._check()

    def rollback(self, n_tokens: int) -> None:
        """Take back the last tokens. Raises GrammarError if there are fewer."""
        if not self._matcher.rollback(n_tokens):
            raise GrammarError(f"{n_tokens} tokens cannot be taken back: {_first_line(self._matcher)}")

    def copy(self) -> GrammarState:
        """A state of its own at the same place."""
        return GrammarState(self._matcher.deep_copy(), self.vocab_size, self._kind)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the {self._kind} failed: {_first_line(self._matcher)}")


def _first_line(matcher: Any) -> str:
    lines = str(matcher.get_error()).strip().splitlines()
    return lines[0] if lines else str(matcher.stop_reason())


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise GrammarError(f"the {name} is {type(value).__name__}; expected str")
    return value
