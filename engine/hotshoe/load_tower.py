"""Find and load the encoders of pictures and sounds that belong to a text model: its second file (mmproj)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe import families
from hotshoe.inner_towers import inner_tower
from hotshoe.media import AUDIO, IMAGE, MEDIA, Medium
from hotshoe.nn.binder import bind, check_layers
from hotshoe.nn.vision import Tower
from hotshoe.runner.media_encoder import LoadedTower
from hotshoe.unread_keys import check_all_read
from hotshoe_core import DeviceType, Placement
from hotshoe_core.errors import (
    HotshoeError,
    InsufficientMemoryError,
    ModelDefinitionError,
    ModelError,
    ModelFileError,
    UnknownArchitectureError,
)
from hotshoe_core.errors.arguments import described, file_path
from hotshoe_core.gguf import GGUFFile

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe_core import BackendParams, Device
    from hotshoe_core.gguf import Metadata
    from hotshoe_loader import Registry

__all__ = ["FoundTower", "Search", "find_tower", "load_tower", "media_of", "tower_of"]

logger = logging.getLogger("hotshoe.images")

_ARCHITECTURE = "clip"
_MAX_FILES = 64  # candidates next to a model
_OF_SOUNDS = ("a.", "mm.a.")
"""What the tensors of encoders of sounds begin with."""
_SHARED = {("qwen2.5o", IMAGE): "qwen2.5o.pictures"}
"""Types that a file's encoders of pictures and of sounds share: the name of the tower that one of them needs."""


class Search(NamedTuple):
    """The result of looking for a model's encoders of pictures and sounds."""

    found: tuple[FoundTower, ...] = ()
    """At most one for each medium."""
    unused: tuple[str, ...] = ()
    """The encoders that are not used, each with the reason."""


class FoundTower(NamedTuple):
    """The file of a tower, opened and checked, and a tower without weights."""

    file: GGUFFile
    tower: Tower

    @property
    def nbytes(self) -> int:
        """The size of its tensors in the file."""
        names = {name for p in self.tower.parameters() for name in p.names}
        return sum(info.nbytes for name, info in self.file.tensors.items() if name in names)


def find_tower(projector: Any, file: GGUFFile, model: Module, known: Path | None = None) -> Search:
    """Open the file of the towers: the given one, the one next to the model's that belongs to it, or the model's own.

    projector: the path of the file; None to look for it; False for no tower. known: the file that a store has for the
    model, which is used if it fits; None to look in the model's folder. Raises ModelError if the given file does
    not belong to the model, ModelFileError or WeightsError if it is damaged, UnknownArchitectureError if no
    installed distribution has a tower of its kind. Of a file with two encoders, one that no distribution has is left
    alone, and ``unused`` says so.
    """
    if projector is False:
        return Search(unused=("projector is False",))
    if projector is not None:
        if projector is True:
            raise ModelError(f"projector is {described(projector)}; expected a path, None, or False for no encoder")
        path = file_path("projector", projector, ModelError)
        return _all_in(path, file, model)
    search = _next_to(file, model, known)
    return search if search.found else _inside(file, model, search.unused)


def _all_in(path: Path, file: GGUFFile, model: Module) -> Search:
    """The towers in one file. Raises as ``find_tower`` does for a given file."""
    with _open(path) as opened:
        media = media_of(opened)
    found: list[FoundTower] = []
    unused: list[str] = []
    try:
        for medium in media:
            opened = _open(path)
            try:
                opened = _part_of(opened, medium) if len(media) > 1 else opened
                tower = tower_of(opened, medium)
                if reason := _mismatch(tower, file, model):
                    raise ModelError(
                        f"{path} does not belong to {file.path}: {reason}",
                        hint="give the mmproj file of the same model",
                    )
            except UnknownArchitectureError as error:
                opened.close()
                if len(media) == 1:
                    raise
                unused.append(_log(f"the encoder of {medium.many} in {path.name}", error.message))
                continue
            except BaseException:
                opened.close()
                raise
            found.append(FoundTower(opened, tower))
        if not found:
            raise UnknownArchitectureError(f"{path}: {'; '.join(unused)}", hint="a package can add one: docs/towers.md")
    except BaseException:
        _close(found)
        raise
    return Search(tuple(found), tuple(unused))


def _part_of(file: GGUFFile, medium: Medium) -> GGUFFile:
    """The file without the tensors of its other encoder."""
    tensors = {name: info for name, info in file.tensors.items() if name.startswith(_OF_SOUNDS) == (medium is AUDIO)}
    return file.changed(file.metadata, tensors)


def _close(found: Iterable[FoundTower]) -> None:
    for each in found:
        each.file.close()


def _inside(file: GGUFFile, model: Module, unused: tuple[str, ...]) -> Search:
    """The tower in the model's own file, if it fits."""
    opened = None
    try:
        opened = inner_tower(file)
        if opened is None:
            return Search(unused=unused)
        tower = tower_of(opened, IMAGE)
        reason = _mismatch(tower, file, model)
    except HotshoeError as error:
        reason = f"{error.message}; {error.hint}" if error.hint else error.message
    if opened is not None:
        if reason is None:
            return Search((FoundTower(opened, tower),))
        opened.close()
    return Search(unused=(*unused, _log(f"the encoder in {file.path.name}", reason)))


def _next_to(file: GGUFFile, model: Module, known: Path | None) -> Search:
    """The towers in the model's folder that fit; of several files, one in f16, or else the smallest."""
    fitting: list[Search] = []
    unused: list[str] = []
    for path in [known] if known else sorted(file.path.parent.glob("*mmproj*.gguf"))[:_MAX_FILES]:
        if path == file.path:
            continue
        try:
            fitting.append(_all_in(path, file, model))
        except HotshoeError as error:
            unused.append(_log(path.name, error.message))
    fitting.sort(key=_preference)
    for other in fitting[1:]:
        _log(other.found[0].file.path.name, f"{fitting[0].found[0].file.path.name} fits too")
        _close(other.found)
    chosen = fitting[0] if fitting else Search()
    return Search(chosen.found, (*chosen.unused, *unused))


