"""Documents say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "tests").glob("*.md")])


def test_the_list_of_modules_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "structure.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_backend_of_the_documentation_runs() -> None:
    """The example of docs/backends.md, as it stands there."""
    from hotshoe_core import BackendParams

    text = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n# my_backend/__init__\.py\n(.*?)```", text, re.DOTALL)
    assert code is not None
    namespace: dict[str, object] = {}
    exec(compile(code[1], "docs/backends.md", "exec"), namespace)
    (provider,) = namespace["hotshoe_providers"]()  # type: ignore[operator]
    with provider.open(provider.devices(None), BackendParams()) as backend, backend.new_context() as ctx:
        x = ctx.input("x", (2, 3))
        y = x + x.softmax()
        ctx.forward(y).compute({x: [[0.0, 0.0, 0.0]] * 2})
        assert y.read().ravel().tolist() == pytest.approx([1 / 3] * 6)
