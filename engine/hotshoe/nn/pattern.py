"""LayerPattern: which layers of a model have a sliding window, and the RoPE of each layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hotshoe.nn.bounds import check_range
from hotshoe_core.gguf import GGUFArray
from hotshoe_core.ops import RoPE

if TYPE_CHECKING:
    from hotshoe_core.gguf import Metadata

__all__ = ["LayerPattern", "pattern_from"]

T = TypeVar("T", int, float)

_MAX = (1 << 31) - 1
_KEY = "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """The window and the RoPE of each layer. A layer either has a sliding window or is full: it sees all positions."""

    windowed: tuple[bool, ...]
    """Whether each layer has a window."""
    window: int
    """How many positions a token sees in a layer with a window, itself included."""
    windowed_rope: RoPE | None
    """The RoPE of layers with a window."""
    full_rope: RoPE | None

    def window_for(self, layer: int) -> int:
        """The window of a layer; 0 if it is full."""
        return self.window if self.windowed[layer] else 0

    def rope_for(self, layer: int) -> RoPE | None:
        """The RoPE of a layer; None if it has none."""
        return self.windowed_rope if self.windowed[layer] else self.full_rope

    def source_of(self, layer: int, n_own: int) -> int | None:
        """The layer whose keys and values a layer reads, if only the first ``n_own`` layers have their own.

        It is the last of these of the same kind. None for a layer with keys and values of its own.
        """
        if layer < n_own:
            return None
        return max((i for i in range(n_own) if self.windowed[i] == self.windowed[layer]), default=None)


def pattern_from(
    metadata: Metadata,
    n_layers: int,
    window: int,
    rope: RoPE,
    *,
    period: int,
    dense_first: bool = False,
    base: float | None = None,
    unscaled: bool = False,
    rope_on_full: bool = True,
) -> LayerPattern:
    """Read the pattern of a model from a file's metadata. ``pattern_key`` explains the arguments.

    Raises ModelFileError for invalid values.
    """
    if not window:
        return LayerPattern((False,) * n_layers, 0, rope, rope)
    windowed_rope = dataclasses.replace(
        dataclasses.replace(rope, scale=1.0, ext_factor=0.0, attn_factor=1.0) if unscaled else rope,
        base=_above_zero(metadata, "rope.freq_base_swa", rope.base if base is None else base),
        dim=_above_zero(metadata, "rope.dimension_count_swa", rope.dim),
    )
    windowed = _windowed(metadata, n_layers, period, dense_first)
    return LayerPattern(windowed, window, windowed_rope, rope if rope_on_full else None)


def _above_zero(metadata: Metadata, name: str, default: T) -> T:
    return check_range(metadata, name, metadata.arch.get(name, default), 1, _MAX)


def _windowed(metadata: Metadata, n_layers: int, period: int, dense_first: bool) -> tuple[bool, ...]:
    arch = metadata.arch
    if _KEY in arch and isinstance(arch[_KEY], (GGUFArray, list)):
        values = list(arch[_KEY])
        if len(values) < n_layers or not all(value in (0, 1) for value in values):
            raise arch.error(
                _KEY, f"an array of {len(values)} values; expected 0 or 1 for {n_layers}, one for each layer"
            )
        return tuple(map(bool, values[:n_layers]))
    period = arch.get(_KEY, period)
    if period < 0:
        raise arch.error(_KEY, f"is {period}; expected 0 or more")
    full = 0 if dense_first else period - 1
    return tuple(not period or i % period != full for i in range(n_layers))
