"""Pull: download a model from the hub into Hugging Face's cache. The only module that makes network requests.

A file is written next to its place, under a name that no reader of the cache takes for a file. It moves there only when
it is complete and has the hash that the hub says. What was loaded before a process was ended is used by the next pull.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe.store import records
from hotshoe.store.files import StoredModel, choose, grouped, labelled, projector_of
from hotshoe.store.hub import DIGEST, cache_folder, find_in_cache, pull_key, repository_folder
from hotshoe.store.names import hub_name
from hotshoe.store.verify import hash_of, remember_hash
from hotshoe_core.errors import DownloadError, MissingPackageError
from hotshoe_core.errors.install import pip_install
from hotshoe_core.errors.text import format_bytes

__all__ = ["Progress", "RemoteFile", "pull"]


class RemoteFile(NamedTuple):
    """A file of a repository."""

    name: str
    size: int
    digest: str
    """SHA-256, or Git's SHA-1 for a file that Git holds itself."""


_NAME = re.compile(r"(?!.*(?:^|/)\.\.?(?:/|$))[^/\\:\0]+(?:/[^/\\:\0]+)*")
"""The name of a file inside its repository, and nowhere else."""
_COMMIT = re.compile(r"[0-9a-f]{40}")

Progress = Callable[[RemoteFile, int], None]
"""Called with a file and the bytes of it that are there."""


@dataclass(frozen=True, slots=True)
class _Remote:
    """A revision of a repository on the hub."""

    repository: str
    commit: str
    files: dict[str, RemoteFile]


def _nothing(*_: object) -> None:
    pass


def pull(name: str, *, say: Callable[[str], None] = _nothing, progress: Progress = _nothing) -> StoredModel:
    """Download a model, unless it is there, and return it. The parts of a split model and a projector belong to it.

    name: "ORG/REPO", or with a quantization or a file "ORG/REPO:Q4_K_M". say: is told what was chosen.
    Raises DownloadError, ModelNotFoundError for an unknown quantization, and MissingPackageError. What was there stays.
    """
    wanted = hub_name(name)
    if wanted is None:
        raise DownloadError(
            f"{name!r} is not the name of a repository; expected ORG/REPO or ORG/REPO:QUANT", hint=_hint(name)
        )
    with _explained(wanted.repository):
        remote = _look_up(wanted.repository)
    groups = grouped(remote.files)
    if not groups:
        raise DownloadError(
            f"{wanted.repository} has no GGUF file", hint="search the hub for a repository with -GGUF in its name, or "
            "download the checkpoint and convert it: hotshoe convert"
        )  # fmt: skip
    stem = choose(groups, wanted.label, wanted.repository)
    labels = labelled(groups)
    if not wanted.label and len(groups) > 1:
        others = ", ".join(sorted(label for each, label in labels.items() if each != stem))
        say(f"{labels[stem]} was chosen; there are also {others}")
    projector = projector_of(remote.files, stem)
    files = [remote.files[each] for each in (*groups[stem], *([projector] if projector else []))]
    brought = _fetch(remote, files, say, progress)
    _remember(pull_key(wanted.repository, groups[stem][0]), remote, files, brought)
    model = find_in_cache(wanted.repository, stem)
    assert model is not None  # its files are there
    return model


def _hint(name: str) -> str:
    if name.startswith("ollama:"):
        return f"ollama pull {name.removeprefix('ollama:')} downloads it; hotshoe reads it there"
    return "for example hotshoe pull Qwen/Qwen3-0.6B-GGUF:Q8_0"


def _look_up(repository: str) -> _Remote:
    """The newest revision of a repository. Raises what huggingface_hub raises."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(repository, files_metadata=True)
    files = {}
    for file in info.siblings or ():
        digest = file.lfs.sha256 if file.lfs is not None else file.blob_id
        if file.rfilename.lower().endswith(".gguf"):
            if not _NAME.fullmatch(file.rfilename) or not DIGEST.fullmatch(digest or "") or file.size is None:
                raise DownloadError(
                    f"the hub says that {repository} has {file.rfilename!r:.200} of {file.size} bytes with the hash "
                    f"{digest!r:.100}; expected a file's name, its size and its hash",
                    hint="try again later",
                )
            files[file.rfilename] = RemoteFile(file.rfilename, file.size, digest or "")
    if not _COMMIT.fullmatch(info.sha or ""):
        raise DownloadError(
            f"the hub says of {repository} that its revision is {info.sha!r:.100}", hint="try again later"
        )
    return _Remote(repository, info.sha or "", files)


def _fetch(remote: _Remote, files: list[RemoteFile], say: Callable[[str], None], progress: Progress) -> set[str]:
    """Bring the files that are missing into the cache. Returns their names."""
    blobs = repository_folder(remote.repository) / "blobs"
    missing = [file for file in files if not (blobs / file.digest).is_file()]
    with _explained(remote.repository):
        blobs.mkdir(parents=True, exist_ok=True)
        _require_space(remote.repository, missing, blobs)
        for file in missing:  # so that the whole size is known from the start
            progress(file, _there(blobs, file))
        for file in missing:
            say(f"{file.name}: {format_bytes(file.size)}")
            _download(remote, file, blobs, progress)
        for file in files:
            _link(remote, file)
        refs = repository_folder(remote.repository) / "refs"
        refs.mkdir(exist_ok=True)
        (refs / "main").write_text(remote.commit, encoding="utf-8")
    return {file.name for file in missing}


def _require_space(repository: str, files: list[RemoteFile], folder: Path) -> None:
    needed = sum(file.size - _there(folder, file) for file in files)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadError(
            f"{repository} needs {format_bytes(needed)} more in {folder}, whose disk has {format_bytes(free)} free",
            hint="hotshoe list shows what takes space, hotshoe rm deletes it; HF_HUB_CACHE names another folder",
        )


def _part(folder: Path, file: RemoteFile) -> Path:
    return folder / f"{file.digest}.hotshoe.incomplete"


def _there(folder: Path, file: RemoteFile) -> int:
    """The bytes of a file that an earlier pull left."""
    try:
        return min(_part(folder, file).stat().st_size, file.size)
    except OSError:
        return 0


def _download(remote: _Remote, file: RemoteFile, folder: Path, progress: Progress) -> None:
    """Download a file, compare it with its hash, and move it to its place."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE
    from huggingface_hub.file_download import hf_hub_download, http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]

    bar = _reporting(file, progress)
    if file.size > MAX_HTTP_DOWNLOAD_SIZE:  # the hub gives it in chunks only; it is compared before it is first loaded
        hf_hub_download(remote.repository, file.name, revision=remote.commit, tqdm_class=bar)
        return
    lock = cache_folder() / ".locks" / folder.parent.name / f"{file.digest}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(remote.repository, file.name, revision=remote.commit)
    with WeakFileLock(lock):
        if (folder / file.digest).is_file():  # another pull brought it
            return
        part, there = _part(folder, file), _there(folder, file)
        with open(part, "r+b" if part.exists() else "wb") as target:
            target.truncate(there)
            target.seek(there)
            headers = build_hf_headers(library_name="hotshoe")
            http_get(url, target, resume_size=there, headers=headers, expected_size=file.size, tqdm_class=bar)
            target.flush()
            os.fsync(target.fileno())
        if (found := hash_of(part, file.digest)) != file.digest:
            part.unlink()
            raise DownloadError(
                f"{file.name} was damaged on its way: its hash is {found[:12]}…; the hub says {file.digest[:12]}…",
                hint="pull again; if it happens again, report it to the owners of the repository",
            )
        os.replace(part, folder / file.digest)
        remember_hash(folder / file.digest, file.digest)


