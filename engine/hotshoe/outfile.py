"""A file that is written: refused before the work where it cannot be, and there under its name only when complete."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from hotshoe_core.errors import ConversionError

__all__ = ["check_target", "written"]


def check_target(destination: str | os.PathLike[str], overwrite: bool, *, example: str = "model.gguf") -> Path:
    """The file to write. Raises ConversionError for a folder, a missing folder, or a file that is there."""
    target = Path(destination).expanduser()
    if target.is_dir():
        raise ConversionError(
            f"{target} is a folder; expected the name of the file to write", hint=f"for example {target / example}"
        )
    if not target.parent.is_dir():
        raise ConversionError(
            f"cannot write {target}: the folder {target.parent} does not exist", hint=f"mkdir -p {target.parent}"
        )
    if target.exists() and not overwrite:
        raise ConversionError(
            f"{target} exists already",
            hint="choose another name, or allow it to be replaced (overwrite=True, --overwrite)",
        )
    return target


@contextlib.contextmanager
def written(target: Path) -> Iterator[Path]:
    """Yields the name to write to; at the end that file becomes ``target``, or nothing stays where something failed.

    Raises ConversionError for what the system refuses: a full disk, a folder that may not be written to.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        raise ConversionError(
            f"cannot write {target}: {error.strerror or error}",
            hint="check the free space and the permissions of the folder",
        ) from error
    finally:
        # also on KeyboardInterrupt, and where closing the file fails because the disk is full: nothing stays behind
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
