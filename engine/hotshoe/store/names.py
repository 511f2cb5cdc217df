"""Names of models: what a name means, and all models of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hotshoe.store import records
from hotshoe.store.files import StoredModel
from hotshoe.store.hub import find_in_cache, models_of_cache
from hotshoe.store.lmstudio import find_in_lm_studio, models_of_lm_studio
from hotshoe.store.ollama import find_in_ollama, models_of_ollama
from hotshoe_core.errors import HotshoeError, ModelNotFoundError, similar

__all__ = ["CREATED_NAME", "HubName", "all_models", "find", "hub_name", "located", "named"]

CREATED_NAME = re.compile(r"(?!.*\.(?i:gguf)$)[A-Za-z0-9][\w.-]{0,99}(?::[\w.-]{1,50})?")
_HUB_NAME = re.compile(r"(?:hf\.co/|huggingface\.co/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([^:\\]+))?")
_OLLAMA, _LM_STUDIO = "ollama:", "lmstudio:"


class HubName(NamedTuple):
    """A name of Hugging Face's: ``ORG/REPO``, or with a label ``ORG/REPO:Q4_K_M``."""

    repository: str
    label: str
    """A quantization or a file; "" for the default."""


def hub_name(name: str) -> HubName | None:
    """The parts of a name of Hugging Face's, with or without ``hf.co/`` before it; None if it is another name."""
    found = _HUB_NAME.fullmatch(name)
    if found is None or found[1].lower().endswith(".gguf") or ".." in name:
        return None
    return HubName(found[1], found[2] or "")


def find(name: str) -> StoredModel:
    """The model of this machine with this name. Raises ModelNotFoundError; makes no network request."""
    if (model := _find_created(name) or _find_elsewhere(name)) is not None:
        return model
    near = similar(name, [model.name for model in all_models()])
    pull = "" if hub_name(name) is None else f"hotshoe pull {name} downloads it"
    hint = f"did you mean {near!r}?" if near else pull or "hotshoe list shows the models of this machine"
    raise ModelNotFoundError(f"{name} is neither a file nor a model of this machine", hint=hint)


def _find_created(name: str) -> StoredModel | None:
    for each in (name, name.removesuffix(":latest")):
        if (record := records.read("created", each)) is not None:
            return _created(record)
    return None


def _find_elsewhere(name: str) -> StoredModel | None:
    """The model with a name that nobody created; None for an unknown one. Raises ModelNotFoundError for those of which
    more can be said."""
    if name.startswith(_OLLAMA):
        return find_in_ollama(name.removeprefix(_OLLAMA))
    if name.startswith(_LM_STUDIO):
        repository, _, label = name.removeprefix(_LM_STUDIO).partition(":")
        return find_in_lm_studio(repository, label)
    on_hub = hub_name(name)
    return None if on_hub is None else find_in_cache(*on_hub)


def _created(record: Mapping[str, object]) -> StoredModel | None:
    """The model of a record that a client of the server made; None if its file was deleted."""
    name, source = str(record["key"]), record.get("from")
    if isinstance(source, str):
        try:
            model = _find_elsewhere(source)
        except HotshoeError:
            return None
        return model and StoredModel(name, "created", model.files, model.projector, model.digests)
    file, digest = Path(str(record.get("file"))), str(record.get("digest"))
    return StoredModel(name, "created", (file,), None, {file: digest}) if file.is_file() else None


def all_models() -> Iterator[StoredModel]:
    """All models of this machine that have names, of all sources."""
    yield from (model for record in records.records("created") if (model := _created(record)) is not None)
    yield from models_of_cache()
    yield from models_of_ollama()
    yield from models_of_lm_studio()


def named(model: object) -> StoredModel | None:
    """The model that a text names; None for a path: one that exists, and one that is like no name.

    Raises ModelNotFoundError for the name of a model that is not on this machine.
    """
    if not isinstance(model, str) or os.path.exists(os.path.expanduser(model)):
        return None
    if model.startswith((_OLLAMA, _LM_STUDIO)) or hub_name(model):
        return find(model)
    return _find_created(model) if CREATED_NAME.fullmatch(model) else None


def located(model: object) -> object:
    """The path of the file that a name means; other values are returned unchanged. Raises ModelNotFoundError."""
    found = named(model)
    return model if found is None else found.path
