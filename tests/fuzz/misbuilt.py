"""Graphs built wrongly: shapes, types, attributes and tensors that do not fit, on the CPU and on the reference.

A case is one of the conformance kit's, in which one or two things are replaced. Each backend must refuse it with a
typed error while it is built, compiled or fed, or compute it; and what both compute has one shape and type.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import HotshoeError
from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor, constant
from hotshoe_core.testing import OP_CASES, Case, Maker
from hotshoe_loader import load_all
from tests.fuzz.fault import Fault

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = (
    1099957, 1128713, 1152356,  # a mask of one axis, a diagonal of what lies in steps, padding of what has no axis
    1001067, 1003325,  # states of part of a block
    2002313, 2007281,  # axes of 2^31 and more
    2007256,  # a width that no int holds
    1002628, 2010762, 3005774,  # RoPE: a layout of another name, YaRN that divides by zero, a context of 2^62
    1005962,  # None among operands to stack
    8004435,  # an index without axes for take_along
    8021850,  # a limit beyond integers
    6021069,  # a mask of F16 that lies in steps, to be repeated
    5180457,  # more different indices than there are rows
)  # fmt: skip
SHARE = 400
_LARGEST = 1 << 18  # elements of what is computed; a larger graph is compiled only
_HUGE = 1 << 24  # elements of what is not even filled with numbers, nor taken apart: both take memory of Python

_backends: list[Backend] = []
_foreign: list[Tensor] = []
Answer = list[tuple[tuple[int, ...], np.dtype[Any]]]


def setup() -> None:
    _backends[:] = [load_all(require="cpu").open("cpu", BackendParams(n_threads=1)), open_reference()]
    elsewhere = open_reference()
    closed = open_reference()
    state, gone = elsewhere.state((3, 4), DType.F32, "foreign"), closed.state((3, 4), DType.F32, "gone")
    closed.close()
    _foreign[:] = [state, gone, elsewhere.new_context().input("another's", (3, 4))]


@dataclass
class Plan:
    """What is built: an op, its operands and its attributes, and what was done to them, in words."""

    case: Case
    args: list[Any]
    attrs: dict[str, Any]
    changes: list[str]


def run(seed: int) -> str:
    plan = _plan(random.Random(seed))
    with np.errstate(all="ignore"):  # NaN and infinity are part of it
        answers = [_attempt(backend, plan, seed) for backend in _backends]
    computed = [a for a in answers if a is not None]
    if len(computed) == 2 and computed[0] != computed[1]:
        raise Fault("different", f"{_words(plan)}: cpu gives {computed[0]}, the reference {computed[1]}")
    return "answered" if computed else "refused"


def _attempt(backend: Backend, plan: Plan, seed: int) -> Answer | None:
    make = Maker(backend, str(seed))
    try:
        y = TABLE[plan.case.op](*(_operand(make, a) for a in plan.args), **plan.attrs)
        y = y if y.dtype.numpy is not None else y.cast(DType.F32)
        graph = make.context.forward(y).graph()
        largest = max(t.size for t in (*graph.nodes, *graph.leaves))
        if largest > _HUGE and (backend.name == "reference" or not all(map(backend.supports, graph.nodes))):
            return None
        make.context.reserve()
        if largest > _LARGEST:
            return None
        got = make.context.compute(make.feeds(seed)).read(y)
        return [(got.shape, got.dtype)]
    except HotshoeError as error:
        if len(str(error)) < 10 or any(ord(c) < 32 and c != "\n" for c in str(error)):
            raise Fault("untyped", f"{_words(plan)}: it says only {str(error)!r}") from error
        return None
    except IndexError:
        if backend.name == "reference":  # of indices that a graph computes: said in the documentation of take
            return None
        raise
    except Exception as error:
        raise Fault("untyped", f"{_words(plan)} on {backend.name}: {type(error).__name__}: {error}") from error
    finally:
        make.close()


def _operand(make: Maker, arg: Any) -> Any:
    if arg is None or callable(arg):
        return None if arg is None else arg(make)
    kind = arg.kind if min(arg.shape, default=0) > 0 and math.prod(arg.shape) <= _HUGE else "input"
    return make.operand(arg.shape, arg.dtype, kind, arg.layout, arg.values, arg.uses)


def _words(plan: Plan) -> str:
    return f"{plan.case.id} with {'; '.join(plan.changes)}"


# Changes


def _plan(rng: random.Random) -> Plan:
    op = rng.choice(_OPS)
    case = rng.choice(_CASES[op])
    plan = Plan(case, list(case.args), dict(case.attrs), [])
    for _ in range(rng.choice((1, 1, 2))):
        changes = _CHANGES if TABLE[op].attrs else _OF_OPERANDS
        plan.changes.append(rng.choice(changes)(rng, plan))
    return plan


def _shape(rng: random.Random, plan: Plan) -> str:
    i = _one_operand(rng, plan)
    if i is None:
        return "the same shape"
    arg = plan.args[i]
    shape = list(arg.shape)
    kind = rng.randrange(7)
    if kind == 0:
        shape.insert(rng.randint(0, len(shape)), rng.choice((1, 2, 3)))
    elif kind == 1 and shape:
        del shape[rng.randrange(len(shape))]
    elif kind == 2:
        rng.shuffle(shape)
    elif kind == 3:
        shape = [rng.choice((1, 2, 3, 5, 32, 256)) for _ in range(rng.randint(0, 6))]
    elif shape:
        at = rng.randrange(len(shape))
        shape[at] = rng.choice((1, shape[at] + 1, shape[at] - 1, 2 * shape[at], 0, -1, 64, 65, 2**31, 2**40, 2**63))
    plan.args[i] = replace(arg, shape=tuple(shape), layout="plain")
    return f"operand {i} of the shape {shape}"


def _dtype(rng: random.Random, plan: Plan) -> str:
    i = _one_operand(rng, plan)
    if i is None:
        return "the same type"
    plan.args[i] = replace(plan.args[i], dtype=rng.choice(_DTYPES))
    return f"operand {i} of {plan.args[i].dtype.name}"


def _kind(rng: random.Random, plan: Plan) -> str:
    i = _one_operand(rng, plan)
    if i is None:
        return "the same kind"
    uses = rng.choice(((), ("linear",), ("linear_experts",), ("take", "linear"), (plan.case.op,)))
    plan.args[i] = replace(plan.args[i], kind=rng.choice(("weight", "weight", "state", "constant")), uses=uses)
    return f"operand {i} as a {plan.args[i].kind} for {uses}"


def _layout(rng: random.Random, plan: Plan) -> str:
    i = _one_operand(rng, plan)
    if i is None or len(plan.args[i].shape) < 2:
        return "the same layout"
    plan.args[i] = replace(plan.args[i], layout=rng.choice(("permuted", "swapped", "sliced", "stepped")))
    return f"operand {i} {plan.args[i].layout}"


def _values(rng: random.Random, plan: Plan) -> str:
    """Indices out of range, NaN and infinity."""
    i = _one_operand(rng, plan)
    if i is None:
        return "the same values"
    number = rng.choice((-1, 2**31 - 1, -(2**31), 10**6, math.nan, math.inf))
    integer = plan.args[i].dtype.is_integer
    number = (7 if not math.isfinite(number) else number) if integer else number
    plan.args[i] = replace(plan.args[i], values=lambda _, shape: np.full(shape, number, "i8" if integer else "f4"))
    return f"operand {i} full of {number}"


def _no_tensor(rng: random.Random, plan: Plan) -> str:
    i = rng.randrange(len(plan.args) + 1)
    found: tuple[Any, str] = rng.choice(_ODD)
    plan.args[i:i + 1] = [lambda make: found[0]]  # fmt: skip
    return f"{found[1]} as operand {i}"


def _foreign_tensor(rng: random.Random, plan: Plan) -> str:
    i, which = rng.randrange(len(plan.args) + 1), rng.randrange(4)
    plan.args[i : i + 1] = [_released if which == 3 else lambda make: _foreign[which]]
    return f"operand {i} is {('of another backend', 'of a closed backend', 'of another context', 'released')[which]}"


def _released(make: Maker) -> Tensor:
    state = make.state((3, 4))
    make.backend.release([state])
    return state


def _missing(rng: random.Random, plan: Plan) -> str:
    if rng.random() < 0.5 and plan.args:
        return f"no operand {len(plan.args)}, which was {plan.args.pop()}"
    plan.args.append(rng.choice(plan.case.args))
    return "an operand too many"


def _attribute(rng: random.Random, plan: Plan) -> str:
    name = rng.choice(list(TABLE[plan.case.op].attrs))
    value = rng.choice(_OTHER_CONFIGS) if name == "config" and rng.random() < 0.7 else rng.choice(_VALUES)
    if isinstance(plan.attrs.get(name), tuple) and rng.random() < 0.6:
        known = list(plan.attrs[name])
        if known:
            known[rng.randrange(len(known))] = value
        value = tuple(known) if rng.random() < 0.7 else tuple(known[:-1])
    plan.attrs[name] = value
    return f"{name}={value!r:.80}"


def _unknown_attribute(rng: random.Random, plan: Plan) -> str:
    if rng.random() < 0.5 and plan.attrs:
        return f"no {plan.attrs.popitem()[0]}"
    plan.attrs["gain"] = 1
    return "an attribute gain"


def _one_operand(rng: random.Random, plan: Plan) -> int | None:
    known = [i for i, a in enumerate(plan.args) if a is not None and not callable(a)]
    return rng.choice(known) if known else None


Change = Callable[[random.Random, Plan], str]
_OF_OPERANDS: tuple[Change, ...] = (
    _shape, _shape, _shape, _dtype, _dtype, _kind, _layout, _values, _no_tensor, _foreign_tensor, _missing,
)  # fmt: skip
_CHANGES = (*_OF_OPERANDS, *(_attribute,) * 8, _unknown_attribute)
_ODD: tuple[tuple[Any, str], ...] = (
    (None, "None"), (3, "a number"), ("x", "a text"), (np.ones((3, 4), np.float32), "an array"), ([1.0], "a list"),
    (constant(np.ones((2, 3), np.int64)), "I64"), (constant(np.ones((), np.float32)), "a scalar"),
    (constant(np.ones((1,) * 7, np.float32)), "seven axes"), (constant(np.array([[7, -1]], np.int32)), "indices"),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, "x", "", "none", b"x", 0, 1, -1, 2, 3, 5, 100, 2.5, -0.0, 1e-45, 1e300, math.nan, math.inf, -math.inf,
    2**31, -(2**31) - 1, 2**63, 10**30, (), (0,), (1, 1), (0, 0), (-1, -1), (2**31, 2**31), (2**40, 2**40), (1, 2, 3),
    (1,) * 5, (None,), ("x",), (1.5, 2), ((0, 1),), ((0, 1, 1),), ((1, 0, 0), (0, 0, 0)), [1, 2], {}, {1: 2}, 1j,
    np.int64(1), np.float32(0.5), np.ones(2), DType.F16, DType.Q4_0, DType.I32, DType.NVFP4, RoPE(4), object(),
)  # fmt: skip
_OTHER_CONFIGS = (
    RoPE(0), RoPE(-2), RoPE(3), RoPE(1000), RoPE(4, base=-1.0), RoPE(4, base=math.inf), RoPE(4, scale=math.nan),
    RoPE(4, ext_factor=1.0), RoPE(4, ext_factor=1.0, original_context=-1), RoPE(4, sections=(2**40, 1)),
    RoPE(4, sections=(-1, 3)), RoPE(4, sections=(1, 1, 0, 0, 0)), RoPE(2.0), RoPE("4"), RoPE(4, base="x"),  # type: ignore[arg-type]
    RoPE(4, base=1.0, ext_factor=1.0, original_context=8), RoPE(4, sections=(1, 1), section_layout="x"),  # type: ignore[arg-type]
    RoPE(4, beta_fast=0.0, ext_factor=1.0, original_context=8),
    RoPE(4, scale=1e-30, ext_factor=1.0, original_context=2**62),
)  # fmt: skip
_NOT_MADE = ("Q8_1", "Q8_K", "IQ", "TQ", "NVFP4", "Q1_0", "Q2_0")  # of which nobody can make a valid weight here
_DTYPES = [d for d in DType if not d.name.startswith(_NOT_MADE)]
_CASES: dict[str, list[Case]] = {}
for _case in OP_CASES:
    if all(a is None or math.prod(a.shape) <= 4096 for a in _case.args):
        _CASES.setdefault(_case.op, []).append(_case)
_OPS = sorted(_CASES)
