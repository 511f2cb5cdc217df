"""Bind a model to a file: find the tensor of each parameter, and load it into a backend."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from hotshoe.nn._choose_forms import choose_forms
from hotshoe.nn.module import Module, Parameter
from hotshoe_core import WeightData
from hotshoe_core.errors import WeightsError, similar
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from hotshoe_core import Backend, Placement
    from hotshoe_core.contract.backend import Progress
    from hotshoe_core.gguf import GGUFFile
    from hotshoe_core.tensors.tensor import Shape

__all__ = ["absent_optional", "bind", "check_layers", "missing_parameters", "unused"]

_MAX_NAMES = 8  # names listed in a message
_MAX_NAME = 80  # characters of a name


def check_layers(file: GGUFFile, n_layers: int, prefix: str = "blk.") -> None:
    """Raise ModelFileError if the file has tensors of fewer than ``n_layers`` layers.

    Called before the modules are made, because their number follows from the file's metadata.
    """
    number = re.compile(rf"{re.escape(prefix)}(\d{{1,9}})\.")
    last = max((int(found[1]) for name in file.tensors if (found := number.match(name))), default=-1)
    if n_layers > last + 1 and last >= 0:
        raise file.metadata.arch.error(
            "block_count",
            f"the metadata says {n_layers} layers, but the file has tensors of {last + 1}",
            "the file is incomplete, or its metadata belongs to another model",
        )


def bind(
    model: Module,
    file: GGUFFile,
    backend: Backend,
    *,
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> None:
    """Load every parameter of ``model`` from ``file`` into ``backend``, each on the device of its layer.

    A tensor is loaded onto every device that reads it. Examples are a token embedding that is also the output matrix,
    and RoPE factors that all layers share. Tensors that ``unused`` finds are passed over.

    Raises WeightsError, before anything is loaded, if tensors are missing, unknown or of the wrong shape.
    """
    choose_forms(model, {name: info.shape for name, info in file.tensors.items()})
    chosen = _choose(model, file)
    placement = placement or backend.placement
    readers: dict[tuple[str, str], list[Parameter]] = {}  # by tensor name and device
    for name, p in chosen:
        readers.setdefault((name, placement.device_of_weight(p.read_in, (p.use,))), []).append(p)
    weights, parameters_of = [], {}
    loaded: set[str] = set()  # names
    for (name, device), parameters in readers.items():
        info = file.tensors[name]
        uses = tuple(dict.fromkeys(p.use for p in parameters))
        first = parameters[0]
        # Layers on two devices may share a tensor, which is then loaded twice: the second copy counts as part of the
        # layer that reads it, and the variant makes its key different.
        layer = first.layer if placement.device_of_weight(first.layer, uses) == device else first.read_in
        variant = device if name in loaded else ""
        shape = info.shape if first.shape is None else _with_axes(info.shape, len(first.shape))
        weight = WeightData(name, shape, info.dtype, file.data(name), uses, layer, model.compute_bound, variant)
        loaded.add(name)
        weights.append(weight)
        parameters_of[weight.key] = parameters
    tensors = backend.load(weights, placement, progress)
    for key, parameters in parameters_of.items():
        for p in parameters:
            setattr(p.module, p.attribute, tensors[key])
    model.drop_missing_modules()


def unused(model: Module, names: Iterable[str]) -> dict[str, list[str]]:
    """The tensors of a file that the model passes over, by the reason: see ``Module.unused_tensors``."""
    used = {name for p in model.parameters() for name in p.names}
    found: dict[str, list[str]] = {}
    patterns = [(re.compile(fnmatch.translate(glob)).match, why) for glob, why in model.unused_tensors().items()]
    for name in names:
        why = next((why for match, why in patterns if match(name)), None) if name not in used else None
        if why is not None:
            found.setdefault(why, []).append(name)
    return found


def missing_parameters(model: Module, file: GGUFFile) -> list[Parameter]:
    """The parameters for which the file has no tensor, without optional ones."""
    choose_forms(model, {name: info.shape for name, info in file.tensors.items()})
    return _resolve(model, file)[1]


def _choose(model: Module, file: GGUFFile) -> list[tuple[str, Parameter]]:
    """The name of the tensor for each parameter, without optional ones that the file lacks.

    Raises WeightsError if tensors are missing, unknown or of the wrong shape.
    """
    chosen, missing = _resolve(model, file)
    unknown = file.tensors.keys() - {name for name, _ in chosen}
    unknown -= {name for names in unused(model, unknown).values() for name in names}
    if missing:
        raise WeightsError(
            f"{file.path}: tensors are missing ({len(missing)}): {_list([p.names[0] for p in missing])}",
            hint=f"{_nearest_name(missing[0].names[0], unknown)}"
            "the file is incomplete or of another version of the architecture, or the model's class has a wrong name",
        )
    if unknown:
        raise WeightsError(
            f"{file.path}: the {file.architecture} model does not use some tensors ({len(unknown)}): "
            f"{_list(sorted(unknown))}",
            hint="the file was made for a variant of the architecture that hotshoe does not implement",
        )
    rows = {p.module: file.tensors[name].shape[:1] for name, p in chosen if p.use == "linear"}
    for name, p in chosen:
        shape = file.tensors[name].shape
        wanted = (None, None) if p.shape is None and p.use == "linear" else p.shape
        if p.shape == (None,):  # the bias of a matrix with any number of rows
            wanted = rows.get(p.module)
        if wanted is not None and not _fits(shape, wanted):
            expected = ", ".join("any" if n is None else str(n) for n in wanted)
            raise WeightsError(
                f"{file.path}: {name} has shape {list(shape)}; expected [{expected}], from the file's metadata",
                hint="`hotshoe inspect` shows both; the metadata or the tensor belongs to another model",
            )
    return chosen


def _resolve(model: Module, file: GGUFFile) -> tuple[list[tuple[str, Parameter]], list[Parameter]]:
    chosen, missing = [], []
    weights: dict[Module, int] = {}  # which name of a module's weight was found: its bias and scale have the same name
    for p in model.parameters():
        names = p.names[weights[p.module] :][:1] if p.module in weights else p.names
        name = next((n for n in names if n in file.tensors), None)
        if name is not None and p.attribute == "weight" and len(p.names) > 1:
            weights[p.module] = p.names.index(name)
        if name is not None:
            chosen.append((name, p))
        elif not p.optional:
            missing.append(p)
    absent = absent_optional(model, {p for _, p in chosen})
    return chosen, [p for p in missing if p not in absent]


def absent_optional(model: Module, found: set[Parameter]) -> set[Parameter]:
    """Parameters of the optional modules that have no tensor in the file."""
    absent: set[Parameter] = set()
    for attribute, child in model.children():
        inside = set(child.parameters())
        if attribute in model._optional_modules and not inside & found:
            absent |= inside
        else:
            absent |= absent_optional(child, found)
    return absent


def _fits(shape: Shape, expected: Sequence[int | None]) -> bool:
    shape = _with_axes(shape, len(expected))
    return len(shape) == len(expected) and all(e is None or n == e for n, e in zip(shape, expected, strict=True))


def _with_axes(shape: Shape, n: int) -> Shape:
    """The shape with ``n`` axes, if those at the front have length 1: writers of files may leave them out."""
    while len(shape) > n and shape[0] == 1:
        shape = shape[1:]
    return (1,) * (n - len(shape)) + shape


def _list(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMES
    shown = ", ".join(printable(name, _MAX_NAME) for name in names[:_MAX_NAMES])
    return shown + (f" and {rest} more" if rest > 0 else "")


def _nearest_name(name: str, tensors: Iterable[str]) -> str:
    """A hint with the most similar name in the file that the model does not use, or "" if no name is similar."""
    near = similar(name, (t for t in islice(tensors, 10_000) if len(t) <= _MAX_NAME))
    return f"instead of {name} the file has {near}; " if near else ""
