"""docs/families.md: every architecture that llama.cpp knows is there, with its tests or with the reason why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotshoe.families import MODELS, find_model, names
from hotshoe.refused_families import REFUSED
from hotshoe_core.errors import UnknownArchitectureError
from hotshoe_core.gguf import Metadata
from hotshoe_loader.find import find_entry_points
from tests.families.rows import OTHERS, ROWS
from tools.family_docs import LIBRARY, NEWEST, TARGET, page

LEAST, LEAST_OF_NEWEST = 205, 59  # of Ollama's library


def test_the_page_is_generated() -> None:
    assert TARGET.read_text(encoding="utf-8") == page(), "run `python -m tools.family_docs`"


def test_every_architecture_of_a_row_has_a_model() -> None:
    assert {row.arch for row in ROWS.values()} <= set(names(MODELS))


def test_every_model_has_a_row() -> None:
    """A second name of the same model needs none, and an architecture that transformers lacks has a file of tests."""
    entries = {entry.name: entry.value for entry in find_entry_points((MODELS,))[MODELS]}
    tested = {entries[row.arch] for row in ROWS.values()}
    assert {arch: value for arch, value in entries.items() if value not in tested and arch not in OTHERS} == {}
    assert all((Path(__file__).parents[2] / tests).is_file() for tests in OTHERS.values())


def test_the_error_of_a_refused_architecture_gives_the_reason() -> None:
    assert not REFUSED.keys() & set(names(MODELS))
    for arch, why in REFUSED.items():
        with pytest.raises(UnknownArchitectureError) as caught:
            find_model(Metadata({"general.architecture": arch}, {}, Path("a.gguf")))
        assert caught.value.message == f"no model implements the architecture {arch!r}: {why}"
    assert "deepseek4" in REFUSED


def test_names_of_ollama_s_library_have_a_model_or_a_reason() -> None:
    library = list(json.loads(LIBRARY.read_text(encoding="utf-8"))["architectures"].values())
    known = set(names(MODELS))
    assert set(library) <= known | REFUSED.keys()
    assert len(library) == 213
    assert sum(arch in known for arch in library) >= LEAST
    assert sum(arch in known for arch in library[:NEWEST]) >= LEAST_OF_NEWEST
