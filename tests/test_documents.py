"""The documents agree with the code: lists are current, links and named files exist, code runs as it stands."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe_loader import Outcome, load_all
from hotshoe_loader.options import PROBE_VARIABLE
from tests.zoo.animals import ANIMALS

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "tests").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)


def test_the_list_of_modules_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "structure.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_list_of_ops_is_current_and_whole() -> None:
    pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
    done = subprocess.run([sys.executable, ROOT / "tools" / "ops_docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "(missing)" not in (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


LOADER = (ROOT / "docs" / "loader.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w/]+\.py::\w+(?:\[\w+\])?)`", LOADER))))
def test_the_tests_that_show_the_loaders_guarantees_exist(name: str) -> None:
    file, _, test = name.partition("::")
    function, _, parameter = test.rstrip("]").partition("[")
    assert re.search(rf"^(def|class) {function}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)
    if parameter:
        assert parameter in {animal.name for animal in ANIMALS}


def test_the_loaders_page_names_every_option_variable_and_outcome() -> None:
    options = set(inspect.signature(load_all).parameters)
    assert set(re.findall(r"^\| `(\w+)=", LOADER, re.MULTILINE)) == options
    verdicts = LOADER.partition("## Verdicts")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", verdicts, re.MULTILINE) == [outcome.value for outcome in Outcome]
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "loader" / "hotshoe_loader").rglob("*.py")]
    variables = set(re.findall(r"HOTSHOE_[A-Z]+(?:_[A-Z]+)*\b(?!_)", "\n".join(sources)))
    assert variables - {PROBE_VARIABLE} <= set(re.findall(r"HOTSHOE_[A-Z_]+", LOADER))
