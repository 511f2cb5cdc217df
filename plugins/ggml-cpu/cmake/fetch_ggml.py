"""At build time: find ggml's source tree and print its path for CMake.

ggml's source is not in this repository. pip downloads the pinned source distribution below, so that the mirrors,
proxies and credentials that a user has set up for pip work here too. The archive stays in the user's cache, and its
hash is checked at each use.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME = "libggml-python"
VERSION = "0.20.2.post1"
ARCHIVE = "libggml_python-0.20.2.post1.tar.gz"
SHA256 = "e47ff53506342959ffb3ce15380b82828fea10ec5f208f9ef6915895f1a7a176"


class FetchError(Exception):
    """The source is not available. The message says what to do."""


def cache_dir() -> Path:
    """Return the user's cache folder for this platform."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base / "hotshoe" / "ggml-source"


def sha256(path: Path) -> str:
    """Return the file's sha256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(folder: Path) -> Path:
    """Download the archive into ``folder`` with pip.

    pip gets the hash too, and checks it before it runs the archive's own metadata hook.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder), "-r", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True)
    archive = folder / ARCHIVE
    if result.returncode or not archive.is_file():
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise FetchError(
            f"ggml's source, {NAME}=={VERSION}, could not be downloaded by pip:\n{tail}\n"
            f"Without a network: put {ARCHIVE} (sha256 {SHA256}) into {cache_dir()}, or set "
            "HOTSHOE_GGML_SOURCE to an unpacked ggml source tree."
        )
    return archive


def cached_archive() -> Path:
    """Return the verified archive. Download it if the cache has no archive or a damaged one."""
    folder = cache_dir()
    archive = folder / ARCHIVE
    if archive.is_file() and sha256(archive) == SHA256:
        return archive
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="download-", dir=folder)
    except OSError:  # the home is read-only, as on some build machines: use no cache
        folder = Path(tempfile.mkdtemp(prefix="hotshoe-"))
        archive, scratch = folder / ARCHIVE, str(folder)
    try:
        fresh = download(Path(scratch))
        found = sha256(fresh)
        if found != SHA256:
            raise FetchError(
                f"{ARCHIVE} has sha256 {found}, expected {SHA256}.\n"
                "It is not the file this build was written for: check your package index or mirror."
            )
        os.replace(fresh, archive)  # atomic: two builds at the same time leave one whole file
    finally:
        if Path(scratch) != folder:
            shutil.rmtree(scratch, ignore_errors=True)
    return archive


def unpacked(into: Path) -> Path:
    """Return the source tree under ``into``, unpacked once for each archive hash."""
    tree = into / SHA256[:12]
    if not tree.is_dir():
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into) as scratch:
            with tarfile.open(cached_archive()) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(scratch, filter="data")
                else:  # Python before 3.11.4; the archive's hash has been checked
                    tar.extractall(scratch)
            os.replace(next(Path(scratch).iterdir()), tree)
    return tree


def ggml_root(tree: Path) -> Path:
    """Return the folder with ggml's own CMakeLists.txt: ``tree`` itself, or its folder ``ggml``."""
    for root in (tree, tree / "ggml"):
        if (root / "include" / "ggml-backend.h").is_file() and (root / "CMakeLists.txt").is_file():
            return root
    raise FetchError(
        f"{tree} is not a ggml source tree: CMakeLists.txt or include/ggml-backend.h is missing.\n"
        "HOTSHOE_GGML_SOURCE must name the folder of ggml's CMakeLists.txt (or its parent)."
    )


def main() -> int:
    """Print the path of the source tree. On failure, print the reason to stderr and return 1."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--source", default="")
    args = parser.parse_args()
    try:
        tree = Path(args.source).expanduser().resolve() if args.source else unpacked(args.into)
        sys.stdout.write(ggml_root(tree).as_posix())
    except FetchError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
