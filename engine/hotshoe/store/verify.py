"""Compare a model's files with their hashes before they are loaded, once: the result is remembered."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from hotshoe.store import records
from hotshoe.store.files import StoredModel
from hotshoe.store.names import named
from hotshoe_core.errors import ModelFileError

__all__ = ["check_files", "hash_of", "remember_hash", "verified"]

logger = logging.getLogger("hotshoe.store")

_SHA1 = 40  # hexadecimal digits
_BLOCK = 1 << 20
_ADVICE = {"ollama": "download it again: ollama pull", "hub": "download it again: hotshoe pull"}


def verified(model: object) -> StoredModel | None:
    """The model with this name, whose files have the hashes that they should have; None for a path.

    Raises ModelNotFoundError, and ModelFileError if a file was changed or damaged.
    """
    found = named(model)
    if found is not None:
        check_files(found)
    return found


def check_files(model: StoredModel) -> None:
    """Raise ModelFileError if a file does not have its hash. A file that was compared before is not read again."""
    for file, digest in model.digests.items():
        if records.read("verified", os.path.realpath(file)) == _state(file, digest):
            continue
        logger.info("comparing %s with its hash", file)
        found = hash_of(file, digest)
        if found != digest:
            name = model.name.removeprefix("ollama:")
            raise ModelFileError(
                f"the file of {model.name} is damaged: its hash is {found[:12]}…; expected {digest[:12]}…",
                path=file,
                hint=f"{_ADVICE.get(model.source, 'delete it, and create it again:')} {name}",
            )
        remember_hash(file, digest)


def remember_hash(file: Path, digest: str) -> None:
    """Record that a file has this hash. It counts until its size or its time changes."""
    with contextlib.suppress(OSError):  # a full disk: it is compared again the next time
        records.remember("verified", os.path.realpath(file), _state(file, digest))


def _state(file: Path, digest: str) -> dict[str, object]:
    state = file.stat()
    key = os.path.realpath(file)
    return {"key": key, "size": state.st_size, "mtime_ns": state.st_mtime_ns, "digest": digest}


def hash_of(file: Path, like: str) -> str:
    """The hash of a file of the kind that ``like`` is: SHA-256, or Git's SHA-1 of a blob."""
    if len(like) == _SHA1:
        found = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    else:
        found = hashlib.sha256()
    with open(file, "rb", buffering=0) as source:
        while block := source.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
