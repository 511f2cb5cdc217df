"""Delete a model that `hotshoe pull` brought or that a client created. Files of other programs are never deleted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hotshoe.store import records
from hotshoe.store.files import StoredModel
from hotshoe.store.hub import pull_key, repository_folder
from hotshoe_core.errors import ModelError

__all__ = ["delete", "files_to_delete"]

_OWNERS = {
    "ollama": ("Ollama's", "ollama rm {name}"),
    "lmstudio": ("LM Studio's", "delete it in LM Studio, or with: rm {path}"),
    "hub": ("not brought by hotshoe pull", "hf cache rm model/{repository}"),
}


def files_to_delete(model: StoredModel) -> list[Path]:
    """The files that ``delete`` would delete: what pull brought, older revisions too, and no other pulled model needs.

    Raises ModelError if the model belongs to another program; the hint says how to delete it there.
    """
    if model.source == "created":
        return [
            file
            for file in model.files
            if file.parent == records.data_folder() / "uploads" and _is_unshared(model, file)
        ]
    key = pull_key(_repository(model), model.path) if model.source == "hub" else ""
    record = records.read("pulled", key)
    brought = [entry for entry in record["files"] if entry["brought"]] if record is not None else []
    if record is None or key not in (pull_key(record["repository"], entry["name"]) for entry in brought):
        what, how = _OWNERS[model.source]
        name = model.name.partition(":")[2] if model.source == "ollama" else model.name
        hint = how.format(name=name, path=model.path, repository=_repository(model))
        raise ModelError(f"{model.name} is {what}; hotshoe deletes only what it brought", hint=hint)
    needed = {
        entry["digest"]
        for other in records.records("pulled")
        if other["key"] != key and other["repository"] == record["repository"]
        for entry in other["files"]
    }
    blobs = repository_folder(record["repository"]) / "blobs"
    ours = {entry["digest"] for entry in brought} - needed
    return sorted(blob for digest in ours if (blob := blobs / digest).is_file())


def _repository(model: StoredModel) -> str:
    return model.name.partition(":")[0]


def _is_unshared(model: StoredModel, file: Path) -> bool:
    return not any(
        record.get("file") == str(file) for record in records.records("created") if record["key"] != model.name
    )


def delete(model: StoredModel) -> None:
    """Delete a model's files, and forget it. Raises ModelError for a model of another program, OSError."""
    files = files_to_delete(model)
    if model.source == "hub":
        folder, key = repository_folder(_repository(model)), pull_key(_repository(model), model.path)
        for pointer in [path for path in (folder / "snapshots").rglob("*") if _is_one_of(path, files)]:
            pointer.unlink()
    for file in files:
        records.forget("verified", os.path.realpath(file))
        file.unlink(missing_ok=True)
    if model.source == "hub":
        _remove_empty(folder)
        records.forget("pulled", key)
    else:
        records.forget("created", model.name)


def _is_one_of(path: Path, files: list[Path]) -> bool:
    """Whether a path is a link to one of the files: a hard link where there are no other ones."""
    with contextlib.suppress(OSError):
        return any(os.path.samefile(path, file) for file in files)
    return False


def _remove_empty(folder: Path) -> None:
    """Delete the folders of a repository that are empty now; the whole repository if no file is left in it."""
    for path in sorted((folder / "snapshots").rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    with contextlib.suppress(OSError):
        (folder / "snapshots").rmdir()
        (folder / "blobs").rmdir()
        (folder / "refs" / "main").unlink(missing_ok=True)
        (folder / "refs").rmdir()
        folder.rmdir()
