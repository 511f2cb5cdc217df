"""Families: find models, converters, tokenizers and towers by name, in this distribution and in others.

A distribution offers them with entry points. Nothing is imported until a file needs it:

    [project.entry-points."hotshoe.models"]        # name: general.architecture of a GGUF file
    mine = "my_package.mine:family"                # a Family
    [project.entry-points."hotshoe.converters"]    # name: architectures[0] of a config.json
    MineForCausalLM = "my_package.convert:describe"
    [project.entry-points."hotshoe.tokenizers"]    # name: tokenizer.ggml.model
    mine = "my_package.tokenizer:build"
    [project.entry-points."hotshoe.towers"]        # name: clip.projector_type of an mmproj file
    mine = "my_package.vision:Tower"
    [project.entry-points."hotshoe.tower_converters"]  # name: architectures[0] of a config.json
    MineForConditionalGeneration = "my_package.convert:describe_tower"
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe_core.errors import HotshoeError, ModelDefinitionError, ModelError, UnknownArchitectureError, did_you_mean
from hotshoe_loader.find import EntryPoint, find_entry_points
from hotshoe_loader.options import normalise

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe_core.gguf import Metadata

__all__ = [
    "CONVERTERS",
    "MODELS",
    "TOKENIZERS",
    "TOWERS",
    "TOWER_CONVERTERS",
    "Family",
    "author_line",
    "find",
    "find_model",
    "names",
    "place_of",
]

MODELS = "hotshoe.models"
CONVERTERS = "hotshoe.converters"
TOKENIZERS = "hotshoe.tokenizers"
TOWERS = "hotshoe.towers"
TOWER_CONVERTERS = "hotshoe.tower_converters"
BLOCK = "HOTSHOE_BLOCK"
_GROUPS = (MODELS, CONVERTERS, TOKENIZERS, TOWERS, TOWER_CONVERTERS)

_SLOTS = "lay-out conflict"  # Python's message names neither the classes nor the reason


class Family(NamedTuple):
    """The models of one architecture of GGUF: what an entry point of "hotshoe.models" names.

    family = Family(Model)
    """

    model: type[Module] | Callable[[Metadata], type[Module]]
    """The model class, or a function that picks the class from a file's metadata."""

    def model_for(self, metadata: Metadata) -> type[Module]:
        """The model class for a file with this metadata."""
        if isinstance(self.model, type):
            return self.model
        return self.model(metadata)


def names(group: str) -> list[str]:
    """All names that the installed distributions offer in an entry point group, sorted."""
    return sorted({entry.name for entry in _entries(group)})


def find(group: str, name: str) -> Any:
    """Import and return the object of the entry point ``name`` in ``group``.

    Raises UnknownArchitectureError, with a similar name as hint, if no distribution offers the name; ModelError if
    several distributions offer it, or if it cannot be imported.
    """
    found = [entry for entry in _entries(group) if entry.name == name]
    if not found:
        raise UnknownArchitectureError(
            f"no installed distribution has an entry point {name[:60]!r} in {group!r}",
            hint=did_you_mean(name, names(group)),
        )
    if len(found) > 1:
        claims = " and ".join(f"{entry.origin} ({entry.value})" for entry in found)
        other = next((e.distribution for e in found if normalise(e.distribution) != "hotshoe"), found[-1].distribution)
        raise ModelError(
            f"{name!r} in {group!r} is claimed by {len(found)} distributions: {claims}",
            hint=f"block one of them: {BLOCK}={other} in the environment, or pip uninstall {other}",
        )
    return _load(group, found[0])


def find_model(metadata: Metadata) -> type[Module]:
    """Return the model class for a file.

    Raises UnknownArchitectureError if no distribution implements the architecture; ModelError if several do, or if the
    entry point cannot be imported; ModelDefinitionError if the entry point is not a Family.
    """
    from hotshoe.nn import Module  # imported late: tokenizers and converters do not need it

    architecture = metadata.architecture
    try:
        family = find(MODELS, architecture)
    except UnknownArchitectureError:
        from hotshoe.refused_families import REFUSED

        # A file's architecture is not misspelt, so a similar name ("qwen2" for "qwen2vl") is another architecture.
        why = REFUSED.get(architecture)
        raise UnknownArchitectureError(
            f"no model implements the architecture {architecture[:60]!r}{f': {why}' if why else ''}",
            hint="docs/families.md lists what hotshoe implements, docs/models.md says how a package can add one",
        ) from None
    if not isinstance(family, Family):
        raise ModelDefinitionError(
            f"the entry point {architecture!r} of {MODELS!r} is of type {type(family).__name__}; expected a Family",
            hint="it must name an attribute such as `family = Family(Model)`",
        )
    model = family.model_for(metadata)
    if not (isinstance(model, type) and issubclass(model, Module)):
        raise ModelDefinitionError(
            f"the family of {architecture!r}, {family.model!r}, returned {model!r}; expected a subclass of Module"
        )
    return model


def _entries(group: str) -> Iterator[EntryPoint]:
    """The entry points of a group, without blocked distributions and without copies that Python does not import."""
    blocked = {normalise(name) for name in os.environ.get(BLOCK, "").split(",")}
    for entry in _scan(tuple((folder, _modified_ns(folder)) for folder in sys.path))[group]:
        if entry.shadowed_by is None and entry.problem is None and normalise(entry.distribution) not in blocked:
            yield entry


@functools.lru_cache(maxsize=1)
def _scan(path: tuple[tuple[str, int], ...]) -> dict[str, list[EntryPoint]]:
    """Read the entry points of all groups at once, so that each distribution's file is read only once.

    path: the folders of sys.path and their modification times, so that new installations are found.
    """
    return find_entry_points(_GROUPS)


def _modified_ns(folder: str) -> int:
    """The modification time of a folder in nanoseconds; 0 if it cannot be read."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def _load(group: str, entry: EntryPoint) -> Any:
    label = f"the entry point {entry.name} = {entry.value} of {entry.origin}, group {group!r},"
    if not (entry.module and entry.attribute):
        raise ModelError(f"{label} does not name an object; expected 'module:attribute'")
    try:
        found: Any = importlib.import_module(entry.module)
        for attribute in entry.attribute.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:
        upgrade, place = entry.pip_install("--upgrade"), place_of(error, f"the module {entry.module}")
        problem, own = (error.message, error.hint) if isinstance(error, HotshoeError) else (str(error), None)
        if _SLOTS in problem:
            own = f"two base classes are dataclasses with slots=True: leave slots=True out of one of them, see {place}"
        raise ModelError(
            f"{label} cannot be imported: {type(error).__name__}: {problem}",
            hint=own or f"correct {place}; if it is not yours, {upgrade}, or report it",
        ) from error
    return found


def place_of(error: BaseException, otherwise: str) -> str:
    """The file and line of the statement that raised ``error``, or that Python could not parse.

    ``otherwise`` if that is the import itself.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    return f"{outside[-1].filename}, line {outside[-1].lineno}" if outside else otherwise


def author_line(error: BaseException) -> str | None:
    """The file and line of the last statement of a family's package that raised ``error``, without hotshoe's own.

    None if no code of such a package was running.
    """
    entries = [entry for group in _GROUPS for entry in _entries(group)]
    packages = {str(e.module).partition(".")[0] for e in entries if normalise(e.distribution) != "hotshoe"}
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in packages:
            found = f"{frame.f_code.co_filename}, line {line}"
    return found
