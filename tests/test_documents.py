"""The documents agree with the code: lists are current, links and named files exist, code runs as it stands."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import plots
from hotshoe.cli import all_commands
from hotshoe_loader import Outcome, load_all
from hotshoe_loader.options import PROBE_VARIABLE
from tests.support.smollm2 import require_smollm2
from tests.zoo.animals import ANIMALS
from tools import site_hooks

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "tests").glob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "plugins").glob("*/*.md"),
        ROOT / "benchmarks" / "NOTES.md",
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^)#:]*)\)", document.read_text(encoding="utf-8")):
        path = document.parent / target if target else document
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"


def test_every_plot_is_current_and_its_numbers_are_in_the_page() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for name, result in plots.results().items():
        target = ROOT / "docs" / "plots" / f"{name}.svg"
        assert target.read_text(encoding="utf-8") == plots.draw(result), "run: python benchmarks/plots.py"
        assert result["date"] in page
        for row in result["rows"]:
            for value in (v for v in row.values() if isinstance(v, list)):
                assert re.search(rf"(?<![\d.]){value[0]:g}(?![\d])", page), f"{name}: {row['name']}: {value[0]:g}"


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL), ids=range(5))
def test_the_readmes_code_runs_as_it_stands(
    code: str,
    minilm_gguf: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
    models = tmp_path / "examples" / "models"  # as `make demo` leaves it
    models.mkdir(parents=True)
    for path, name in (
        (require_smollm2(), "SmolLM2-135M-Instruct.Q4_1"),
        (minilm_gguf("q8_0"), "all-MiniLM-L6-v2-q8_0"),
    ):
        (models / f"{name}.gguf").symlink_to(path)
    for name in ("shapes-q8_0.gguf", "mmproj-shapes-f16.gguf", "shapes.png"):
        (models / name).symlink_to(ROOT / "examples" / "models" / name)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for expected in re.findall(r"print\(.*  # (.*)$", code, re.MULTILINE):
        start = re.split(r"[ (:]", expected)[0]  # the rest depends on the machine
        assert start in printed


_BLOCK = re.compile(r"^```sh\n(.*?)^```|^((?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^ *(?:HOTSHOE_\w+=\S+ )*(?:\.venv/bin/)?hotshoe ([^&|\n]*)", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_in_documents_have_options_that_exist(document: Path) -> None:
    parser, _ = all_commands()
    for block in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        for command in _COMMAND.findall((block[1] or block[2]).replace("\\\n", " ")):
            parser.parse_args(shlex.split(command, comments=True))


def test_the_site_lists_every_page() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} | set(site_hooks.PAGES.values())
    assert {path.relative_to(ROOT).as_posix() for path in DOCUMENTS} - {*site_hooks.PAGES} <= {
        f"docs/{name}" for name in listed
    }


def test_links_on_the_site_lead_to_pages() -> None:
    site_hooks.on_config({"nav": []})

    class Page:
        class file:  # noqa: N801  (as MkDocs calls it)
            src_uri = "plugins/mlx.md"

    text = "[a](../../README.md), [b](../../docs/ops.md#x), [`c`](../../core/hotshoe_core/gguf/__init__.py), [d](../x)"
    expected = "[a](../index.md), [b](../ops.md#x), [`c`](../reference/hotshoe_core.gguf.md), d"
    assert site_hooks.on_page_markdown(text, Page) == expected


FLOW = (ROOT / "docs" / "flow.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "target"), sorted(set(re.findall(r"\[`([\w.]+)`\]\(([^)#]+)\)", FLOW))))
def test_the_names_that_the_page_of_flows_links_to_exist(name: str, target: str) -> None:
    last = name.rpartition(".")[2]
    code = (ROOT / "docs" / target).read_text(encoding="utf-8")
    defined = rf"\b{last}\(" if target.endswith(".h") else rf"^\s*((def|class) {last}\b|{last}\s*[:=])"
    assert re.search(defined, code, re.MULTILINE), f"{target} has no {name}"


def test_no_flow_has_more_than_ten_lines() -> None:
    for flow in FLOW.split("\n## ")[1:]:
        assert len(re.findall(r"^\d+\. ", flow, re.MULTILINE)) <= 10, flow.splitlines()[0]


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
