"""Read the JSON files of a model folder. Errors name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hotshoe_core.errors import ModelFileError
from hotshoe_core.errors.arguments import regular

__all__ = ["read_list", "read_object", "regular"]


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object. Raises ModelFileError if it is unreadable or contains another type."""
    value = _read(path)
    if not isinstance(value, dict):
        raise ModelFileError(f"is a JSON {type(value).__name__}, expected an object", path=path)
    return value


def read_list(path: Path) -> list[Any]:
    """Read a JSON file that contains an array. Raises ModelFileError if it is unreadable or contains another type."""
    value = _read(path)
    if not isinstance(value, list):
        raise ModelFileError(f"is a JSON {type(value).__name__}, expected an array", path=path)
    return value


def _read(path: Path) -> Any:
    try:
        return json.loads(regular(path).read_bytes())
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror or error}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"is not JSON: {error}", path=path, hint="download the file again") from None
