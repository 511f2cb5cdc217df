"""The folders where other software installs ggml backends: Linux packages, Homebrew, Ollama. For load_all(system=True).

Each folder was checked in the package that creates it: Debian's libggml0-backend-* (``ggml/backends0``), Arch's user
packages (``ggml/backends``), RPM packages (``lib64/ggml``), Homebrew's formula ggml (GGML_BACKEND_DIR is its libexec),
Ollama's installers (one folder for the CPU, with a folder inside for each kind of GPU).
"""

from __future__ import annotations

import os
import platform as host
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["known_folders"]


def known_folders(
    root: Path = Path("/"),
    platform: str = sys.platform,
    machine: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[tuple[Path, str]]:
    """The existing folders with ggml backends of other software, each with its origin in words.

    Their ``libggml-base`` is in the same folder (Ollama) or in a library folder next to it (Linux packages, Homebrew).
    A folder to which every user can write is left out, because any user could have put code there.
    """
    found: dict[str, tuple[Path, str]] = {}
    for folder, origin in _candidates(root, platform, machine or host.machine(), environ):
        if _has_backends(folder):
            found.setdefault(os.path.realpath(folder), (folder, origin))
    return list(found.values())


def _candidates(root: Path, platform: str, machine: str, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if platform == "linux":
        yield from _linux(root, machine)
    yield from _homebrew(root, platform, environ)
    for folder in _ollama(root, platform, environ):
        yield folder, "Ollama"
        for inner in _folders(folder):
            yield inner, f"Ollama ({inner.name})"


def _linux(root: Path, machine: str) -> Iterator[tuple[Path, str]]:
    triplet = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine.lower(), machine.lower()) + "-linux-gnu"
    for inner in _folders(root / "usr/lib" / triplet / "ggml"):
        if inner.name.startswith("backends"):  # followed by the number in libggml's SONAME
            yield inner, "the system's packages libggml0-backend-* (Debian, Ubuntu)"
    yield root / "usr/libexec" / triplet / "ggml", "the system's ggml packages"
    for folder in ("usr/lib/ggml/backends", "usr/lib/ggml", "usr/lib64/ggml", "usr/lib64/ggml/backends"):
        yield root / folder, "the system's ggml packages"


def _homebrew(root: Path, platform: str, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    prefixes = [environ.get("HOMEBREW_PREFIX", "")]
    prefixes += {"darwin": ["/opt/homebrew", "/usr/local"], "linux": ["/home/linuxbrew/.linuxbrew"]}.get(platform, [])
    for prefix in prefixes:
        if prefix.startswith("/"):
            for inner in ("libexec", "lib"):
                yield root / prefix.lstrip("/") / "opt/ggml" / inner, "Homebrew's ggml"


def _ollama(root: Path, platform: str, environ: Mapping[str, str]) -> list[Path]:
    if platform == "darwin":
        return [root / "Applications/Ollama.app/Contents/Resources"]
    if platform == "win32":
        programs = environ.get("LOCALAPPDATA", "")
        return [Path(programs) / "Programs" / "Ollama" / "lib" / "ollama"] if programs else []
    return [root / folder for folder in ("usr/local/lib/ollama", "usr/lib/ollama", "usr/lib64/ollama")]


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _has_backends(folder: Path) -> bool:
    try:
        if folder.stat().st_mode & stat.S_IWOTH:
            return False
        names = [name.removeprefix("lib") for name in os.listdir(folder)]
    except OSError:
        return False
    # The backend's name follows "ggml-". "ggml-base" alone is not a backend: the others are built on it.
    return any(name.startswith("ggml-") and not name.startswith("ggml-base") for name in names)