def _preference(search: Search) -> tuple[bool, int]:
    file = search.found[0].file
    return "f16" not in file.path.name.lower().replace("bf16", ""), file.nbytes


def _log(what: str, reason: str | None) -> str:
    text = f"{what} is not used: {reason}"
    logger.info("%s", text)
    return text


def load_tower(found: FoundTower, registry: Registry, device: Any, params: BackendParams) -> LoadedTower:
    """Load a tower onto the best of the requested devices, or onto the CPU if that has too little memory for it.

    Raises as ``hotshoe.load_model`` does for a device; InsufficientMemoryError if it fits nowhere.
    """
    chosen = registry.select(device)[0]
    try:
        return _load(found, registry, chosen, params)
    except InsufficientMemoryError as error:
        cpus = [d for d in registry.devices if d.type is DeviceType.CPU and d.family == chosen.family]
        if device is not None or chosen.type is DeviceType.CPU or not cpus:
            raise
        logger.warning("%s; the encoder of %s is on %s", error.message, found.tower.medium.many, cpus[0].name)
        return _load(found, registry, cpus[0], params)


def _load(found: FoundTower, registry: Registry, device: Device, params: BackendParams) -> LoadedTower:
    backend = registry.open(device, params)
    try:
        name = backend.devices[0].name
        placement = Placement(name, (name,) * found.tower.config.n_layers, name)
        tower = type(found.tower)(found.tower.config)  # an earlier attempt may have bound the other
        bind(tower, found.file, backend, placement=placement)
        return LoadedTower(tower, backend, found.file)
    except BaseException:
        backend.close()
        raise


def _open(path: Path) -> GGUFFile:
    file = GGUFFile(path)
    if file.architecture == _ARCHITECTURE:
        return _with_names(file)
    architecture = file.architecture
    try:
        inner = inner_tower(file)
    finally:
        file.close()
    if inner is not None:
        return _with_names(inner)
    raise ModelError(
        f"{path} is a {architecture[:40]!r} model; expected an encoder of pictures or sounds, whose architecture is "
        "'clip'",
        hint="give the file whose name begins with mmproj",
    )


def _with_names(file: GGUFFile) -> GGUFFile:
    """Exchange the names of ``ffn_up`` and ``ffn_down`` where old converters confused them. Nothing is copied."""
    dim, tensors = file.metadata.get("clip.vision.embedding_length"), dict(file.tensors)
    for name, info in file.tensors.items():
        up = name.replace(".ffn_down.", ".ffn_up.")
        # ffn_down makes hidden states, of dim elements; ffn_up reads them
        if up != name and name.endswith(".weight") and info.shape[1:] == (dim,) != info.shape[:1] and up in tensors:
            pairs = [(up, name), (up.replace(".weight", ".bias"), name.replace(".weight", ".bias"))]
            for one, other in (pair for pair in pairs if set(pair) <= tensors.keys()):
                tensors |= {one: file.tensors[other]._replace(name=one), other: file.tensors[one]._replace(name=other)}
    return file if tensors == file.tensors else file.changed(file.metadata, tensors)


def media_of(file: GGUFFile) -> tuple[Medium, ...]:
    """Return what the encoders in a file read; pictures if the file does not say it."""
    arch = file.metadata.arch
    return tuple(medium for medium in MEDIA if arch.get(f"has_{medium.section}_encoder", False)) or (IMAGE,)


def tower_of(file: GGUFFile, medium: Medium) -> Tower:
    """Return a tower of a file, without weights: the one that reads pictures, or the one that reads sounds."""
    metadata = file.metadata
    kind = _kind(metadata, medium)
    try:
        tower_class = families.find(families.TOWERS, kind)
    except UnknownArchitectureError:
        raise UnknownArchitectureError(
            f"{file.path}: no tower implements the projector {kind[:60]!r}",
            hint=f"a package can add it, see docs/towers.md; implemented: {', '.join(families.names(families.TOWERS))}",
        ) from None
    if not (isinstance(tower_class, type) and issubclass(tower_class, Tower)):
        raise ModelDefinitionError(
            f"the entry point {kind!r} of {families.TOWERS!r} is {tower_class!r}; expected a subclass of Tower"
        )
    if tower_class.medium is not medium:
        raise ModelFileError(
            f"the projector {kind[:60]!r} reads {tower_class.medium.many}, but the file says that its encoder reads "
            f"{medium.many}",
            path=file.path,
        )
    config: Any = tower_class.config_type().from_metadata(metadata)
    check_layers(file, config.n_layers, medium.block)
    tower = tower_class(config)
    check_all_read(metadata, tower)
    return tower


def _kind(metadata: Metadata, medium: Medium) -> str:
    """The type of the projector. Files with encoders of pictures and of sounds may have one of each."""
    own = f"{medium.section}.projector_type"
    kind = metadata.arch.require(own if own in metadata.arch else "projector_type", str)
    return _SHARED.get((kind, medium), kind)


def _mismatch(tower: Tower, file: GGUFFile, model: Module) -> str | None:
    """Why a tower does not belong to a text model; None if it does."""
    if file.architecture not in tower.architectures:
        return (
            f"it is for models of the architecture {', '.join(sorted(tower.architectures))}, and this one is "
            f"{file.architecture[:40]}"
        )
    if tower.span_width != model.span_width:
        return f"its rows have {tower.span_width} elements, and the model reads rows of {model.span_width}"
    return None
