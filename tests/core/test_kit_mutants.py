"""The kit finds what is wrong: backends with one planted error each, and a case that must fail for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotshoe_core.backend import Backend
from hotshoe_core.device import BackendParams
from hotshoe_core.dtypes import DType
from hotshoe_core.eager import EagerBackend
from hotshoe_core.quants import round_to
from hotshoe_core.reference import DEVICE, numpy_library
from hotshoe_core.testing import OP_CASES, OpConformance
from hotshoe_core.testing.graphs import GRAPH_CASES
from hotshoe_core.testing.run import AnyCase

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

f4 = np.float32


def opened(**functions: Function) -> Backend:
    """NumPy, with these ops instead of its own."""
    library = numpy_library()
    # a cast of its own is asked for types that the library has; the adapter rounds to the others
    dtypes = library.dtypes | {DType.BF16} if "cast" in functions else library.dtypes
    changed = replace(library, functions={**library.functions, **functions}, dtypes=dtypes)
    return EagerBackend("mutant", DEVICE, BackendParams(), changed)


def failing(backend: Backend, cases: list[AnyCase]) -> list[str]:
    """The ids of the cases that the kit calls wrong."""

    class Kit(OpConformance):
        pass

    kit = Kit()
    kit.backend = backend
    wrong = []
    for case in cases:
        try:
            with np.errstate(all="ignore"):
                kit.test_answer(case)
        except (AssertionError, pytest.fail.Exception):
            wrong.append(case.id)
        except pytest.skip.Exception:
            continue
    return wrong


def cases_of(*ops: str) -> list[AnyCase]:
    named = [c for c in GRAPH_CASES if c.id in ops]
    return [*(c for c in OP_CASES if c.op in ops), *named]


def rms_norm(scale: Callable[[Array, float], Array]) -> Function:
    def body(x: Array, weight: Array | None, *, eps: float) -> Array:
        x = x.astype(f4)
        y = x * scale(np.mean(np.square(x), -1, keepdims=True), eps)
        return (y if weight is None else y * weight).astype(f4)

    return body


def layer_norm(scale: Callable[[Array, float], Array], *, naive: bool = False) -> Function:
    def body(x: Array, weight: Array | None, bias: Array | None, *, eps: float) -> Array:
        x = x.astype(f4)
        mean = np.mean(x, -1, keepdims=True)
        square = np.mean(np.square(x), -1, keepdims=True)
        variance = square - np.square(mean) if naive else np.mean(np.square(x - mean), -1, keepdims=True)
        y = (x - mean) * scale(variance, eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).astype(f4)

    return body


def l2_norm(divisor: Callable[[Array, float], Array]) -> Function:
    def body(x: Array, *, eps: float) -> Array:
        x = x.astype(f4)
        return (x / divisor(np.sqrt(np.sum(np.square(x), -1, keepdims=True)), eps)).astype(f4)

    return body


def cast(rounding: Callable[[Array], Array]) -> Function:
    """Casts to BF16 by another rule."""

    def body(x: Array, *, dtype: DType) -> Array:
        return rounding(x.astype(f4)) if dtype is DType.BF16 else round_to(x, dtype)

    return body


def truncated(x: Array) -> Array:
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(f4)


def last_of_equals(x: Array) -> Array:
    return (x.shape[-1] - 1 - np.argmax(x[..., ::-1], -1)).astype(np.int32)


def order_with_repeats(x: Array, *, descending: bool = False) -> Array:
    """For each place the first of the elements of that value: right where no two are equal."""
    ordered = np.sort(-x if descending else x, -1)
    values = -ordered if descending else ordered
    return np.argmax(values[..., None] == x[..., None, :], -1).astype(np.int32)


def unordered_top_k(x: Array, *, k: int) -> Array:
    return np.sort(np.argsort(-x, -1, kind="stable")[..., :k], -1).astype(np.int32)


def steps_ignored(x: Array, values: Array, *, slices: Any, dtype: DType) -> Array:
    out = np.array(x)
    at = tuple(slice(s[0], s[0] + n) for s, n in zip(slices, values.shape))
    out[at] = values
    return out


def written_through(x: Array, values: Array, *, slices: Any, dtype: DType) -> Array:
    x.flags.writeable = True
    x[tuple(slice(*s) for s in slices)] = values
    return x


def rounded_half_up(x: Array) -> Array:
    return np.floor(x.astype(f4) + f4(0.5))


def through_floats(function: Callable[[Array, Array], Array]) -> Function:
    """Integers computed as F32, which holds them up to 2^24."""

    def body(a: Array, b: Array) -> Array:
        y = function(a.astype(f4), b.astype(f4))
        return y.astype(a.dtype) if a.dtype.kind == "i" and y.dtype.kind == "f" else y.astype(f4)

    return body


def sum_of_first_axis(x: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    rest = tuple(slice(0, 1) if i in axis[1:] else slice(None) for i in range(x.ndim))
    return np.asarray(np.sum(x[rest], axis, keepdims=keepdims, dtype=f4))


inverse_root = {
    "no eps": lambda v, eps: 1 / np.sqrt(v),
    "eps 1e-6": lambda v, eps: 1 / np.sqrt(v + f4(1e-6)),
    "eps outside the root": lambda v, eps: 1 / (np.sqrt(v) + f4(eps)),
    "eps as a floor": lambda v, eps: 1 / np.sqrt(np.maximum(v, f4(eps))),
}

MUTANTS: dict[str, tuple[dict[str, Function], list[AnyCase]]] = {
    **{f"rms_norm, {how}": ({"rms_norm": rms_norm(s)}, cases_of("rms_norm")) for how, s in inverse_root.items()},
    **{
        f"layer_norm, {how}": ({"layer_norm": layer_norm(s)}, cases_of("layer_norm")) for how, s in inverse_root.items()
    },
    "layer_norm, variance as a difference of squares": (
        {"layer_norm": layer_norm(lambda v, eps: 1 / np.sqrt(v + f4(eps)), naive=True)},
        cases_of("layer_norm"),
    ),
    "l2_norm, no eps": ({"l2_norm": l2_norm(lambda n, eps: n)}, cases_of("l2_norm")),
    "l2_norm, eps added": ({"l2_norm": l2_norm(lambda n, eps: n + f4(eps))}, cases_of("l2_norm")),
    "l2_norm, eps under the root": (
        {"l2_norm": l2_norm(lambda n, eps: np.sqrt(n * n + f4(eps)))},
        cases_of("l2_norm"),
    ),
    "softplus that overflows": ({"softplus": lambda x: np.log(1 + np.exp(x.astype(f4)))}, cases_of("softplus")),
    "softplus that is 0 for small numbers": (
        {"softplus": lambda x: np.where(x > 20, x, np.log(1 + np.exp(np.minimum(x, 20)))).astype(f4)},
        cases_of("softplus"),
    ),
    "sigmoid by a tanh, which loses what is small": (
        {"sigmoid": lambda x: (0.5 * (np.tanh(0.5 * x.astype(f4)) + 1)).astype(f4)},
        cases_of("sigmoid"),
    ),
    "BF16 as F16": ({"cast": cast(lambda x: x.astype(np.float16).astype(f4))}, cases_of("cast")),
    "BF16 not rounded": ({"cast": cast(lambda x: x)}, cases_of("cast")),
    "BF16 cut off": ({"cast": cast(truncated)}, cases_of("cast")),
    "argmax of equals the last": ({"argmax": last_of_equals}, cases_of("argmax")),
    "argmin of equals the last": ({"argmin": lambda x: last_of_equals(-x)}, cases_of("argmin")),
    "argsort that repeats an index": ({"argsort": order_with_repeats}, cases_of("an_order_of_equal_elements")),
    "top_k that repeats an index": (
        {"top_k": lambda x, *, k: order_with_repeats(x, descending=True)[..., :k]},
        cases_of("an_order_of_equal_elements"),
    ),
    "top_k not in order": ({"top_k": unordered_top_k}, cases_of("top_k")),
    "where by arithmetic": (
        {"where": lambda c, a, b: ((c != 0) * a + (c == 0) * b).astype(a.dtype)},
        cases_of("where"),
    ),
    "where with a threshold": ({"where": lambda c, a, b: np.where(c > 0, a, b)}, cases_of("where")),
    "minimum that drops NaN": ({"minimum": np.fmin}, cases_of("minimum")),
    "max that drops NaN": (
        {"max": lambda x, *, axis, keepdims: np.asarray(np.fmax.reduce(x.astype(f4), axis=axis, keepdims=keepdims))},
        cases_of("max"),
    ),
    "max from 0": (
        {"max": lambda x, *, axis, keepdims: np.asarray(np.max(x.astype(f4), axis=axis, keepdims=keepdims, initial=0))},
        cases_of("max"),
    ),
    "mod with the sign of the first": ({"mod": np.fmod}, cases_of("mod")),
    "floor_divide towards zero": (
        {"floor_divide": lambda a, b: np.trunc(a / b).astype(a.dtype)},
        cases_of("floor_divide"),
    ),
    "round that takes halves up": ({"round": rounded_half_up}, cases_of("round")),
    "integers through F32": ({"add": through_floats(np.add)}, cases_of("add")),
    "integers compared in F32": ({"equal": through_floats(np.equal)}, cases_of("equal")),
    "set_slice without steps": ({"set_slice": steps_ignored}, cases_of("set_slice")),
    "set_slice that changes its source": ({"set_slice": written_through}, cases_of("values_set_over_slices")),
    "sum over the first of several axes": (
        {"sum": sum_of_first_axis},
        cases_of("sum"),
    ),
    "solve that reads the upper triangle": (
        {"solve_lower": lambda a, b: np.linalg.solve(a.astype(f4), b.astype(f4)).astype(f4)},
        cases_of("solve_lower"),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_error_is_found(mutant: str) -> None:
    functions, cases = MUTANTS[mutant]
    assert cases
    with opened(**functions) as backend:
        assert failing(backend, cases), f"the kit does not notice: {mutant}"


def test_without_a_planted_error_nothing_is_wrong() -> None:
    """Else the test above could not fail."""
    every = {case.id: case for _, cases in MUTANTS.values() for case in cases}
    right = {
        "rms_norm": rms_norm(lambda v, eps: 1 / np.sqrt(v + f4(eps))),
        "layer_norm": layer_norm(lambda v, eps: 1 / np.sqrt(v + f4(eps))),
        "l2_norm": l2_norm(lambda n, eps: np.maximum(n, f4(eps))),
        "argmin": lambda x: np.argmin(x, -1).astype(np.int32),
    }
    with opened(**right) as backend:
        assert not failing(backend, list(every.values()))
