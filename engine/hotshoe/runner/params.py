"""RunnerParams: how many tokens a loaded model computes at once, and how large its cache is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotshoe.kvcache import CHECKPOINT_BYTES, MAX_SEQUENCES
from hotshoe.runner.drafting import MAX_DRAFT
from hotshoe_core import DType
from hotshoe_core.errors import DTypeError, ModelError
from hotshoe_core.errors.arguments import described
from hotshoe_core.errors.text import shown

__all__ = ["RunnerParams"]

_BYTES = ("checkpoint_bytes", "prefix_memory", "prefix_disk")
_MOST = 2**31 - 1  # rows and cells are numbered in I32


@dataclass(frozen=True, slots=True)
class RunnerParams:
    """Sizes of a loaded model's steps, graphs and cache. Checked when created.

    Raises ModelError for an invalid number, DTypeError for a type that a cache cannot have.
    """

    n_batch: int | None = None
    """The most tokens that one step computes, of all sequences together.

    None: 2048 for embedding models and rerankers. For text models, what the backend chooses (``CacheConfig.n_rows``):
    512, or 2048 on a GPU that has 30 GiB of memory or more.
    """

    n_ubatch: int | None = None
    """The most tokens of one graph; its temporary memory grows with it. A step runs several graphs. None: n_batch."""

    max_step_seconds: float = 0.15
    """How long a step should take while several texts wait, in seconds; four times as long for a text alone.

    A text that is being generated waits one step for the prompts of others, which are read in pieces. It waits about
    half as long for one or two prompts, unless their pieces would have fewer than 64 tokens. A small number makes it
    smoother; a large number reads prompts faster. The speed is measured while the model runs.
    """

    max_sequences: int = 256
    """The most sequences that the cache holds at once, 1 to 1024."""

    n_sequences: int = 1
    """The cache has room for ``n_sequences`` texts of ``n_ctx`` tokens each, or for more texts if they are shorter."""

    checkpoint_bytes: int = CHECKPOINT_BYTES
    """Memory for the states of recurrent and hybrid models after earlier tokens, where other texts can go on.

    Every state that is kept saves another text with the same beginning from computing it again.
    """

    prefix_memory: int = 0
    """Bytes of the computer's memory for beginnings of texts that the cache has no more room for. They come back."""

    prefix_disk: int = 0
    """Bytes of ``prefix_folder`` for beginnings that leave ``prefix_memory``, and for all when the model is closed."""

    prefix_folder: str | None = None
    """The folder for these files, which hold the tokens of prompts. Loading the same file again finds them."""

    max_draft: int | None = None
    """The most tokens of a text that are guessed and computed with the next one, 0 for none.

    Guesses come from what the text repeats, or from a layer of the model that guesses tokens. The sampler chooses each
    token as without them, so they make a text faster and do not change it. With 0, the layer is not loaded. None: 15
    where a row's result does not depend on the rows that are computed with it, as with most models on a CPU; 0
    elsewhere, where two tokens with nearly equal probability might change places.
    """

    kv_dtype: str = "f16"
    """The element type of cached keys and values: f16, f32, q8_0, q4_0, …"""

    def __post_init__(self) -> None:
        for name in ("n_batch", "n_ubatch", "max_sequences", "n_sequences", *_BYTES):
            value = getattr(self, name)
            if value is None and name in ("n_batch", "n_ubatch"):
                continue
            least = int(name not in _BYTES)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ModelError(f"{name} is {described(value)}; expected an integer of {least} or more")
            if value > _MOST and name not in _BYTES:
                raise ModelError(f"{name} is {shown(value)}; expected at most {_MOST}")
        draft = self.max_draft
        if draft is not None and (isinstance(draft, bool) or not isinstance(draft, int) or not 0 <= draft <= MAX_DRAFT):
            raise ModelError(f"max_draft is {described(draft)}; expected an integer from 0 to {MAX_DRAFT}")
        if self.prefix_folder is not None and not isinstance(self.prefix_folder, str):
            raise ModelError(f"prefix_folder is {described(self.prefix_folder)}; expected the path of a folder")
        if self.prefix_disk and self.prefix_folder is None:
            raise ModelError("prefix_disk is given without prefix_folder", hint="name a folder for the files")
        seconds = self.max_step_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise ModelError(f"max_step_seconds is {described(seconds)}; expected a number above 0")
        if self.max_sequences > MAX_SEQUENCES:
            raise ModelError(f"max_sequences is {self.max_sequences}; expected at most {MAX_SEQUENCES}")
        if self.n_sequences > self.max_sequences:
            raise ModelError(
                f"n_sequences is {self.n_sequences}; expected at most {self.max_sequences}, as the cache holds "
                f"max_sequences={self.max_sequences} texts",
                hint="each text has at most n_ctx tokens: lower n_sequences",
            )
        if self.n_ubatch is not None and self.n_ubatch > self.max_step_rows:
            raise ModelError(
                f"n_ubatch is {self.n_ubatch}, but a step computes n_batch={self.max_step_rows} tokens",
                hint="raise n_batch too, or leave n_ubatch out",
            )
        dtype = self.dtype
        if dtype.is_integer:
            raise DTypeError(
                f"kv_dtype is {described(self.kv_dtype)}; expected a float or quantized type, such as f16 or q8_0"
            )

    @property
    def max_step_rows(self) -> int:
        """The most rows of a text model's step."""
        return 512 if self.n_batch is None else self.n_batch

    @property
    def max_graph_rows(self) -> int:
        """The most rows of a text model's graph."""
        return self.max_step_rows if self.n_ubatch is None else self.n_ubatch

    @property
    def dtype(self) -> DType:
        """``kv_dtype`` as a DType."""
        try:
            return DType.parse(self.kv_dtype)
        except DTypeError:
            raise DTypeError(
                f"kv_dtype is {described(self.kv_dtype)}; expected an element type", hint="use f16, f32, q8_0 or q4_0"
            ) from None
