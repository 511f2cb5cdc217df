"""``match_tensors``: match the tensors of a checkpoint with GGUF names, by the name table of the gguf package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hotshoe.convert._layout import TensorLayout
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    import gguf
    import numpy as np

    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["check_complete", "match_tensors"]


def match_tensors(
    checkpoint: Checkpoint,
    names: gguf.TensorNameMap,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    rename: Callable[[str], str],
    ignored: tuple[str, ...] = (),
    full_precision: Collection[str] = (),
    first_rows: Mapping[str, int] = MappingProxyType({}),
) -> tuple[TensorLayout, ...]:
    """Find the tensor of the checkpoint for each tensor of the file. The order is that of the checkpoint's names.

    names: the table that maps names of transformers to GGUF names.
    shapes: the tensors of the file: GGUF name to shape.
    rename: changes a name in the checkpoint to one that ``names`` contains.
    ignored: prefixes of renamed tensors that are not written.
    full_precision: GGUF names of matrices that stay f32.
    first_rows: GGUF name to the number of rows at the start of the checkpoint's tensor that are not written.

    Raises ConversionError if tensors are missing, unknown, duplicate, or of another shape.
    """
    matched: dict[str, TensorLayout] = {}
    extra: list[str] = []
    wrong: list[str] = []
    for source, tensor in sorted(checkpoint.tensors.items()):
        plain = rename(source)
        if plain.startswith(ignored):
            continue
        name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
        if name is None or name not in shapes:
            extra.append(source)
            continue
        if name in matched:
            raise ConversionError(f"{checkpoint.model} has {name} twice: as {matched[name].source} and as {source}")
        first, shape = first_rows.get(name, 0), shapes[name]
        stored = (shape[0] + first, *shape[1:])
        if tensor.shape != stored:
            wrong.append(f"{source} is {tensor.shape}, expected {stored}")
        # every engine that reads GGUF expects vectors in f32
        exact = name in full_precision or len(shape) < 2
        make = _rows_from(checkpoint, source, first) if first else None
        matched[name] = TensorLayout(name, source, shape, full_precision=exact, make=make)
    missing = sorted(shapes.keys() - matched.keys())
    check_complete(checkpoint, missing=missing, extra=extra, wrong=wrong)
    return tuple(matched.values())


def _rows_from(checkpoint: Checkpoint, source: str, first: int) -> Callable[[], np.ndarray[Any, np.dtype[np.float32]]]:
    return lambda: checkpoint.read(source)[first:]


def check_complete(
    checkpoint: Checkpoint, *, missing: Sequence[str], extra: Sequence[str], wrong: Sequence[str]
) -> None:
    """Raise ConversionError if any of the lists is not empty. ``wrong``: descriptions of tensors of another shape."""
    if missing or extra:
        raise ConversionError(
            f"the tensors of {checkpoint.model} are not those its config.json describes: "
            + "; ".join(
                f"{what}: {_some(found)}" for what, found in (("missing", missing), ("unknown", extra)) if found
            ),
            hint="check num_hidden_layers in config.json, and that the weights belong to this config.json",
        )
    if wrong:
        raise ConversionError(
            f"{checkpoint.model} has tensors of another shape than config.json describes: {_some(wrong, '; ')}",
            hint="check that the weights belong to this config.json",
        )


def _some(names: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return separator.join(names[:4]) + more
