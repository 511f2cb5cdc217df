"""What hotshoe remembers of models: which files `pull` brought, which names were created, which hashes were verified.

Each record is a small JSON file of its own in the data folder, so that processes that write at the same time do not
lose each other's records.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotshoe_core.errors import OptionError

__all__ = ["data_folder", "forget", "read", "records", "remember"]

_MAX_RECORD = 1 << 20


def data_folder() -> Path:
    """The folder for what hotshoe keeps: HOTSHOE_DATA_DIR, or the system's folder for the data of programs.

    Raises OptionError if neither is known.
    """
    if given := os.environ.get("HOTSHOE_DATA_DIR", "").strip():
        return Path(os.path.abspath(os.path.expanduser(given)))
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        root = os.path.expanduser("~/Library/Application Support")
    else:
        root = os.environ.get("XDG_DATA_HOME", "")
        root = root if os.path.isabs(root) else os.path.expanduser("~/.local/share")
    if not os.path.isabs(root):
        raise OptionError("the folder for hotshoe's data is not known", hint="set HOTSHOE_DATA_DIR")
    return Path(root, "hotshoe")


def _file(kind: str, key: str) -> Path:
    return data_folder() / kind / f"{hashlib.sha256(key.encode(errors='surrogateescape')).hexdigest()[:32]}.json"


def remember(kind: str, key: str, value: dict[str, Any]) -> None:
    """Write the record of ``key``, in the place of an older one. Raises OSError."""
    path = _file(kind, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        part.write_text(json.dumps({"key": key, **value}), encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read(kind: str, key: str) -> dict[str, Any] | None:
    """The record of ``key``; None if it is missing or cannot be read."""
    found = _read(_file(kind, key))
    return found if found is not None and found["key"] == key else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read(_MAX_RECORD))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("key"), str) else None


def forget(kind: str, key: str) -> None:
    """Delete the record of ``key``, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        _file(kind, key).unlink()


def records(kind: str) -> Iterator[dict[str, Any]]:
    """All records of a kind, by key."""
    found = [record for path in (data_folder() / kind).glob("*.json") if (record := _read(path)) is not None]
    yield from sorted(found, key=lambda record: str(record["key"]))
