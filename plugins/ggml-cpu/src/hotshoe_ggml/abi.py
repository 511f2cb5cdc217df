"""The ABI fingerprint: do two libraries agree on every struct, enum and signature they share?

ggml's own check is one integer that stayed 2 while vtables and op numbers moved, so the fingerprint covers the
text of the headers instead. It is computed at build time, travels as metadata in `_build_info.json`, and is compared
before a library is opened. Standard library only: build scripts of other ggml plugins use this file too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

#: What crosses the line between ggml-base and a backend. ggml-impl.h is private by name, yet backends read
#: `struct ggml_cgraph` through it.
HEADERS = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "ggml-backend-impl.h", "ggml-impl.h")

_COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def normalise(text: str) -> str:
    """C source without comments, and with every run of white space made one blank."""
    bare = _COMMENT_OR_STRING.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)
    return " ".join(bare.split())


def fingerprint(folders: Sequence[Path], ggml_version: str) -> str:
    """The sha256, in hexadecimal, over ggml's version and its normalised `HEADERS`, looked up in `folders`.

    Raises:
        FileNotFoundError: a header is in none of the folders.
    """
    digest = hashlib.sha256(f"ggml {ggml_version}\n".encode())
    for name in HEADERS:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            looked = ", ".join(str(folder) for folder in folders)
            raise FileNotFoundError(f"ABI fingerprint: {name} not found in {looked}")
        digest.update(f"{name}\n{normalise(path.read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()
