"""Find and load the encoder of pictures that belongs to a text model: the second file of a model (mmproj)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe import families
from hotshoe.inner_towers import inner_tower
from hotshoe.nn.binder import bind, check_layers
from hotshoe.nn.vision import Tower
from hotshoe.runner.image_encoder import LoadedTower
from hotshoe.unread_keys import check_all_read
from hotshoe_core import DeviceType, Placement
from hotshoe_core.errors import (
    HotshoeError,
    InsufficientMemoryError,
    ModelDefinitionError,
    ModelError,
    UnknownArchitectureError,
)
from hotshoe_core.errors.arguments import described, file_path
from hotshoe_core.gguf import GGUFFile

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe_core import BackendParams, Device
    from hotshoe_core.gguf import Metadata
    from hotshoe_loader import Registry

__all__ = ["FoundTower", "Search", "find_tower", "load_tower", "tower_of"]

logger = logging.getLogger("hotshoe.images")

_ARCHITECTURE = "clip"
_MAX_FILES = 64  # candidates next to a model


class Search(NamedTuple):
    """The result of looking for a model's encoder of pictures."""

    found: FoundTower | None = None
    unused: tuple[str, ...] = ()
    """The files of encoders that are not used, each with the reason."""


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
    """Open the tower's file: the given one, the one next to the model's that belongs to it, or the model's own.

    projector: the path of the file; None to look for it; False for no tower. known: the file that a store has for the
    model, which is used if it fits; None to look in the model's folder. Raises ModelError if the given file does
    not belong to the model, ModelFileError or WeightsError if it is damaged, UnknownArchitectureError if no
    installed distribution has a tower of its kind.
    """
    if projector is False:
        return Search(unused=("projector is False",))
    if projector is not None:
        if projector is True:
            raise ModelError(f"projector is {described(projector)}; expected a path, None, or False for no encoder")
        path = file_path("projector", projector, ModelError)
        opened = _open(path)
        try:
            tower = tower_of(opened)
            if reason := _mismatch(tower, file, model):
                raise ModelError(
                    f"{path} does not belong to {file.path}: {reason}", hint="give the mmproj file of the same model"
                )
        except BaseException:
            opened.close()
            raise
        return Search(FoundTower(opened, tower))
    search = _next_to(file, model, known)
    return search if search.found is not None else _inside(file, model, search.unused)


def _inside(file: GGUFFile, model: Module, unused: tuple[str, ...]) -> Search:
    """The tower in the model's own file, if it fits."""
    opened = None
    try:
        opened = inner_tower(file)
        if opened is None:
            return Search(unused=unused)
        tower = tower_of(opened)
        reason = _mismatch(tower, file, model)
    except HotshoeError as error:
        reason = f"{error.message}; {error.hint}" if error.hint else error.message
    if opened is not None:
        if reason is None:
            return Search(FoundTower(opened, tower))
        opened.close()
    return Search(unused=(*unused, _log(f"the encoder in {file.path.name}", reason)))


def _next_to(file: GGUFFile, model: Module, known: Path | None) -> Search:
    """The tower in the model's folder that fits; of several, one in f16, or else the smallest."""
    fitting, unused = [], []
    for path in [known] if known else sorted(file.path.parent.glob("*mmproj*.gguf"))[:_MAX_FILES]:
        if path == file.path:
            continue
        opened = None
        try:
            opened = _open(path)
            tower = tower_of(opened)
            reason = _mismatch(tower, file, model)
        except HotshoeError as error:
            reason = error.message
        if reason is None and opened is not None:
            fitting.append(FoundTower(opened, tower))
            continue
        unused.append(_log(path.name, reason))
        if opened is not None:
            opened.close()
    fitting.sort(key=lambda found: ("f16" not in found.file.path.name.lower().replace("bf16", ""), found.file.nbytes))
    for other in fitting[1:]:
        _log(other.file.path.name, f"{fitting[0].file.path.name} fits too")
        other.file.close()
    return Search(fitting[0] if fitting else None, tuple(unused))


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
        logger.warning("%s; the encoder of pictures is on %s", error.message, cpus[0].name)
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
        f"{path} is a {architecture[:40]!r} model; expected an encoder of pictures, whose architecture is 'clip'",
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


def tower_of(file: GGUFFile) -> Tower:
    """Return the tower of a file, without weights."""
    metadata = file.metadata
    kind = _kind(metadata)
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
    config: Any = tower_class.config_type().from_metadata(metadata)
    check_layers(file, config.n_layers, "v.blk.")
    tower = tower_class(config)
    check_all_read(metadata, tower)
    return tower


def _kind(metadata: Metadata) -> str:
    """The type of the projector. Files with encoders of pictures and of sound have one of each."""
    own = "vision.projector_type"
    return metadata.arch.require(own if own in metadata.arch else "projector_type", str)


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
