"""LazyBPE: a BPE model that contains only the tokens and merges that the texts so far can need.

The ``tokenizers`` package needs 0.2 to 0.3 s to build tables of 150,000 tokens and merges, and the first token of a
model would wait for that. But BPE processes one word at a time, and only uses tokens and merges that are parts of the
word. So a model with the parts of a prompt's words gives the same ids, and is built in milliseconds. For long texts the
complete model is built.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import models

__all__ = ["LazyBPE", "without_special"]

MAX_CHARACTERS = 20_000  # in the texts of one call
MAX_WORDS = 1_000  # in all texts so far; each call with new words rebuilds the model
MAX_WORD_LENGTH = 64  # in symbols; the number of parts of a word grows with its square


@final
class LazyBPE:
    """Builds tokenizers that are correct for given texts. Thread-safe."""

    def __init__(
        self,
        ids: Mapping[str, int],
        merges: Sequence[str],
        always: Collection[str],
        *,
        first: int | None,
        make_model: Callable[[dict[str, int], list[tuple[str, str]]], models.BPE],
        wrap: Callable[[models.Model], tokenizers.Tokenizer],
        symbols: Callable[[str], str],
    ) -> None:
        """Keep what is needed to build models.

        ids: all tokens and their ids.
        merges: "a b", best first; each makes a token. A merge whose parts are not tokens never applies.
        always: tokens that every model contains.
        first: the id of the token that the first merge makes, if each next merge makes the next token; else None.
        make_model: makes a model from tokens and merges.
        wrap: makes a tokenizer from a model.
        symbols: converts a piece of text to the alphabet that tokens are written in.
        """
        from tokenizers import models

        self._ids = ids
        self._merges = merges
        self._first = first
        # takes 40 ms and 10 MB, so it is made only if ranks do not follow from ids
        self._ranks = dict(zip(merges, range(len(merges)))) if first is None else {}
        self._make_model, self._wrap, self._symbols = make_model, wrap, symbols
        # These give every word the id 0. Without special tokens, a text has other words, so there are two.
        self._splitter = wrap(models.WordLevel({"": 0}, ""))
        self._plain_splitter = without_special(self._splitter)
        self._words: set[str] = set()
        self._parts: set[str] = set()  # parts of these words that are tokens
        self._tokens = {token: ids[token] for token in always}
        self._used: dict[int, tuple[str, str]] = {}  # merges by rank
        self._lock = threading.Lock()
        self._whole = False
        self._made = wrap(make_model(self._tokens, []))

    def made_for(self, texts: Sequence[str], parse_special: bool) -> tokenizers.Tokenizer:
        """Return a tokenizer that is correct for these texts. It is never changed later: other texts get new ones."""
        if self._whole:
            return self._made
        if sum(map(len, texts)) > MAX_CHARACTERS:
            return self._make_whole()
        splitter = self._splitter if parse_special else self._plain_splitter
        words: set[str] = set()
        for text in texts:
            encoding = splitter.encode(text, add_special_tokens=False)
            words.update(text[a:b] for id, (a, b) in zip(encoding.ids, encoding.offsets) if id == 0)
        with self._lock:
            new = words - self._words
            if not new or self._whole:
                return self._made
            spelled = [self._symbols(word) for word in new]
            if len(self._words) + len(new) <= MAX_WORDS and max(map(len, spelled)) <= MAX_WORD_LENGTH:
                for word in spelled:
                    self._learn(word)
                self._words |= new
                self._made = self._wrap(self._make_model(self._tokens, [self._used[r] for r in sorted(self._used)]))
                return self._made
        return self._make_whole()

    def _learn(self, word: str) -> None:
        """Add all parts of the word that are tokens, and all merges that make one of them."""
        for start in range(len(word)):
            for stop in range(start + 1, len(word) + 1):
                part = word[start:stop]
                if part in self._ids and part not in self._parts:
                    self._parts.add(part)
                    self._tokens[part] = self._ids[part]
                    for i in range(1, len(part)):
                        a, b = part[:i], part[i:]
                        rank = self._rank(f"{a} {b}", self._ids[part])
                        if rank is not None and a in self._ids and b in self._ids:
                            self._used[rank] = (a, b)

    def _rank(self, merge: str, made: int) -> int | None:
        """The rank of a merge that makes the token ``made``; None if it is not in the list."""
        if self._first is None:
            return self._ranks.get(merge)
        rank = made - self._first
        return rank if 0 <= rank < len(self._merges) and self._merges[rank] == merge else None

    def _make_whole(self) -> tokenizers.Tokenizer:
        with self._lock:
            if not self._whole:
                ids = self._ids
                merges = [(a, b) for a, _, b in (line.partition(" ") for line in self._merges) if a in ids and b in ids]
                self._made = self._wrap(self._make_model(dict(ids), merges))
                self._whole = True
                self._merges, self._ranks = (), {}
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
