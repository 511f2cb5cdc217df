"""Models of Hugging Face's cache, read without huggingface_hub and without the network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hotshoe.store.files import StoredModel, choose, grouped, labelled, projector_of

__all__ = ["DIGEST", "cache_folder", "digest_of", "find_in_cache", "models_of_cache", "pull_key", "repository_folder"]

DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
"""The hash of a file: SHA-256, or Git's SHA-1."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the cache: HF_HUB_CACHE, HF_HOME or the default, as huggingface_hub has it."""
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    given = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(given)))


def repository_folder(repository: str) -> Path:
    """The folder of a repository in the cache. It may not exist."""
    return cache_folder() / f"models--{repository.replace('/', '--')}"


def pull_key(repository: str, first: str | Path) -> str:
    """The key of the record of a pull: the repository and the name of the model's first file in it.

    first: that name, or the file of the cache. A label would change as soon as the cache has another model.
    """
    if isinstance(first, Path):
        first = Path(*first.relative_to(repository_folder(repository) / "snapshots").parts[1:]).as_posix()
    return f"{repository}:{first}"


def digest_of(file: Path) -> str | None:
    """The hash that the cache has for a file: the name of the blob to which its link points. None without a link."""
    target = os.path.realpath(file)
    name = os.path.basename(target)
    return name if target != os.path.abspath(file) and DIGEST.fullmatch(name) else None


def _snapshots(folder: Path) -> list[Path]:
    """The revisions of a repository that the cache holds: first that of ``main``, then the newest."""
    try:
        found = sorted((folder / "snapshots").iterdir(), key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []
    try:
        main = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        main = ""
    return sorted(found, key=lambda path: path.name != main)


def _files(folder: Path) -> dict[str, Path]:
    """The GGUF files of a repository by their path in it. A file whose blob is missing is left out."""
    found: dict[str, Path] = {}
    for snapshot in _snapshots(folder):
        paths = sorted(path for path in snapshot.rglob("*") if path.suffix.lower() == ".gguf" and os.path.isfile(path))
        complete = grouped(path.relative_to(snapshot).as_posix() for path in paths)
        taken = {name for stem, names in complete.items() if names[0] not in found for name in names}
        for path in paths:
            name = path.relative_to(snapshot).as_posix()
            if name in taken or (name not in found and "mmproj" in path.name.lower()):
                found[name] = path
    return found


def _model(repository: str, label: str, names: tuple[str, ...], files: Mapping[str, Path]) -> StoredModel:
    projector = projector_of(files, names[0])
    paths = [files[name] for name in (*names, *([projector] if projector else []))]
    digests = {path: digest for path in paths if (digest := digest_of(path)) is not None}
    weights = tuple(paths[: len(names)])
    return StoredModel(f"{repository}:{label}", "hub", weights, files[projector] if projector else None, digests)


def find_in_cache(repository: str, label: str) -> StoredModel | None:
    """The model with this label; None if the cache has no model of the repository. Raises ModelNotFoundError."""
    files = _files(repository_folder(repository))
    groups = grouped(files)
    if not groups:
        return None
    stem = choose(groups, label, f"{repository}, as far as it is on this machine,")
    return _model(repository, labelled(groups)[stem], groups[stem], files)


def models_of_cache() -> Iterator[StoredModel]:
    """All models of the cache."""
    try:
        folders = sorted(cache_folder().glob("models--*--*"))
    except OSError:
        return
    for folder in folders:
        repository = folder.name.removeprefix("models--").replace("--", "/", 1)
        files = _files(folder)
        groups = grouped(files)
        for stem, label in labelled(groups).items():
            yield _model(repository, label, groups[stem], files)
