"""Writes third-party wheels file by file, as a build backend would."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["compile_library", "write_wheel"]


def write_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    entry_points: str,
    *,
    version: str = "1.0",
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel with METADATA, WHEEL, entry_points.txt and a RECORD of every file.

    tag: the platform in its metadata. Its file name says "any", so that pip installs it everywhere.
    """
    distribution = name.replace("-", "_")
    info = f"{distribution}-{version}.dist-info"
    contents = dict(files) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: zoo\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{info}/entry_points.txt": entry_points.encode(),
    }
    record = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"{distribution}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in contents.items():
            archive.writestr(path, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def compile_library(folder: Path, name: str, source: str, needs: str | None = None) -> bytes:
    """Compile the C code ``source``, linked to a library ``needs``, and return the bytes of the library ``name``.

    Skips the test if there is no compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    code = folder / f"{name}.c"
    code.write_text(source)
    flags = []
    if needs is not None:
        compile_library(folder, needs, "int needed;")
        flags = [f"-L{folder}", "-Wl,--no-as-needed", f"-l:{needs}"]
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", folder / name, code, *flags], check=True)
    return (folder / name).read_bytes()
