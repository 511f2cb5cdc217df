"""The one binder: finds each parameter's tensor in a file, and gives a backend what it has to load."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from hotshoe.nn.module import Module, Parameter
from hotshoe_core import WeightData
from hotshoe_core.errors import WeightsError, did_you_mean
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from hotshoe_core import Backend, Placement
    from hotshoe_core.contract.backend import Progress
    from hotshoe_core.gguf import GGUFFile
    from hotshoe_core.tensors.tensor import Shape

__all__ = ["bind", "check_layers"]

_MANY = 8  # names listed in a message
_LONGEST = 80  # characters of one
_BLOCK = re.compile(r"blk\.(\d{1,9})\.")


def check_layers(file: GGUFFile, n_layers: int) -> None:
    """Raise ModelFileError if the file holds no tensors of that many layers: modules are made for each of them."""
    last = max((int(found[1]) for name in file.tensors if (found := _BLOCK.match(name))), default=-1)
    if n_layers > last + 1 and last >= 0:
        raise file.metadata.arch.error(
            "block_count",
            f"the model has {n_layers} layers; the file's tensors are those of {last + 1}",
            "the file is incomplete, or its metadata belongs to another model",
        )


def bind(
    model: Module,
    file: GGUFFile,
    backend: Backend,
    *,
    placement: Placement | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
) -> None:
    """Load every parameter of ``model`` from ``file`` into ``backend``, each on the device of its layer.

    A tensor that layers of several devices read is on each of them: an embedding that is the output's matrix too, the
    factors of a RoPE. ``ignore`` names tensors the file may hold and the model has no use for. Raises WeightsError
    naming the tensors that are missing, left over or of the wrong shape, before anything is loaded.
    """
    chosen = _choose(model, file, ignore)
    placement = placement or backend.placement
    read: dict[tuple[str, str], list[Parameter]] = {}  # by tensor and device
    for name, p in chosen:
        read.setdefault((name, placement.of_weight(p.read_in, (p.use,))), []).append(p)
    weights, bound = [], {}
    loaded: set[str] = set()
    for (name, device), parameters in read.items():
        info = file.tensors[name]
        uses = tuple(dict.fromkeys(p.use for p in parameters))
        first = parameters[0]
        layer = first.layer if placement.of_weight(first.layer, uses) == device else first.read_in
        variant = device if name in loaded else ""
        weight = WeightData(name, info.shape, info.dtype, file.data(name), uses, layer, model.compute_bound, variant)
        loaded.add(name)
        weights.append(weight)
        bound[weight.key] = parameters
    tensors = backend.load(weights, placement, progress)
    for key, parameters in bound.items():
        for p in parameters:
            setattr(p.module, p.attribute, tensors[key])
    model.drop_missing_parts()


def _choose(model: Module, file: GGUFFile, ignore: Collection[str]) -> list[tuple[str, Parameter]]:
    """The tensor of each parameter that the file has. Raises WeightsError."""
    chosen, missing = _resolve(model, file)
    left_over = file.tensors.keys() - {name for name, _ in chosen} - set(ignore)
    if missing:
        raise WeightsError(
            f"{file.path}: {len(missing)} tensor(s) missing: {_list([p.names[0] for p in missing])}",
            hint=f"{_near(missing[0].names[0], file.tensors)}"
            "the file is incomplete, or was made for another version of the architecture",
        )
    if left_over:
        raise WeightsError(
            f"{file.path}: {len(left_over)} tensor(s) the {file.architecture} model does not use: "
            f"{_list(sorted(left_over))}",
            hint="the file was made for a variant of the architecture that hotshoe does not implement",
        )
    for name, p in chosen:
        shape = file.tensors[name].shape
        if p.shape is not None and not _fits(shape, p.shape):
            expected = ", ".join("any" if n is None else str(n) for n in p.shape)
            raise WeightsError(
                f"{file.path}: {name} is {list(shape)}; the sizes in the file's metadata make it [{expected}]",
                hint="`hotshoe inspect` shows both; the metadata or the tensor belongs to another model",
            )
    return chosen


def _resolve(model: Module, file: GGUFFile) -> tuple[list[tuple[str, Parameter]], list[Parameter]]:
    chosen, missing = [], []
    for p in model.parameters():
        name = next((n for n in p.names if n in file.tensors), None)
        if name is not None:
            chosen.append((name, p))
        elif not p.optional:
            missing.append(p)
    optional_parts = _optional_and_absent(model, {p for _, p in chosen})
    return chosen, [p for p in missing if p not in optional_parts]


def _optional_and_absent(model: Module, found: set[Parameter]) -> set[Parameter]:
    """Parameters of optional modules of which the file holds nothing."""
    absent: set[Parameter] = set()
    for attribute, child in model.children():
        below = set(child.parameters())
        if attribute in model._optional_parts and not below & found:
            absent |= below
        else:
            absent |= _optional_and_absent(child, found)
    return absent


def _fits(shape: Shape, expected: Sequence[int | None]) -> bool:
    return len(shape) == len(expected) and all(e is None or n == e for n, e in zip(shape, expected, strict=True))


def _list(names: list[str]) -> str:
    rest = len(names) - _MANY
    shown = ", ".join(printable(name, _LONGEST) for name in names[:_MANY])
    return shown + (f" and {rest} more" if rest > 0 else "")


def _near(name: str, tensors: Iterable[str]) -> str:
    """The name in the file that is most like it, in words; nothing if none is."""
    words = did_you_mean(name, (t for t in islice(tensors, 10_000) if len(t) <= _LONGEST))
    return f"{words}; " if words.startswith("did") else ""
