"""Choose between the forms in which a file may hold the same weights: see ``instead_of`` of ``submodule``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hotshoe.nn.module import Module, Parameter
from hotshoe_core.tensors.tensor import Shape

__all__ = ["choose_forms"]

_BLOCK = re.compile(r"blk\.\d+\.")


def choose_forms(model: Module, shapes: Mapping[str, Shape]) -> None:
    """Set the attributes of the forms that the file does not have to None, in the model and in all modules inside it.

    shapes: the file's tensors. A layer without tensors of any form is given the form of other layers, so that the right
    tensors are reported missing.
    """
    _choose(model, shapes, {_BLOCK.sub("", name): shape for name, shape in shapes.items()})


def _choose(module: Module, shapes: Mapping[str, Shape], shapes_of_layers: Mapping[str, Shape]) -> None:
    for _, child in module.children():
        _choose(child, shapes, shapes_of_layers)
    for attribute, others in module.forms.items():
        whole = _required(module, attribute)
        parts = [p for other in others for p in _required(module, other)]
        if not whole:
            continue
        in_layer = any(_found(p, shapes) for p in (*whole, *parts))
        if not parts:  # this form was chosen before, or another one with the same parts
            unused: tuple[str, ...] = () if in_layer else (attribute,)
        else:
            is_whole = _is_whole(whole, parts, shapes if in_layer else shapes_of_layers)
            unused = others if is_whole else (attribute,)
        for name in unused:
            setattr(module, name, None)


def _required(module: Module, attribute: str) -> list[Parameter]:
    form: Module | None = getattr(module, attribute)
    return [] if form is None else [p for p in form.parameters() if not p.optional]


def _is_whole(whole: list[Parameter], parts: list[Parameter], shapes: Mapping[str, Shape]) -> bool:
    shape_of_whole = [_found(p, shapes) for p in whole]
    found = [_found(p, shapes) is not None for p in parts]
    if None in shape_of_whole or all(found):
        return False
    # a part may have the name of the whole; then the number of rows decides
    return not any(found) or all(
        p.shape is None or shape is None or p.shape[0] in (None, *shape[:1])
        for p, shape in zip(whole, shape_of_whole, strict=True)
    )


def _found(p: Parameter, shapes: Mapping[str, Shape]) -> Shape | None:
    names = p.names if shapes.keys() & set(p.names) else [_BLOCK.sub("", name) for name in p.names]
    return next((shapes[name] for name in names if name in shapes), None)