def _reporting(file: RemoteFile, progress: Progress) -> type[Any]:
    """A class in the place of tqdm's bar, which calls ``progress``."""

    class Bar:
        def __init__(self, *args: Any, initial: int = 0, **options: Any) -> None:
            self.n = initial
            progress(file, self.n)

        def update(self, n: int = 1) -> None:
            self.n += n
            progress(file, self.n)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar


def _link(remote: _Remote, file: RemoteFile) -> None:
    """Make the file appear in the revision's folder, as huggingface_hub does. Windows may have no links to files."""
    folder = repository_folder(remote.repository)
    blob, pointer = folder / "blobs" / file.digest, folder / "snapshots" / remote.commit / file.name
    if pointer.is_file() and os.path.samefile(pointer, blob):
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        os.link(blob, pointer)


def _remember(key: str, remote: _Remote, files: list[RemoteFile], brought: set[str]) -> None:
    """Record which files this pull or an earlier one brought, older revisions too: `hotshoe rm` deletes only those."""
    earlier = [record for record in records.records("pulled") if record["repository"] == remote.repository]
    ours = {entry["digest"] for record in earlier for entry in record["files"] if entry["brought"]}
    entries = {entry["digest"]: entry for record in earlier if record["key"] == key for entry in record["files"]}
    for file in files:
        is_ours = file.name in brought or file.digest in ours
        entries[file.digest] = {"name": file.name, "digest": file.digest, "brought": is_ours}
    value = {"repository": remote.repository, "commit": remote.commit, "files": list(entries.values())}
    with _explained(remote.repository):
        records.remember("pulled", key, value)


@contextlib.contextmanager
def _explained(repository: str) -> Iterator[None]:
    """Turn the errors of the network, of the hub and of the disk into DownloadError."""
    try:
        yield
    except (DownloadError, MissingPackageError):
        raise
    except ImportError as error:
        raise MissingPackageError(f"hotshoe pull needs {error.name}", hint=pip_install("hotshoe[hub]")) from error
    except Exception as error:
        if (found := _explain(repository, error)) is None:
            raise
        raise found from error


_STATUS = {
    401: ("the hub wants to know who asks", "the name may be misspelt; for a private repository: hf auth login"),
    403: (
        "the hub does not let you download it",
        "accept the licence on the repository's page, then: hf auth login, with a token that may read it",
    ),
    404: ("the hub has no such repository", "check the name: ORG/REPO, as in the address of its page"),
    429: ("the hub refuses more requests for now", "wait some minutes; hf auth login raises the limit"),
}


def _explain(repository: str, error: Exception) -> DownloadError | None:
    """The error in our words; None if it comes neither from the hub nor from the disk."""
    from huggingface_hub import errors

    again = "what was loaded is kept: the same command goes on from there"
    response = getattr(error, "response", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadError(
            f"cannot pull {repository}: HF_HUB_OFFLINE is set",
            hint="unset it; hotshoe list shows what is on this machine",
        )
    if isinstance(error, errors.GatedRepoError):
        what, hint = _STATUS[403]
        return DownloadError(f"cannot pull {repository}: {what} (it is gated)", hint=hint)
    if isinstance(error, errors.HfHubHTTPError) and response is not None:
        status = response.status_code
        what, hint = _STATUS.get(status, (f"the hub answered with status {status}", f"try again later; {again}"))
        return DownloadError(f"cannot pull {repository}: {what} (status {status})", hint=hint)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DownloadError(
            f"cannot pull {repository}: the disk is full ({error.strerror})", hint=f"make space; {again}"
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return DownloadError(
            f"cannot pull {repository}: {error.filename}: {error.strerror}", hint="check the permissions"
        )
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore"):
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return DownloadError(f"cannot pull {repository}: the connection failed: {text}", hint=f"try again; {again}")
    return None
