"""Tables of strings: equal to lists and dictionaries, whatever the strings are, and if all hashes are equal."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.tokenizers import _strings
from hotshoe.tokenizers._strings import StringTable, TokenIds
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.gguf_files import write_gguf

LONG = ["x" * 511 + "a", "x" * 511 + "b", "x" * 512 + "a", "x" * 512 + "b", "x" * 700]
strings = st.lists(st.text(max_size=20) | st.sampled_from(["", "\0", "a\0", "\0a", "\u6f22\u5b57", *LONG]), max_size=40)


@pytest.mark.parametrize("multiplier", [None, 0], ids=["hashes", "equal hashes"])
def test_equal_to_lists_and_dictionaries(multiplier: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if multiplier is not None:
        monkeypatch.setattr(_strings, "_MULTIPLIER", np.uint64(multiplier))

    @settings(max_examples=200, deadline=None)
    @given(strings, strings)
    def same(words: list[str], others: list[str]) -> None:
        table = StringTable(words)
        ids = {word: i for i, word in enumerate(words)}
        asked = words + others
        assert len(table) == len(words)
        assert list(table) == words == [table[i] for i in range(len(words))] == table[:]
        assert table == words
        assert table.find(asked) == {word: ids[word] for word in asked if word in ids}
        assert table.starting_with("\u6f22") == [i for i, word in enumerate(words) if word.startswith("\u6f22")]
        repeated = table.repeated()
        assert (repeated is None) == (len(ids) == len(words))
        if repeated is not None:
            assert repeated[0] < repeated[1]
            assert words[repeated[0]] == words[repeated[1]]
        codes, starts, lengths = table.characters()
        for word, start, length in zip(words, starts.tolist(), lengths.tolist(), strict=True):
            assert "".join(map(chr, codes[start : start + length])) == word

    same()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab\u00e9 ", max_size=5), max_size=6), st.lists(st.text("ab\u00e9", min_size=1, max_size=4)))
def test_merges_that_make_no_token_are_found(lines: list[str], tokens: list[str]) -> None:
    def fits(line: str) -> bool:
        return line.count(" ") == 1 and line.replace(" ", "") in tokens

    assert StringTable(lines).unknown_joins(StringTable(tokens)) != all(map(fits, lines))


def test_names_beside_the_tokens() -> None:
    ids = TokenIds(StringTable(["a", "b", "c"]), {"b": 7, "d": 0})
    assert ids.find(["a", "b", "d", "e"]) == {"a": 0, "b": 7, "d": 0}
    assert dict(ids) == ids.all() == {"a": 0, "b": 7, "c": 2, "d": 0}
    assert len(ids) == 4
    assert "e" not in ids
    with pytest.raises(KeyError, match="e"):
        ids["e"]


@pytest.mark.parametrize("endian", list(gguf.GGUFEndian))
def test_strings_of_a_file_are_not_decoded_before_they_are_used(tmp_path: Path, endian: gguf.GGUFEndian) -> None:
    words = ["one", "", "two \u6f22", "x" * 300, "y" * 70_000] * 3
    path = write_gguf(tmp_path / "x.gguf", setup=lambda w: w.add_array("words", words), endianess=endian)
    with GGUFFile(path) as file:
        table = StringTable(file.metadata["words"])
        assert file.metadata["words"]._items is None
    assert list(table) == words
    assert table.find(["two \u6f22", "three"]) == {"two \u6f22": 12}


def test_strings_of_a_file_that_are_not_valid(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_array("words", ["ok", "@@", "@@"])

    path = write_gguf(tmp_path / "x.gguf", setup=write)
    halves = path.read_bytes().replace(b"@@", b"@\xe6", 1).replace(b"@@", b"\xbc\xa2")  # of one character
    path.write_bytes(halves)
    with GGUFFile(path) as file, pytest.raises(ModelFileError, match=r"key 'words'\[1\].*is not valid UTF-8"):
        StringTable(file.metadata["words"])
