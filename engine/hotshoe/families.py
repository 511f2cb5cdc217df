"""Families: models, converters and tokenizers, from this distribution and from others, found by name.

A distribution that offers one has an entry point; nothing of it is imported before a file asks for it by name.

    [project.entry-points."hotshoe.models"]        # name: general.architecture of a GGUF file
    mine = "my_package.mine:family"                # a Family
    [project.entry-points."hotshoe.converters"]    # name: architectures[0] of a config.json
    MineForCausalLM = "my_package.convert:describe"
    [project.entry-points."hotshoe.tokenizers"]    # name: tokenizer.ggml.model
    mine = "my_package.tokenizer:build"
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe_core.errors import ModelDefinitionError, ModelError, UnknownArchitectureError, did_you_mean
from hotshoe_loader.find import PluginCandidate, find_entry_points
from hotshoe_loader.options import normalise

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe_core.gguf import Metadata

__all__ = ["CONVERTERS", "MODELS", "TOKENIZERS", "Family", "find", "find_model", "names"]

MODELS = "hotshoe.models"
CONVERTERS = "hotshoe.converters"
TOKENIZERS = "hotshoe.tokenizers"
BLOCK = "HOTSHOE_BLOCK"


class Family(NamedTuple):
    """The models of one architecture: the class, or the rule that picks it by a file's metadata."""

    model: type[Module] | Callable[[Metadata], type[Module]]

    def model_for(self, metadata: Metadata) -> type[Module]:
        """The class that implements the file of these metadata."""
        if isinstance(self.model, type):
            return self.model
        return self.model(metadata)


def names(group: str) -> list[str]:
    """Every name that some installed distribution offers in the group."""
    return sorted({entry.name for entry in _entries(group)})


def find(group: str, name: str) -> Any:
    """The object that the one entry point of this name names, imported now.

    Raises UnknownArchitectureError with the nearest name; ModelError where two distributions claim the name, and for
    an entry point that cannot be imported, whose own error is the cause.
    """
    found = [entry for entry in _entries(group) if entry.name == name]
    if not found:
        raise UnknownArchitectureError(
            f"no installed distribution has an entry point {name[:60]!r} in {group!r}",
            hint=did_you_mean(name, names(group)),
        )
    if len(found) > 1:
        who = " and ".join(f"{entry.origin} ({entry.value})" for entry in found)
        other = next((e.distribution for e in found if normalise(e.distribution) != "hotshoe"), found[-1].distribution)
        raise ModelError(
            f"{name!r} in {group!r} is claimed by {len(found)} distributions: {who}",
            hint=f"choose by blocking the other: {BLOCK}={other} in the environment, or pip uninstall {other}",
        )
    return _load(group, found[0])


def find_model(metadata: Metadata) -> type[Module]:
    """The model class for a file. Raises what ``find`` raises, and ModelDefinitionError for a family that is none."""
    from hotshoe.nn import Module  # tokenizers and converters are found without it

    architecture = metadata.architecture
    try:
        family = find(MODELS, architecture)
    except UnknownArchitectureError as error:
        raise UnknownArchitectureError(
            f"no model implements the architecture {architecture[:60]!r}", hint=error.hint
        ) from None
    if not isinstance(family, Family):
        raise ModelDefinitionError(
            f"the entry point {architecture!r} of {MODELS!r} is a {type(family).__name__}; expected a Family",
            hint="name a module attribute such as `family = Family(Model)`",
        )
    model = family.model_for(metadata)
    if not (isinstance(model, type) and issubclass(model, Module)):
        raise ModelDefinitionError(
            f"the family of {architecture!r}, {family.model!r}, gives {model!r}; expected a subclass of Module"
        )
    return model


def _entries(group: str) -> Iterator[PluginCandidate]:
    """Those of distributions that are not blocked, and of each distribution the copy that Python sees."""
    blocked = {normalise(name) for name in os.environ.get(BLOCK, "").split(",")}
    for entry in _scan(tuple((folder, _changed(folder)) for folder in sys.path))[group]:
        if entry.shadowed_by is None and entry.problem is None and normalise(entry.distribution) not in blocked:
            yield entry


@functools.lru_cache(maxsize=1)
def _scan(path: tuple[tuple[str, int], ...]) -> dict[str, list[PluginCandidate]]:
    """All groups at once: each distribution's list is read for the first family asked for, and not for the others.

    path: where Python looks, and when each folder last changed: what is installed meanwhile is found.
    """
    return find_entry_points((MODELS, CONVERTERS, TOKENIZERS))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _load(group: str, entry: PluginCandidate) -> Any:
    where = f"the entry point {entry.name} = {entry.value} of {entry.origin}, group {group!r},"
    if not (entry.module and entry.attribute):
        raise ModelError(f"{where} does not name an object; expected 'module:attribute'")
    try:
        found: Any = importlib.import_module(entry.module)
        for attribute in entry.attribute.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        raise ModelError(
            f"{where} cannot be imported: {type(error).__name__}: {error}",
            hint=f"the traceback above is its own; pip install --upgrade {entry.distribution}, or report it there",
        ) from error
    return found
