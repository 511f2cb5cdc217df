"""The ABI fingerprint: do two libraries agree on every struct, enum and signature they share?

ggml's own check is one integer that stayed 2 while vtables and op numbers moved, so the fingerprint covers the text of
the headers instead. The build writes it to `_build_info.json`, and the loader compares it before it opens a library.
This file imports the standard library only: build scripts of other ggml plugins use it too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-backend-impl.h", "ggml-impl.h")
"""The interface between ggml-base and a backend. ggml-impl.h is private by name, but backends use its `ggml_cgraph`."""

_COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def normalise(text: str) -> str:
    """C source without comments, with one blank for each run of white space."""
    bare = _COMMENT_OR_STRING.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    return " ".join(bare.split())


def fingerprint(folders: Sequence[Path], ggml_version: str) -> str:
    """The sha256, in hexadecimal, of ggml's version and its normalised ``HEADERS``, which are searched in ``folders``.

    Raises FileNotFoundError if a header is missing.
    """
    digest = hashlib.sha256(f"ggml {ggml_version}\n".encode())
    for name in HEADERS:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            looked = ", ".join(str(folder) for folder in folders)
            raise FileNotFoundError(f"ABI fingerprint: {name} not found in {looked}")
        digest.update(f"{name}\n{normalise(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()
