"""The one class the rest of hotshoe sees, whatever kind of vocabulary is behind it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from hotshoe.tokenizers._decoding import StreamDecoder, TokenDecoder, known_id
from hotshoe.tokenizers._lazy_bpe import LazyBPE, without_special
from hotshoe_core.errors import InputTooLongError, InputTypeError
from hotshoe_core.errors.arguments import described, flag, integer, listed

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Around", "EncodedPair", "SpecialIds", "Tokenizer"]


class SpecialIds(NamedTuple):
    """Ids of the tokens with a role; None where the model has none for it.

    ``eot`` ends a turn of a conversation, ``eom`` a message that calls a tool; ``fim_*`` mark the parts of a text
    (before the gap, after it, what belongs in it) and of a repository when a model fills in the middle.
    """

    bos: int | None = None
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    pad: int | None = None
    unk: int | None = None
    mask: int | None = None
    eot: int | None = None
    eom: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_pad: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None


class Around(NamedTuple):
    """Ids that a model expects before and after a text and, of two, after the first one's ``suffix``.

    ``second_type`` is the token type of the second of two texts and of its suffix; that of all else is 0.
    """

    prefix: Sequence[int] = ()
    suffix: Sequence[int] = ()
    separator: Sequence[int] = ()
    second_type: int = 0


_NOTHING = Around()


class EncodedPair(NamedTuple):
    """Two texts as one sequence; ``token_types`` has as many elements as ``ids``."""

    ids: list[int]
    token_types: list[int]


@final
class Tokenizer:
    """Text to token ids and back. Immutable; may be used from several threads at once.

    Special tokens *written in a text* ("[SEP]") become that token, as in transformers and sentence-transformers,
    so that the same text gives the same ids everywhere. Pass ``parse_special=False`` for a text that must not be
    able to do that: it is then split as ordinary characters, but for tokens the model's maker has defined for
    everyday use (such as a run of spaces).

    A lone surrogate in a text (half a character, not valid in UTF-8) is read as U+FFFD.
    """

    __slots__ = (
        *("_around", "_expand", "_hidden", "_ordinary", "_parsing", "_decoder", "_tokens"),
        *("special", "stop_ids"),
    )

    def __init__(
        self,
        parsing: tokenizers.Tokenizer | LazyBPE,
        tokens: Sequence[str],
        special: SpecialIds,
        decoder: TokenDecoder,
        *,
        hidden: Collection[int],
        stop_ids: Collection[int] = (),
        around: Around = _NOTHING,
        expand: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        """``tokens`` is by id, ``pieces`` says what each adds to a text, but for those ``hidden`` from readers.

        ``stop_ids`` end a generation. ``around`` is what ``add_special`` puts around a text, and between two.
        ``expand`` maps ids that ``parsing`` knows and the vocabulary does not to ids that stand for them.
        """
        self._parsing = parsing
        self._ordinary: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer] | None = None
        self._tokens = tokens
        self._decoder = decoder
        self._hidden = frozenset(hidden)
        self._around = around
        self._expand = expand
        self.special = special
        self.stop_ids = frozenset(stop_ids)

    @property
    def vocab_size(self) -> int:
        """Number of ids: one more than the largest."""
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
        """The token with this id as Hugging Face writes it ("##ing").

        Raises IndexError outside the vocabulary, InputTypeError for what is no integer.
        """
        return self._tokens[known_id(id, len(self._tokens))]

    def encode(
        self, text: str, add_special: bool = True, *, parse_special: bool = True, max_length: int | None = None
    ) -> list[int]:
        """Ids of ``text``; with ``add_special``, between the tokens the model expects around a text.

        ``max_length`` cuts the text so that the result, those tokens included, is not longer.
        Raises InputTypeError if ``text`` is not a string, InputTooLongError if ``max_length`` leaves no room for those
        tokens.
        """
        if not isinstance(text, str):
            raise InputTypeError(f"text is {described(text)}; expected str (for a list of texts, use encode_batch)")
        return self._encode([text], add_special, parse_special, max_length)[0]

    def encode_batch(
        self,
        texts: Iterable[str],
        add_special: bool = True,
        *,
        parse_special: bool = True,
        max_length: int | None = None,
    ) -> list[list[int]]:
        """``encode`` of each text, on several threads. No padding: every list has its own length."""
        batch = listed("texts", texts, "an iterable of str (for one text, use encode)", InputTypeError)
        for i, text in enumerate(batch):
            if not isinstance(text, str):
                raise InputTypeError(f"texts[{i}] is {described(text)}; expected str")
        return self._encode(batch, add_special, parse_special, max_length)

    def encode_pair(self, a: str, b: str, *, parse_special: bool = True, max_length: int | None = None) -> EncodedPair:
        """Ids of two texts as the model expects a pair, with special tokens, and the type of each.

        BERT has [CLS] a [SEP] b [SEP], with type 0 up to the first [SEP] and 1 after it; XLM-RoBERTa has
        <s> a </s></s> b </s>, all of type 0. Any other model has the token that begins a text once, and after each
        text the one that ends it, if it has them: a decoder made for embeddings has a <eos> b <eos>. A file with
        ``tokenizer.ggml.add_sep_token`` has its separator before b.

        ``max_length`` cuts the longer of the two, and both where they become equally long, so that the result is not
        longer: transformers' "longest_first", which sentence-transformers' CrossEncoder uses.
        Raises InputTypeError for what is not a string, InputTooLongError if ``max_length`` leaves no room for the
        special tokens.
        """
        return self.encode_pairs([(a, b)], parse_special=parse_special, max_length=max_length)[0]

    def encode_pairs(
        self, pairs: Iterable[tuple[str, str]], *, parse_special: bool = True, max_length: int | None = None
    ) -> list[EncodedPair]:
        """``encode_pair`` of each, on several threads. No padding: every list has its own length."""
        texts: list[str] = []
        for i, pair in enumerate(listed("pairs", pairs, "an iterable of pairs of texts", InputTypeError)):
            two = listed(f"pairs[{i}]", pair, "two texts", InputTypeError)
            if len(two) != 2 or not all(isinstance(text, str) for text in two):
                raise InputTypeError(f"pairs[{i}] is {described(pair)}; expected two texts")
            texts += two
        before, after, between, second_type = self._around
        ends = len(before) + 2 * len(after) + len(between)
        room = None if max_length is None else integer("max_length", max_length, 0, InputTypeError) - ends
        if room is not None and room < 0:
            raise InputTooLongError(
                f"max_length is {max_length}; expected at least {ends}, the number of special tokens around two texts"
            )
        ids = self._encode(texts, False, parse_special, None)
        made: list[EncodedPair] = []
        for a, b in zip(ids[::2], ids[1::2], strict=True):
            if room is not None:
                n_a, n_b = _share(len(a), len(b), room)
                a, b = a[:n_a], b[:n_b]
            first, second = [*before, *a, *after, *between], [*b, *after]
            made.append(EncodedPair(first + second, [0] * len(first) + [second_type] * len(second)))
        return made

    def count(self, text: str, add_special: bool = True, *, parse_special: bool = True) -> int:
        """``len(encode(text))``."""
        return len(self.encode(text, add_special, parse_special=parse_special))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of these ids. Raises IndexError for an id outside the vocabulary.

        For an uncased vocabulary this is not the text that was encoded: case and accents are gone.
        """
        stream = self.stream(skip_special)
        given = listed("ids", ids, "an iterable of token ids", InputTypeError)
        return "".join([*map(stream.add, given), stream.flush()])

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder that is given one id after another; what it gives back joins to what ``decode`` gives."""
        hidden = self._hidden if flag("skip_special", skip_special) else frozenset[int]()
        return StreamDecoder(self._decoder, len(self._tokens), hidden)

    def piece(self, id: int) -> bytes:
        """What this token adds to a text that has begun, maybe part of a character. Raises IndexError as ``token``."""
        self.token(id)
        return self._decoder.next(id)

    def _encode(
        self, texts: list[str], add_special: bool, parse_special: bool, max_length: int | None
    ) -> list[list[int]]:
        around = self._around if flag("add_special", add_special) else _NOTHING
        parse_special = flag("parse_special", parse_special)
        prefix, suffix = list(around.prefix), list(around.suffix)
        room = None
        if max_length is not None:
            room = integer("max_length", max_length, 0, InputTypeError) - len(prefix) - len(suffix)
        if room is not None and room < 0:
            raise InputTooLongError(
                f"max_length is {max_length}; expected at least {len(prefix) + len(suffix)}, "
                "the number of special tokens around a text"
            )
        try:
            encodings = self._inner(texts, parse_special).encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # how the package says that a string is not valid UTF-8
            texts = [_mend(t) for t in texts]
            encodings = self._inner(texts, parse_special).encode_batch_fast(texts, add_special_tokens=False)
        return [prefix + self._expanded(e.ids)[:room] + suffix for e in encodings]

    def _expanded(self, ids: list[int]) -> list[int]:
        if self._expand is None:
            return ids
        return [known for i in ids for known in self._expand.get(i, (i,))]

    def _inner(self, texts: Sequence[str], parse_special: bool) -> tokenizers.Tokenizer:
        """What is right for these texts. Other threads may be using it, so it is never changed."""
        parsing = self._parsing
        if isinstance(parsing, LazyBPE):
            parsing = parsing.made_for(texts, parse_special)
        if parse_special:
            return parsing
        ordinary = self._ordinary
        if ordinary is None or ordinary[0] is not parsing:
            ordinary = self._ordinary = (parsing, without_special(parsing))
        return ordinary[1]

    def __repr__(self) -> str:
        kind = "BPE" if isinstance(self._parsing, LazyBPE) else type(self._parsing.model).__name__
        return f"Tokenizer({kind}, {self.vocab_size} tokens)"


def _mend(text: str) -> str:
    # pairs of surrogates become the character they stand for, lone ones U+FFFD
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _share(a: int, b: int, room: int) -> tuple[int, int]:
    """How long two texts may be that have room together: the longer one gives way until it is the shorter one."""
    if a + b <= room:
        return a, b
    least = min(a, b, room // 2)
    return (room - least, least) if a > b else (least, room - least)
