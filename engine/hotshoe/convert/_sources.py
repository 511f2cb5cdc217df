"""TensorSource: how a tensor of the GGUF file is made from tensors of the checkpoint.

A converter lists a TensorSource for each tensor, with the names that transformers uses. ``match_sources`` compares the
list with the checkpoint: a tensor that is missing, unknown or of another shape is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.convert._layout import TensorLayout
from hotshoe.convert._names import check_complete
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["Array", "TensorSource", "as_is", "half_of", "has", "match_sources", "reshaped", "rope_order", "stacked"]

Array = np.ndarray[Any, np.dtype[np.float32]]

_PREFIX = "model."
# buffers that old versions of transformers saved; they are not weights
_NOT_WEIGHTS = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
# matrices that engines read as f32
_FULL_PRECISION = ("_norm.weight", ".ffn_gate_inp.weight", ".ssm_conv1d.weight", ".shortconv.conv.weight")


@dataclass(frozen=True, slots=True)
class TensorSource:
    """How one tensor of the GGUF file is made from tensors of the checkpoint."""

    name: str
    """Its name in the GGUF file."""
    shape: tuple[int, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """The name, as in transformers, and the shape of each tensor that it is made from."""
    make: Callable[[Iterator[Array]], Array]
    """Gets an iterator over the values of ``inputs``, float32, and returns the values of the tensor."""


def as_is(name: str, source: str, shape: tuple[int, ...], *, plus: float = 0.0) -> TensorSource:
    """One tensor unchanged, or with ``plus`` added to every value."""
    return TensorSource(
        name, shape, ((source, shape),), lambda parts: next(parts) + np.float32(plus) if plus else next(parts)
    )


def reshaped(name: str, source: str, stored: tuple[int, ...], shape: tuple[int, ...]) -> TensorSource:
    """One tensor with the shape ``stored`` in the checkpoint, and ``shape`` in the file."""
    return TensorSource(name, shape, ((source, stored),), lambda parts: next(parts).reshape(shape))


def rope_order(name: str, source: str, shape: tuple[int, ...], n_heads: int) -> TensorSource:
    """One tensor with the rows of each head reordered: from RoPE pairs (i, i + head_dim / 2) to (2i, 2i + 1)."""

    def make(parts: Iterator[Array]) -> Array:
        value = next(parts)
        halves = value.reshape(n_heads, 2, shape[0] // n_heads // 2, *shape[1:])  # (heads, half, pair, …)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(shape)

    return TensorSource(name, shape, ((source, shape),), make)


def stacked(name: str, sources: Sequence[str], shape: tuple[int, ...]) -> TensorSource:
    """Several tensors of ``shape``, one for each expert, stacked along a new first axis."""
    whole = (len(sources), *shape)

    def make(parts: Iterator[Array]) -> Array:
        out = np.empty(whole, np.float32)
        for i, part in enumerate(parts):
            out[i] = part
        return out

    return TensorSource(name, whole, tuple((source, shape) for source in sources), make)


def half_of(name: str, source: str, shape: tuple[int, ...], which: int) -> TensorSource:
    """The first or second half of a tensor (``which`` is 0 or 1) along its second axis. ``shape``: that of the half."""
    n = shape[1]
    whole = (shape[0], 2 * n, *shape[2:])
    return TensorSource(
        name,
        shape,
        ((source, whole),),
        lambda parts: np.ascontiguousarray(next(parts)[:, which * n : (which + 1) * n]),
    )


def match_sources(
    checkpoint: Checkpoint, sources: Iterable[TensorSource], ignored: tuple[str, ...] = ()
) -> tuple[TensorLayout, ...]:
    """Find the inputs of each TensorSource in the checkpoint. Return the tensors to write.

    The tensors are in the order of the checkpoint's names; those without inputs come first. Tensors of the checkpoint
    whose names start with one of ``ignored`` are not written.

    Raises ConversionError if tensors are missing, unknown, or of another shape.
    """
    sources = tuple(sources)
    stored = _names(checkpoint)
    wrong = [
        f"{stored[name]} is {actual}, expected {shape}"
        for source in sources
        for name, shape in source.inputs
        if name in stored and (actual := checkpoint.tensors[stored[name]].shape) != shape
    ]
    used = {name for source in sources for name, _ in source.inputs}
    check_complete(
        checkpoint,
        missing=sorted(used - stored.keys()),
        extra=sorted(stored[name] for name in stored.keys() - used if not name.startswith(ignored)),
        wrong=sorted(set(wrong)),
    )
    return tuple(
        TensorLayout(
            source.name,
            stored[source.inputs[0][0]] if source.inputs else source.name,
            source.shape,
            full_precision=_is_small(source),
            make=_reader(checkpoint, source, stored),
        )
        for source in sorted(sources, key=lambda s: [stored[name] for name, _ in s.inputs[:1]])
    )


def has(checkpoint: Checkpoint, name: str) -> bool:
    """True if the checkpoint has a tensor with this name, as in transformers."""
    return name in _names(checkpoint)


def _names(checkpoint: Checkpoint) -> dict[str, str]:
    """Map the name that transformers uses for each tensor to its name in the checkpoint."""
    # a model without its head, as sentence-transformers saves it, has the same names without "model."
    bare = not any(name.startswith(_PREFIX) for name in checkpoint.tensors)
    return {
        _PREFIX + name if bare and not name.startswith("lm_head.") else name: name
        for name in checkpoint.tensors
        if not name.endswith(_NOT_WEIGHTS)
    }


def _is_small(source: TensorSource) -> bool:
    # Vectors, norms, parameters of other ops than matrix products, and the routers of experts, which would choose
    # other experts if they were quantized.
    return len(source.shape) < 2 or not source.name.endswith(".weight") or source.name.endswith(_FULL_PRECISION)


def _reader(checkpoint: Checkpoint, source: TensorSource, stored: dict[str, str]) -> Callable[[], Array]:
    def read() -> Array:
        value = source.make(checkpoint.read(stored[name]) for name, _ in source.inputs)
        if value.shape != source.shape:
            raise ConversionError(f"{checkpoint.model}: {source.name} was made as {value.shape}, not {source.shape}")
        return value

    return read
