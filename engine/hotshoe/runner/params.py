"""RunnerParams: how much a loaded model computes at once, and for how many texts its cache has room."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.kvcache import MAX_SEQUENCES
from hotshoe_core import DType
from hotshoe_core.errors import DTypeError, ModelError

__all__ = ["RunnerParams"]


@dataclass(frozen=True, slots=True)
class RunnerParams:
    """Checked when it is made: raises ModelError, and DTypeError for a type that a cache cannot have."""

    n_batch: int | None = None
    """Tokens that a step computes, of all sequences together: how long those that write wait for those that read.

    None: 512, and 2048 for models that read texts as a whole (embeddings, rerankers).
    """

    n_ubatch: int | None = None
    """Tokens of one graph, which take its memory; a step is as many graphs as it needs. None: n_batch."""

    max_sequences: int = MAX_SEQUENCES
    """How many sequences may have a place in the cache at once."""

    n_sequences: int = 1
    """For how many texts of ``n_ctx`` tokens the cache has room; more texts fit as long as they are shorter."""

    kv_dtype: str = "f16"
    """Element type of keys and values: f16, f32, q8_0, q4_0, …"""

    def __post_init__(self) -> None:
        for name in ("n_batch", "n_ubatch", "max_sequences", "n_sequences"):
            value = getattr(self, name)
            if value is None and name in ("n_batch", "n_ubatch"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} is {value!r}; expected an integer of 1 or more")
        if self.max_sequences > MAX_SEQUENCES:
            raise ModelError(f"max_sequences is {self.max_sequences}; a cache tells at most {MAX_SEQUENCES} apart")
        if self.n_ubatch is not None and self.n_ubatch > self.step:
            raise ModelError(
                f"n_ubatch is {self.n_ubatch}, but a step computes n_batch={self.step} tokens",
                hint="raise n_batch too, or leave n_ubatch out",
            )
        dtype = self.dtype
        if dtype.is_integer:
            raise DTypeError(f"kv_dtype is {self.kv_dtype!r}; expected a float or quantized type, such as f16 or q8_0")

    @property
    def step(self) -> int:
        """Tokens of a step of a text model."""
        return 512 if self.n_batch is None else self.n_batch

    @property
    def rows(self) -> int:
        """The most rows of one of its graphs."""
        return self.step if self.n_ubatch is None else self.n_ubatch

    @property
    def dtype(self) -> DType:
        """``kv_dtype``, parsed."""
        return DType.parse(self.kv_dtype)
