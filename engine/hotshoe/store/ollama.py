"""Models of an Ollama store, read in place: manifests name blobs, and a blob is a GGUF file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotshoe.store.files import StoredModel
from hotshoe_core.errors import ModelFileError, ModelNotFoundError, did_you_mean

__all__ = ["find_in_ollama", "models_of_ollama"]

_REGISTRY = "registry.ollama.ai"
_LAYER = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_MANIFEST = 1 << 20


def _stores() -> list[Path]:
    """The folders of Ollama's models: OLLAMA_MODELS, or the user's and that of the system's service."""
    if given := os.environ.get("OLLAMA_MODELS"):
        return [Path(given).expanduser()]
    return [Path("~/.ollama/models").expanduser(), Path("/usr/share/ollama/.ollama/models")]


def _name(parts: tuple[str, ...]) -> str:
    """The name that Ollama shows for registry, namespace, model and tag."""
    *place, model, tag = parts
    place = place[1:] if place[0] == _REGISTRY else place
    place = place[1:] if place == ["library"] else place
    return "/".join([*place, f"{model}:{tag}"])


def _manifests() -> Iterator[tuple[str, Path, Path]]:
    """Name, manifest and store of each model."""
    seen = set()
    for store in _stores():
        root = store / "manifests"
        try:
            paths = sorted(path for path in root.rglob("*") if path.is_file())
        except OSError:  # another user's folder
            continue
        for path in paths:
            parts = path.relative_to(root).parts
            if len(parts) == 4 and (name := _name(parts)) not in seen:  # registry, namespace, model, tag
                seen.add(name)
                yield name, path, store


def _read(name: str, manifest: Path, store: Path) -> StoredModel:
    """The model of a manifest. Raises ModelFileError if it is damaged, or if the model has no GGUF file."""
    try:
        with open(manifest, encoding="utf-8") as file:
            layers = json.loads(file.read(_MAX_MANIFEST))["layers"]
        found = [(str(layer["mediaType"]).removeprefix(_LAYER), layer["digest"]) for layer in layers]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelFileError(f"it is not a manifest of Ollama: {error}", path=manifest) from None
    kinds = [kind for kind, _ in found]
    if "adapter" in kinds:
        raise ModelFileError("the model has an adapter, which hotshoe does not support", path=manifest)
    if "model" not in kinds:
        raise ModelFileError(
            f"the model has no GGUF file; its layers are {', '.join(sorted(set(kinds))) or 'none'}", path=manifest
        )
    blobs = {kind: _blob(store, manifest, digest) for kind, digest in found if kind in ("model", "projector")}
    digests = {path: path.name.removeprefix("sha256-") for path in blobs.values()}
    return StoredModel(f"ollama:{name}", "ollama", (blobs["model"],), blobs.get("projector"), digests)


def _blob(store: Path, manifest: Path, digest: Any) -> Path:
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    path = store / "blobs" / f"sha256-{found[1]}" if found else None
    if path is None or not os.path.isfile(path):
        raise ModelFileError(
            f"its blob {digest!r:.100} is missing", path=manifest, hint="download it again with ollama pull"
        )
    return path


def find_in_ollama(name: str) -> StoredModel:
    """The model with the name that `ollama list` shows; the tag is "latest" if it is missing.

    Raises ModelNotFoundError, and ModelFileError for a model that is incomplete or that hotshoe cannot read.
    """
    known = {each: (manifest, store) for each, manifest, store in _manifests()}
    wanted = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    for each, place in known.items():
        if each.lower() == wanted.lower():
            return _read(each, *place)
    stores = " and ".join(map(str, _stores()))
    hint = did_you_mean(wanted, known) if known else "set OLLAMA_MODELS if Ollama's models are in another folder"
    raise ModelNotFoundError(f"Ollama has no model {wanted!r} in {stores}", hint=hint)


def models_of_ollama() -> Iterator[StoredModel]:
    """All models of Ollama's that are complete and have a GGUF file."""
    for name, manifest, store in _manifests():
        try:
            yield _read(name, manifest, store)
        except ModelFileError:
            continue
