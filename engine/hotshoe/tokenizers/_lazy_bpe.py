"""LazyBPE: a BPE model that contains only the tokens and merges that the texts so far can need.

The ``tokenizers`` package needs 0.2 to 1.5 s to build tables of 150,000 to 260,000 tokens and their merges, and the
first token of a model would wait for that. But BPE processes one word at a time, and only uses tokens and merges that
are parts of the word. So a model with the parts of a prompt's words gives the same ids, and is built in milliseconds.
For long texts the complete model is built.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import models

    from hotshoe.tokenizers._strings import TokenIds

__all__ = ["LazyBPE", "Merges", "without_special"]

MAX_CHARACTERS = 20_000  # in the texts of one call
MAX_PARTS = 60_000  # substrings of the new words in a call: each is looked up

Merge = tuple[str, str]


class Merges(Protocol):
    """All merges of a vocabulary: two tokens that BPE joins to a third one."""

    def find(self, pairs: Sequence[Merge], ids: Mapping[str, int]) -> dict[Merge, Any]:
        """Those of ``pairs`` that are merges, and their ranks: of any type, and the smallest is merged first.

        ids: the ids of the parts and of what the pairs make.
        """

    def all(self) -> list[Merge]:
        """All merges of two tokens, in the order of their ranks."""


@final
class LazyBPE:
    """Builds tokenizers that are correct for given texts. Thread-safe."""

    def __init__(
        self,
        ids: TokenIds,
        merges: Merges,
        always: Collection[str],
        *,
        make_model: Callable[[dict[str, int], list[Merge]], models.BPE],
        wrap: Callable[[models.Model], tokenizers.Tokenizer],
        spell: Callable[[str], Iterable[str]],
    ) -> None:
        """Keep what is needed to build models.

        ids: all tokens and their ids.
        always: tokens that every model contains.
        make_model: makes a model from tokens and merges.
        wrap: makes a tokenizer from a model.
        spell: the words of a piece of text that ``wrap``'s tokenizer does not split, in the alphabet that tokens are
            written in. No token contains the end of a word and the start of the next one.
        """
        from tokenizers import models

        self._ids = ids
        self._merges: Merges | None = merges
        self._make_model, self._wrap, self._spell = make_model, wrap, spell
        # These give every word the id 0. Without special tokens, a text has other words, so there are two.
        self._splitter = wrap(models.WordLevel({"": 0}, ""))
        self._plain_splitter = without_special(self._splitter)
        self._words: set[str] = set()
        self._n_made, self._most_made = 0, len(ids)  # tokens and merges in all models so far
        self._parts: dict[str, int] = {}  # parts of these words that are tokens
        self._tokens = ids.find(list(always))
        self._used: dict[Merge, Any] = {}  # merges and their ranks
        self._lock = threading.Lock()
        self._made = wrap(make_model(self._tokens, []))

    def made_for(self, texts: Sequence[str], parse_special: bool) -> tokenizers.Tokenizer:
        """Return a tokenizer that is correct for these texts. It is never changed later: other texts get new ones."""
        if self._merges is None:
            return self._made
        if sum(map(len, texts)) > MAX_CHARACTERS:
            return self._make_whole()
        splitter = self._splitter if parse_special else self._plain_splitter
        pieces: set[str] = set()
        for text in texts:
            encoding = splitter.encode(text, add_special_tokens=False)
            pieces.update(text[a:b] for id, (a, b) in zip(encoding.ids, encoding.offsets) if id == 0)
        words = {word for piece in pieces for word in self._spell(piece)}
        with self._lock:
            words -= self._words
            if not words or self._merges is None:
                return self._made
            if sum(len(word) * (len(word) + 1) // 2 for word in words) <= MAX_PARTS:
                tokens, parts, used = self._learned(words, self._merges)
                # making many models of parts must not take longer than the whole one
                self._n_made += len(tokens) + len(used)
                if self._n_made <= self._most_made:
                    made = self._wrap(self._make_model(tokens, sorted(used, key=used.__getitem__)))
                    # all at the end: an interrupt before this changes nothing
                    self._tokens, self._parts, self._used = tokens, parts, used
                    self._words = self._words | words
                    self._made = made
                    return made
        return self._make_whole()

    def _learned(self, words: set[str], merges: Merges) -> tuple[dict[str, int], dict[str, int], dict[Merge, Any]]:
        """The tokens, the parts and the merges, with those of further words."""
        spelled = {word[a:b] for word in words for a in range(len(word)) for b in range(a + 1, len(word) + 1)}
        new = self._ids.find(list(spelled - self._parts.keys()))
        parts = self._parts | new
        cuts = ((token[:i], token[i:]) for token in new for i in range(1, len(token)))
        found = merges.find([(a, b) for a, b in cuts if a in parts and b in parts], parts)
        return self._tokens | new, parts, self._used | found

    def _make_whole(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._merges is not None:
                self._made = self._wrap(self._make_model(self._ids.all(), self._merges.all()))
                self._merges = None  # last, because other threads read it without the lock
            return self._made


def without_special(parsing: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make a copy of a tokenizer that does not search for special tokens in a text."""
    import tokenizers

    other = tokenizers.Tokenizer(parsing.model)
    for part in ("normalizer", "pre_tokenizer"):
        if getattr(parsing, part) is not None:
            setattr(other, part, getattr(parsing, part))
    added = parsing.get_added_tokens_decoder().values()
    other.add_tokens([token for token in added if not token.special])
    return other
