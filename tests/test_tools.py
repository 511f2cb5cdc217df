"""The programs in tools/ that check this repository."""

from __future__ import annotations

import pytest

from tools.plain_english import complaints


@pytest.mark.parametrize(
    ("text", "replacement"),
    [
        ("Raise GraphError for what is no Tensor.", "unless x is a Tensor"),
        ("Refuse what is\n    # no tensor.", "unless x is a Tensor"),
        ("The graph is built anew.", '"again"'),
        ("Whoever waits", "callers who"),
        ("the value is no integer", "is not a"),
        ("the file beside it", "next to"),
        ("all tensors but for the last", '"except"'),
    ],
)
def test_phrases_that_are_hard_to_read_are_found_with_a_replacement(text: str, replacement: str) -> None:
    (complaint,) = complaints(f"# A first line.\n{text}", "a.py")
    assert complaint.startswith("a.py:2: ")
    assert replacement in complaint


@pytest.mark.parametrize(
    "text", ["it is None", "a value that is None", "there\n  is no file", "it is no longer here", "renewed"]
)
def test_plain_texts_are_left_alone(text: str) -> None:
    assert complaints(text, "a.py") == []
