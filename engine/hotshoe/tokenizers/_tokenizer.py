"""Tokenizer: the interface to every kind of vocabulary."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from hotshoe.tokenizers._decoding import StreamDecoder, TokenDecoder, known_id
from hotshoe.tokenizers._lazy_bpe import LazyBPE, without_special
from hotshoe.tokenizers._longest import LongestMatch
from hotshoe_core.errors import InputTooLongError, InputTypeError
from hotshoe_core.errors.arguments import described, flag, integer, listed

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Affixes", "EncodedPair", "SpecialIds", "Tokenizer"]


class SpecialIds(NamedTuple):
    """Ids of the tokens with a role; None if the model has no such token.

    The ``fim_*`` tokens are for filling in the middle of a text ("fill in the middle").
    """

    bos: int | None = None
    """Begins a text."""
    eos: int | None = None
    """Ends a text."""
    cls: int | None = None
    """Begins a text (BERT)."""
    sep: int | None = None
    """Separates two texts, and ends a text (BERT)."""
    pad: int | None = None
    unk: int | None = None
    """Replaces text that the vocabulary cannot express."""
    mask: int | None = None
    eot: int | None = None
    """Ends a turn of a conversation."""
    eom: int | None = None
    """Ends a message that calls a tool."""
    fim_pre: int | None = None
    """Before the text that precedes the gap."""
    fim_suf: int | None = None
    """Before the text that follows the gap."""
    fim_mid: int | None = None
    """Before the text that fills the gap."""
    fim_pad: int | None = None
    fim_rep: int | None = None
    """Before the name of a repository."""
    fim_sep: int | None = None
    """Between files of a repository."""


class Affixes(NamedTuple):
    """Special tokens that a model expects around a text, and between two texts."""

    prefix: Sequence[int] = ()
    """Ids before a text."""
    suffix: Sequence[int] = ()
    """Ids after a text; after each one, if there are two."""
    separator: Sequence[int] = ()
    """Ids between two texts, after the suffix of the first one."""
    second_type: int = 0
    """The token type of the second text and its suffix. All other tokens have type 0."""


_NO_AFFIXES = Affixes()


class EncodedPair(NamedTuple):
    """Two texts as one sequence."""

    ids: list[int]
    token_types: list[int]
    """The type of each id."""


@final
class Tokenizer:
    """Text to token ids and back. Immutable and thread-safe.

    The name of a special token in a text ("[SEP]") becomes that token, as in transformers and sentence-transformers, so
    that a text gives the same ids everywhere. Pass ``parse_special=False`` for untrusted texts: they are then split as
    ordinary characters, except user-defined tokens (such as a run of spaces).

    A lone surrogate in a text (half a character, not valid in UTF-8) is read as U+FFFD.
    """

    __slots__ = (
        *("_affixes", "_expand", "_hidden", "_ordinary", "_parsing", "_decoder", "_tokens"),
        *("special", "stop_ids"),
    )

    def __init__(
        self,
        parsing: tokenizers.Tokenizer | LazyBPE | LongestMatch,
        tokens: Sequence[str],
        special: SpecialIds,
        decoder: TokenDecoder,
        *,
        hidden: Collection[int],
        stop_ids: Collection[int] = (),
        affixes: Affixes = _NO_AFFIXES,
        expand: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """Make a tokenizer. ``build`` functions call this; use ``load_tokenizer`` otherwise.

        parsing: what splits texts: a tokenizer of the ``tokenizers`` package, or an object that stands in for one.
        tokens: the tokens by id.
        special: ids of the tokens with a role.
        decoder: the bytes that each token adds to a text.
        hidden: ids that ``decode`` skips.
        stop_ids: ids that end a generation.
        affixes: special tokens that ``add_special`` puts around a text, and between two.
        expand: maps ids of ``parsing`` that the vocabulary does not have to ids that replace them.
        """
        self._parsing = parsing
        self._ordinary: tuple[object, tokenizers.Tokenizer | LongestMatch] | None = None
        self._tokens = tokens
        self._decoder = decoder
        self._hidden = frozenset(hidden)
        self._affixes = affixes
        self._expand = expand
        self.special = special
        self.stop_ids = frozenset(stop_ids)

    @property
    def vocab_size(self) -> int:
        """The number of ids: one more than the largest."""
        return len(self._tokens)

    @property
    def bos(self) -> int | None:
        return self.special.bos

    @property
    def eos(self) -> int | None:
        return self.special.eos

    @property
    def cls(self) -> int | None:
        return self.special.cls

    @property
    def sep(self) -> int | None:
        return self.special.sep

    @property
    def pad(self) -> int | None:
        return self.special.pad

    @property
    def unk(self) -> int | None:
        return self.special.unk

    @property
    def mask(self) -> int | None:
        return self.special.mask

    @property
    def eot(self) -> int | None:
        return self.special.eot

    def token(self, id: int) -> str:
        """The token with this id, as Hugging Face writes it ("##ing").

        Raises IndexError if the id is outside the vocabulary, InputTypeError if it is not an integer.
        """
        return self._tokens[known_id(id, len(self._tokens))]

    def encode(
        self, text: str, add_special: bool = True, *, parse_special: bool = True, max_length: int | None = None
    ) -> list[int]:
        """Encode a text to ids.

        add_special: add the special tokens that the model expects around a text.
        parse_special: the name of a special token in the text becomes that token.
        max_length: truncate the text so that the result has at most this many ids, including special tokens.

        Raises InputTypeError if ``text`` is not a string; InputTooLongError if ``max_length`` is less than the number
        of special tokens.
        """
        if not isinstance(text, str):
            raise InputTypeError(f"text is {described(text)}; expected str")
        return self._encode([text], add_special, parse_special, max_length)[0]

    def encode_batch(
        self,
        texts: Iterable[str],
        add_special: bool = True,
        *,
        parse_special: bool = True,
        max_length: int | None = None,
    ) -> list[list[int]]:
        """Encode several texts on several threads. There is no padding: the lists differ in length."""
        batch = listed("texts", texts, "an iterable of str (for one text, use encode)", InputTypeError)
        for i, text in enumerate(batch):
            if not isinstance(text, str):
                raise InputTypeError(f"texts[{i}] is {described(text)}; expected str")
        return self._encode(batch, add_special, parse_special, max_length)

    def encode_pair(self, a: str, b: str, *, parse_special: bool = True, max_length: int | None = None) -> EncodedPair:
        """Encode a pair of texts to ids and token types, with the special tokens that the model expects.

        BERT: [CLS] a [SEP] b [SEP], with type 0 up to the first [SEP] and type 1 after it. XLM-RoBERTa:
        <s> a </s></s> b </s>, all with type 0. Other models: the token that begins a text, if any, comes first, and the
        token that ends a text, if any, after each text; for example a <eos> b <eos> in an embedding model made from a
        decoder. If the file sets ``tokenizer.ggml.add_sep_token``, the separator is before b.

        max_length: the maximum number of ids. Ids are removed from the longer text, and from both in turn once they are
        equally long: "longest_first" of transformers, as in sentence-transformers' CrossEncoder.

        Raises InputTypeError if a text is not a string; InputTooLongError if ``max_length`` is less than the number of
        special tokens.
        """
        return self.encode_pairs([(a, b)], parse_special=parse_special, max_length=max_length)[0]

    def encode_pairs(
        self, pairs: Iterable[tuple[str, str]], *, parse_special: bool = True, max_length: int | None = None
    ) -> list[EncodedPair]:
        """Encode several pairs on several threads. There is no padding: the lists differ in length."""
        texts: list[str] = []
        for i, pair in enumerate(listed("pairs", pairs, "an iterable of pairs of texts", InputTypeError)):
            two = listed(f"pairs[{i}]", pair, "two texts", InputTypeError)
            if len(two) != 2 or not all(isinstance(text, str) for text in two):
                raise InputTypeError(f"pairs[{i}] is {described(pair)}; expected two texts")
            texts += two
        before, after, between, second_type = self._affixes
        room = _room(max_length, len(before) + 2 * len(after) + len(between), "of a pair")
        ids = self._encode(texts, False, parse_special, None)
        encoded: list[EncodedPair] = []
        for a, b in zip(ids[::2], ids[1::2], strict=True):
            if room is not None:
                n_a, n_b = _truncated_lengths(len(a), len(b), room)
                a, b = a[:n_a], b[:n_b]
            first, second = [*before, *a, *after, *between], [*b, *after]
            encoded.append(EncodedPair(first + second, [0] * len(first) + [second_type] * len(second)))
        return encoded

    def count(self, text: str, add_special: bool = True, *, parse_special: bool = True) -> int:
        """The number of ids of a text: ``len(encode(text))``."""
        return len(self.encode(text, add_special, parse_special=parse_special))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Decode ids to text.

        skip_special: leave out control, unknown and unused tokens.

        An uncased vocabulary does not keep case and accents, so the result differs from the text that was encoded.

        Raises IndexError if an id is outside the vocabulary, InputTypeError if it is not an integer.
        """
        stream = self.stream(skip_special)
        given = listed("ids", ids, "an iterable of token ids", InputTypeError)
        return "".join([*map(stream.add, given), stream.flush()])

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """Make a decoder for one id after another. Its results, joined, are the same text as ``decode`` returns."""
        hidden = self._hidden if flag("skip_special", skip_special) else frozenset[int]()
        return StreamDecoder(self._decoder, len(self._tokens), hidden)

    def piece(self, id: int) -> bytes:
        """The bytes that this token adds after another token; possibly a part of a character. Raises as ``token``."""
        self.token(id)
        return self._decoder.next(id)

    def _encode(
        self, texts: list[str], add_special: bool, parse_special: bool, max_length: int | None
    ) -> list[list[int]]:
        affixes = self._affixes if flag("add_special", add_special) else _NO_AFFIXES
        parse_special = flag("parse_special", parse_special)
        prefix, suffix = list(affixes.prefix), list(affixes.suffix)
        room = _room(max_length, len(prefix) + len(suffix), "around a text")
        try:
            encodings = self._inner(texts, parse_special).encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # the package raises this if a string is not valid UTF-8
            texts = [_without_surrogates(t) for t in texts]
            encodings = self._inner(texts, parse_special).encode_batch_fast(texts, add_special_tokens=False)
        return [prefix + self._expand_ids(e.ids)[:room] + suffix for e in encodings]

    def _expand_ids(self, ids: list[int]) -> list[int]:
        if self._expand is None:
            return ids
        return [known for i in ids for known in self._expand.get(i, (i,))]

    def _inner(self, texts: Sequence[str], parse_special: bool) -> tokenizers.Tokenizer | LongestMatch:
        """The tokenizer to use for these texts. Other threads may use it, so it is never changed."""
        parsing = self._parsing
        if isinstance(parsing, LazyBPE):
            parsing = parsing.made_for(texts, parse_special)
        if parse_special:
            return parsing
        ordinary = self._ordinary
        if ordinary is None or ordinary[0] is not parsing:
            plain = parsing.without_special() if isinstance(parsing, LongestMatch) else without_special(parsing)
            ordinary = self._ordinary = (parsing, plain)
        return ordinary[1]

    def __repr__(self) -> str:
        own = {LazyBPE: "BPE", LongestMatch: "longest match"}
        kind = own.get(type(self._parsing)) or type(self._parsing.model).__name__  # type: ignore[union-attr]
        return f"Tokenizer({kind}, {self.vocab_size} tokens)"


def _room(max_length: int | None, n_special: int, where: str) -> int | None:
    """The ids that ``max_length`` leaves for texts; None if it does. Raises InputTooLongError if that is below 0."""
    if max_length is None:
        return None
    room = integer("max_length", max_length, 0, InputTypeError) - n_special
    if room < 0:
        raise InputTooLongError(
            f"max_length is {max_length}; expected at least {n_special}, the number of special tokens {where}"
        )
    return room


def _without_surrogates(text: str) -> str:
    # a pair of surrogates becomes the character that it encodes, a lone one U+FFFD
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _truncated_lengths(a: int, b: int, room: int) -> tuple[int, int]:
    """The lengths of two texts of ``a`` and ``b`` ids after truncation to ``room`` ids, the longer one first."""
    if a + b <= room:
        return a, b
    shorter = min(a, b, room // 2)
    return (room - shorter, shorter) if a > b else (shorter, room - shorter)
