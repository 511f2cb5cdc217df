"""StateSpace: the sizes of recurrent layers, read from the keys ``<architecture>.ssm.…``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe.nn.bounds import check_range
from hotshoe.nn.config import derived, key
from hotshoe_core.gguf import Metadata

__all__ = ["StateSpace", "recurrent_key", "ssm_key"]


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The sizes of a recurrent layer."""

    kernel_size: int
    """Tokens that the convolution before the recurrence sees."""
    inner: int
    """Elements of the values of all heads."""
    state: int
    """Elements of a key: of B and C in Mamba."""
    rank: int
    """Mamba-1: the rank of the matrix that computes time steps. Others: the number of heads."""
    n_groups: int
    """Keys of a token. Heads share them if there are more heads."""

    @property
    def n_heads(self) -> int:
        return self.rank

    @property
    def head_dim(self) -> int:
        return self.inner // self.rank

    @property
    def channels(self) -> int:
        """Channels of the convolution over values, keys and queries."""
        return self.inner + 2 * self.n_groups * self.state


def ssm_key(*, heads: bool = True) -> Any:
    """Declare a field for the sizes of the file's recurrent layers.

    ssm: StateSpace = ssm_key()

    heads: False for Mamba-1, which has no heads, and whose files do not give the number of groups.
    """

    def get(metadata: Metadata, _: object, __: Any) -> StateSpace:
        def size(name: str, minimum: int = 1) -> int:
            key = f"ssm.{name}"
            return check_range(metadata, key, metadata.arch.require(key, int), minimum)

        groups = size("group_count") if heads else 1
        found = StateSpace(
            size("conv_kernel", 2), size("inner_size"), size("state_size"), size("time_step_rank"), groups
        )
        if heads and (found.inner % found.rank or found.rank % groups):
            raise metadata.arch.error(
                "ssm.time_step_rank",
                f"is {found.rank}: {found.inner} elements do not divide into that many heads of {groups} groups",
            )
        return found

    return derived(get)


def recurrent_key() -> Any:
    """Declare a field that says of each layer whether it is recurrent. The others have attention.

        interval: int = key("full_attention_interval", default=4, minimum=1)
        recurrent: tuple[bool, ...] = recurrent_key()

    Every layer number ``interval`` has attention, if the file does not name the layers.
    """
    return key(
        "attention.recurrent_layers",
        per_layer=True,
        default=lambda c: tuple((i + 1) % c.interval > 0 for i in range(c.n_layers)),
    )
