"""The files that a document shows: each fenced block whose first line is a comment with a file's name."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["write_files"]

_BLOCK = re.compile(r"^```\w*\n# ([\w./-]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def write_files(document: Path, folder: Path) -> list[Path]:
    """Write every file the document shows into ``folder``, as it stands there; returns their paths."""
    written = []
    for name, text in _BLOCK.findall(document.read_text(encoding="utf-8")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
