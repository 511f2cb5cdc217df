"""Write docs/families.md: every architecture, what tests it, and why others are refused."""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path

from hotshoe.families import MODELS, names
from hotshoe.refused_families import REFUSED
from hotshoe_loader.find import find_entry_points
from tests.families.row import Row
from tests.families.rows import ROWS

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "families.md"
LIBRARY = ROOT / "tests" / "data" / "ollama-library.json"
NEWEST = 60

HEAD = """# Families

This page is generated: `python -m tools.family_docs`. {n} architectures of GGUF have a model here. A package can add
another one: [models.md](models.md).

Of {n_names} names in Ollama's library, {n_loaded} have a default file of one of these architectures, and {n_newest}
of the newest {newest}. The list, and where it comes from, is in
[ollama-library.json](../tests/data/ollama-library.json).

"Compared with" names the tests: a tiny model of each class in transformers is converted. Its tensors and keys must
equal those of llama.cpp's converter, and its logits those of transformers and of llama.cpp. "Not llama.cpp" means that
its results differ for the reason that stands there.

| architecture | model | compared with |
| --- | --- | --- |
"""

REFUSED_HEAD = """
## Refused

hotshoe refuses files of these architectures, with this reason in the error.

| architecture | reason |
| --- | --- |
"""


def main() -> int:
    TARGET.write_text(page(), encoding="utf-8")
    return 0


def page() -> str:
    """The text of docs/families.md."""
    known = names(MODELS)
    rows = defaultdict(list[Row])
    for row in ROWS.values():
        rows[row.arch].append(row)
    library = list(json.loads(LIBRARY.read_text(encoding="utf-8"))["architectures"].values())
    head = HEAD.format(
        n=len(known),
        n_names=len(library),
        n_loaded=sum(arch in known for arch in library),
        n_newest=sum(arch in known for arch in library[:NEWEST]),
        newest=NEWEST,
    )
    lines = [f"| `{arch}` | {_summary(arch)} | {_oracles(rows[arch])} |\n" for arch in known]
    refused = [f"| `{arch}` | {why} |\n" for arch, why in sorted(REFUSED.items())]
    return head + "".join(lines) + REFUSED_HEAD + "".join(refused)


def _summary(arch: str) -> str:
    """The first line of the docstring of the model's module; of a table of models, what it says of this one."""
    entry = next(e for e in find_entry_points((MODELS,))[MODELS] if e.name == arch)
    module = importlib.import_module(str(entry.module))
    doc = getattr(module, "SUMMARIES", {}).get(arch) or module.__doc__ or ""
    return " ".join(doc.strip().splitlines()[0].split()).replace("|", "\\|")


def _oracles(rows: list[Row]) -> str:
    classes = dict.fromkeys(f"`{row.model.rpartition(':')[2]}`" for row in rows)
    reasons = dict.fromkeys(row.llamacpp for row in rows if row.llamacpp)
    found = ", ".join(classes) or "tests of its own"
    return found + "".join(f". Not llama.cpp: {why}" for why in reasons)


if __name__ == "__main__":
    sys.exit(main())
