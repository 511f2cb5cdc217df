"""Models of LM Studio's folder, read in place: ORG/REPO/FILE.gguf."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from hotshoe.store.files import StoredModel, choose, grouped, labelled, projector_of
from hotshoe_core.errors import ModelNotFoundError, did_you_mean

__all__ = ["find_in_lm_studio", "models_of_lm_studio"]

_MAX_SETTINGS = 1 << 20


def _roots() -> list[Path]:
    """The folders of LM Studio's models: that of its settings, and the defaults of new and old versions."""
    home = Path("~").expanduser()
    lm_studio = home / ".lmstudio"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        lm_studio = Path((home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip() or lm_studio)
    found = [lm_studio / "models", home / ".cache" / "lm-studio" / "models"]
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        with open(lm_studio / "settings.json", encoding="utf-8") as file:
            given = json.loads(file.read(_MAX_SETTINGS))["downloadsFolder"]
        found.insert(0, Path(given).expanduser())
    return list(dict.fromkeys(found))


def _repositories() -> dict[str, dict[str, Path]]:
    """The GGUF files of each ORG/REPO, by their path in it."""
    found: dict[str, dict[str, Path]] = {}
    for root in _roots():
        try:
            folders = sorted(path for path in root.glob("*/*") if path.is_dir())
        except OSError:
            continue
        for folder in folders:
            ggufs = (path for path in folder.rglob("*") if path.suffix.lower() == ".gguf")
            files = sorted(path for path in ggufs if os.path.isfile(path))
            if files:
                by_name = {path.relative_to(folder).as_posix(): path for path in files}
                found.setdefault(folder.relative_to(root).as_posix(), by_name)
    return found


def _models(repository: str, files: dict[str, Path]) -> dict[str, StoredModel]:
    groups, found = grouped(files), {}
    for stem, label in labelled(groups).items():
        names, name = groups[stem], f"lmstudio:{repository}:{label}"
        projector = projector_of(files, names[0])
        weights = tuple(files[name] for name in names)
        found[stem] = StoredModel(name, "lmstudio", weights, files[projector] if projector else None)
    return found


def find_in_lm_studio(repository: str, label: str) -> StoredModel:
    """The model with this label. Raises ModelNotFoundError."""
    repositories = _repositories()
    known = {name.lower(): name for name in repositories}
    name = known.get(repository.lower(), "")
    models = _models(name, repositories[name]) if name else {}
    if not models:
        folders = " and ".join(map(str, _roots()))
        hint = did_you_mean(repository, repositories) if repositories else "check the folder in LM Studio's settings"
        raise ModelNotFoundError(f"LM Studio has no model {repository!r} in {folders}", hint=hint)
    return models[choose(grouped(repositories[name]), label, f"LM Studio's {name}")]


def models_of_lm_studio() -> Iterator[StoredModel]:
    """All models of LM Studio's."""
    for repository, files in _repositories().items():
        yield from _models(repository, files).values()
