"""Facts about integer tensors that are known before a graph runs: upper bounds, and whether elements differ.

A backend whose native code does not check indices uses them to find the indices that it must check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hotshoe_core.tensors.tensor import Tensor

__all__ = ["are_distinct", "are_within", "origins", "upper_bound"]

_SELECTING = frozenset({"reshape", "permute", "slice", "expand", "concat"})


def origins(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors whose elements ``tensor`` consists of, found through ops that only select, repeat or order elements.

    If one of them is an input or a constant, ``Context`` checks its values against the size of what they index.
    """
    pending, seen = [tensor], set()
    while pending:
        t = pending.pop()
        if t in seen:
            continue
        seen.add(t)
        if t.op in _SELECTING:
            pending.extend(s for s in t.sources if s is not None)
        else:
            yield t


def are_within(indices: Tensor, n: int) -> bool:
    """Whether every element is known to be in 0 … n - 1.

    ``Context`` checks inputs and constants, so they count as known.
    """
    return all(t.op in ("input", "constant") or _below(t, n) for t in origins(indices))


def _below(t: Tensor, n: int) -> bool:
    bound = upper_bound(t)
    return bound is not None and bound <= n


def upper_bound(tensor: Tensor) -> int | None:
    """The smallest known n with every element in 0 … n - 1; None if no such n is known."""
    found = 0
    for t in origins(tensor):
        rule = _RULES.get(t.op)
        bound = None if rule is None or not t.dtype.is_integer else rule(t)
        if bound is None:
            return None
        found = max(found, bound)
    return found


def are_distinct(indices: Tensor) -> bool:
    """Whether it is known that no row along the last axis contains an index twice."""
    t = indices
    while t.op == "slice":  # a part of a row without repetitions also has no repetitions
        t = t.source(0)
    if t.op == "constant":
        ordered = np.sort(t.attrs["value"], axis=-1)
        return bool((ordered[..., 1:] != ordered[..., :-1]).all())
    return indices.shape[-1:] == (1,) or t.op in ("argsort", "top_k")


def _last_axis(t: Tensor) -> int | None:
    return t.source(0).shape[-1]


def _constant(t: Tensor) -> int | None:
    value = t.attrs["value"]
    return int(value.max()) + 1 if value.min() >= 0 else None


def _clamp(t: Tensor) -> int | None:
    low, high = t.attrs["min"], t.attrs["max"]
    return int(high) + 1 if low >= 0 and high < 2**31 else None


def _mod(t: Tensor) -> int | None:
    """The remainder is less than a divisor that is a positive constant; other divisors give no bound."""
    divisors = list(origins(t.source(1)))
    known = [d.attrs["value"] for d in divisors if d.op == "constant"]
    if len(known) < len(divisors) or any(v.min() < 1 for v in known):
        return None
    return max(int(v.max()) for v in known)


def _selected(*positions: int) -> Callable[[Tensor], int | None]:
    """For ops whose result consists of elements of these sources."""

    def rule(t: Tensor) -> int | None:
        bounds = [upper_bound(s) for s in (t.sources[i] for i in positions) if s is not None]
        known = [b for b in bounds if b is not None]
        return max(known) if len(known) == len(bounds) else None

    return rule


_RULES: dict[str, Callable[[Tensor], int | None]] = {
    "argsort": _last_axis,
    "top_k": _last_axis,
    "argmax": _last_axis,
    "argmin": _last_axis,
    "constant": _constant,
    "clamp": _clamp,
    "mod": _mod,
    "take": _selected(0),
    "take_along": _selected(0),
    "where": _selected(1, 2),
    "minimum": _selected(0, 1),
    "maximum": _selected(0, 1),
    "set_slice": _selected(0, 1),
}
