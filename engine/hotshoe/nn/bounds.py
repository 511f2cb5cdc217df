"""check_range: refuse a number in a file's metadata that is too small or too large."""

from __future__ import annotations

from typing import TypeVar

from hotshoe_core.gguf import Metadata

__all__ = ["check_range"]

T = TypeVar("T")

_MAX_SIZE = 1 << 24  # default upper bound of an int: a damaged file must not cause huge allocations


def check_range(
    metadata: Metadata, name: str, value: T, minimum: float | None = None, maximum: float | None = None
) -> T:
    """Return the value of the key ``<architecture>.<name>``.

    minimum, maximum: the bounds, inclusive. The default bounds of an int are 0 and 2²⁴.

    Raises ModelFileError for a number outside them, and for NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if isinstance(value, int):
        minimum, maximum = (0 if minimum is None else minimum), (_MAX_SIZE if maximum is None else maximum)
    if not (minimum is None or value >= minimum) or not (maximum is None or value <= maximum) or value != value:
        low, high = "any" if minimum is None else minimum, "any" if maximum is None else maximum
        raise metadata.arch.error(
            name,
            f"is {value}; expected {low} to {high}",
            "the file is damaged, or its converter does not know the architecture",
        )
    return value
