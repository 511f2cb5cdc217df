"""Finds, for every tensor the file must hold, the tensor of the checkpoint it comes from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hotshoe.convert._plan import PlannedTensor
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    import gguf

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
) -> tuple[PlannedTensor, ...]:
    """``shapes`` is what the file holds, by GGUF name; ``rename`` turns a checkpoint's names into ones ``names`` maps.

    Names that start with one of ``ignored``, once renamed, are left out. Raises ConversionError for tensors that are
    missing, not known, there twice, or of another shape. The order is that
    of the checkpoint's names, however its files are cut.
    """
    planned: dict[str, PlannedTensor] = {}
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
        if name in planned:
            raise ConversionError(f"{checkpoint.model} has {name} twice: as {planned[name].source} and as {source}")
        if tensor.shape != shapes[name]:
            wrong.append(f"{source} is {tensor.shape}, expected {shapes[name]}")
        # vectors are read by code that knows f32 only, in every engine that reads GGUF
        exact = name in full_precision or len(shapes[name]) < 2
        planned[name] = PlannedTensor(name, source, shapes[name], full_precision=exact)
    missing = sorted(shapes.keys() - planned.keys())
    check_complete(checkpoint, missing=missing, extra=extra, wrong=wrong)
    return tuple(planned.values())


def check_complete(
    checkpoint: Checkpoint, *, missing: Sequence[str], extra: Sequence[str], wrong: Sequence[str]
) -> None:
    """Raises ConversionError if there is anything in the lists; ``wrong`` says what is of another shape."""
    if missing or extra:
        raise ConversionError(
            f"the tensors of {checkpoint.model} are not those its config.json describes: "
            + "; ".join(
                f"{what}: {_some(found)}" for what, found in (("missing", missing), ("not known", extra)) if found
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
