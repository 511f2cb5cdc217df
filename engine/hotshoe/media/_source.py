"""``read_source``: the bytes of a picture or a sound, with a limit that is checked before they are read."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe_core.errors.arguments import described, file_path, regular
from hotshoe_core.errors.text import format_bytes, printable

if TYPE_CHECKING:
    from hotshoe.media._medium import Medium

__all__ = ["read_source"]


def read_source(source: Any, medium: Medium) -> bytes:
    """Return the bytes of a file: of a path, of an open file, of bytes, or of a text ``data:…;base64,…``.

    Raises the error of the medium if the source is none of these, cannot be read, is empty, or is larger than
    ``medium.max_bytes``. No address is fetched.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _limited(bytes(source), medium)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return _limited(_from_data_url(source, medium), medium)
    if isinstance(source, str) and source[:8].lower().startswith(("http://", "https://", "ftp://", "file://")):
        raise medium.error(
            f"the {medium.one} is an address, {printable(source, 60)!r}; hotshoe fetches no addresses",
            hint=f"download the {medium.one} and give its path or its bytes",
        )
    if isinstance(source, (str, os.PathLike)):
        return _limited(_from_path(file_path(f"the {medium.one}", source, medium.error), medium), medium)
    read = getattr(source, "read", None)
    if callable(read):
        data = read(medium.max_bytes + 1)
        if not isinstance(data, bytes):
            raise medium.error(
                f"the open file of the {medium.one} returned {type(data).__name__}; expected bytes",
                hint='open it with mode "rb"',
            )
        return _limited(data, medium)
    raise medium.error(f"the {medium.one} is {described(source)}; expected {medium.expected}")


def _from_path(path: Path, medium: Medium) -> bytes:
    try:
        size = regular(path).stat().st_size
        if size > medium.max_bytes:
            raise medium.error(f"{path} has {format_bytes(size)}; expected at most {format_bytes(medium.max_bytes)}")
        return path.read_bytes()
    except OSError as error:
        raise medium.error(f"{path}: the {medium.one} cannot be read: {error.strerror or error}") from error


def _from_data_url(text: str, medium: Medium) -> bytes:
    head, comma, body = text.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise medium.error(
            f"the {medium.one} begins with {printable(head, 60)!r}; expected data:{medium.name}/…;base64, and the file "
            "in base64"
        )
    if len(body) > medium.max_bytes * 4 // 3 + 4:
        raise medium.error(f"the {medium.one} has more than {format_bytes(medium.max_bytes)}")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise medium.error(f"the {medium.one} is not valid base64: {error}") from error


def _limited(data: bytes, medium: Medium) -> bytes:
    if len(data) > medium.max_bytes:
        raise medium.error(f"the {medium.one} has more than {format_bytes(medium.max_bytes)}, which is the most")
    if not data:
        raise medium.error(f"the {medium.one} is empty: 0 bytes")
    return data
