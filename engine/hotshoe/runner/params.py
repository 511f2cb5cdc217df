"""RunnerParams: how much a text model computes and keeps at once."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe_core import DType
from hotshoe_core.errors import ModelError

__all__ = ["RunnerParams"]


@dataclass(frozen=True, slots=True)
class RunnerParams:
    """Checked when made: raises ModelError, and DTypeError for an element type that is none.

    n_batch: tokens a step computes, of all sequences together. n_ubatch: tokens of one graph; None for n_batch.
    max_sequences: how many texts may be in the cache at once, 1 to 63. n_sequences: for how many texts of ``n_ctx``
    tokens the cache has room; more than that are computed together as long as they are shorter. kv_dtype: element
    type of keys and values: f16, f32, q8_0 or q4_0.
    """

    n_batch: int = 512
    n_ubatch: int | None = None
    max_sequences: int = 63
    n_sequences: int = 1
    kv_dtype: str = "f16"

    def __post_init__(self) -> None:
        for name in ("n_batch", "n_ubatch", "max_sequences", "n_sequences"):
            value = getattr(self, name)
            if value is None and name == "n_ubatch":
                continue
            if not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} is {value!r}; expected 1 or more")
        if self.max_sequences > 63:
            raise ModelError(f"max_sequences is {self.max_sequences}; expected 1 to 63")
        DType.parse(self.kv_dtype)
