"""Op: one row of the op table. Calling an Op records a node."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe_core.errors import GraphError, HotshoeError, ShapeError
from hotshoe_core.errors.text import shown
from hotshoe_core.tensors.attributes import is_number, kind_of
from hotshoe_core.tensors.leaf_checks import MAX_ELEMENTS
from hotshoe_core.tensors.scope import scope_name
from hotshoe_core.tensors.tensor import Rule, Shape, Tensor

if TYPE_CHECKING:
    from hotshoe_core.graphs.context import Context

__all__ = ["Indexed", "Op", "RowOperands"]

RowOperands = Callable[[Sequence[Tensor | None], Mapping[str, Any], Shape], Sequence[int] | None]
"""From ``(sources, attrs, shape)`` of a node: the operands whose row i alone determines row i of the result.

Operands are given by position. None: this use of the op mixes rows. See ``by_row`` in ``hotshoe_core.ops.rules``.
"""


class Indexed(NamedTuple):
    """Operand ``indices`` of an op holds indices along ``axis`` of operand ``source``; both are positions."""

    source: int
    indices: int
    axis: int


class Op:
    """One row of the op table: name, arguments, shape and dtype rule, meaning.

    The wrapped function defines the meaning. For a *primitive* it works on NumPy arrays, and the reference backend runs
    it. For a *composite* it works on Tensors and is the decomposition. Positional parameters are tensors (default None:
    optional; ``*xs``: any number), keyword-only parameters are attributes.
    """

    indexed: tuple[Indexed, ...]
    """The operands that hold indices, and what they index."""

    movement: bool
    """The result may be a view of the first source's memory."""

    overwrites: bool
    """The result is the first source with a part of it changed, so a backend may work in place."""

    by_row: RowOperands | None
    """The operands whose row i alone determines row i of the result; None if the op mixes rows."""

    reference: Callable[..., Any] | None
    """The meaning over NumPy arrays: of every primitive, and of composites whose decomposition grows with the data."""

    def __init__(
        self,
        body: Callable[..., Any],
        rule: Rule,
        *,
        composite: bool,
        indexed: Mapping[str, tuple[str, int]] | None = None,
        movement: bool = False,
        overwrites: bool = False,
        reference: Callable[..., Any] | None = None,
        by_row: RowOperands | None = None,
    ) -> None:
        # not by inspect.signature: for a hundred ops, that is a large part of the time to import core
        function: Any = inspect.unwrap(body)
        code, defaults, keyword_defaults = function.__code__, function.__defaults__ or (), function.__kwdefaults__ or {}
        names, n = code.co_varnames, code.co_argcount
        keywords = names[n : n + code.co_kwonlyargcount]
        self.name = self.__name__ = body.__name__.rstrip("_")
        self.__doc__ = body.__doc__ or ""
        self.__module__ = body.__module__
        self.body = body
        self.rule = rule
        self.composite = composite
        self.reference = reference if composite else body
        self.variadic = bool(code.co_flags & inspect.CO_VARARGS)
        self.tensors = (*names[:n], names[n + len(keywords)]) if self.variadic else names[:n]
        self._names = frozenset(self.tensors)
        self.required = n - len(defaults) + self.variadic
        self.required_attrs = tuple(name for name in keywords if name not in keyword_defaults)
        self.attrs = {name: keyword_defaults.get(name, inspect.Parameter.empty) for name in keywords}
        annotated = ((name, kind_of(function.__annotations__.get(name, ""))) for name in keywords)
        self.kinds = tuple((name, kind) for name, kind in annotated if kind is not None)
        self.indexed = tuple(
            Indexed(self.tensors.index(source), self.tensors.index(indices), axis)
            for indices, (source, axis) in (indexed or {}).items()
        )
        self.movement = movement
        self.overwrites = overwrites
        self.by_row = by_row

    def __getattr__(self, name: str) -> Any:
        if name != "__signature__":
            raise AttributeError(f"an Op has no attribute {name!r}")
        self.__signature__ = signature = _signature(self.body)
        return signature

    def __call__(self, *sources: Tensor | None, **attrs: Any) -> Tensor:
        """Record a node. Raises ShapeError or DTypeError that names the op, its operands and the part of the model."""
        present = [t for t in sources if t is not None]
        if not self.variadic:
            usual = self.required <= len(present) == len(sources) <= len(self.tensors)
            if not usual or (attrs and not self._names.isdisjoint(attrs)):
                sources = self._by_position(sources, attrs)
                present = [t for t in sources if t is not None]
            elif len(sources) < len(self.tensors):
                sources += (None,) * (len(self.tensors) - len(sources))
        for t in present:
            if not isinstance(t, Tensor):
                raise self._not_a_tensor(t)
        if self.variadic and (not present or len(present) < len(sources)):
            got = f"None among {len(sources)}" if sources else "no argument"
            raise GraphError(f"{self.name} needs one tensor or more, and only tensors; got {got}")
        if attrs and not attrs.keys() <= self.attrs.keys():
            unknown = sorted(attrs.keys() - self.attrs.keys())
            raise GraphError(f"{self.name} has no attribute {', '.join(unknown)}; it has {list(self.attrs)}")
        for name in self.required_attrs:
            if name not in attrs:
                raise GraphError(f"{self.name} needs the attribute {name}")
        full = {**self.attrs, **attrs}
        try:
            for name, kind in self.kinds:
                full[name] = kind.checked(name, full[name])
            shape, dtype = self.rule(sources, full)
            if math.prod(shape) > MAX_ELEMENTS:
                raise ShapeError(f"the result would have the shape {shape}, more than 2^48 elements")
            context = _common_context(present)
        except HotshoeError as e:
            error = type(e)(self._describe(sources, attrs, e.message), hint=e.hint)
            error.operands = tuple(present)
            raise error from None
        return Tensor(self.name, sources, full, shape, dtype, context=context)

    def _not_a_tensor(self, operand: object) -> GraphError:
        hint = "wrap arrays in hotshoe_core.constant(array), or make them an input of the context"
        if is_number(operand):  # such as an axis
            call = ", ".join((*self.tensors[: self.required], *(f"{name}=…" for name in self.attrs)))
            named = f"give {', '.join(self.attrs)} by name" if self.attrs else "give tensors only"
            summary = (self.__doc__ or "").partition("\n")[0]
            hint = f"{named}: {self.name}({call}). {summary}"
        return GraphError(f"{self.name}: got {type(operand).__name__}, expected a Tensor", hint=hint)

    def _by_position(self, sources: tuple[Tensor | None, ...], attrs: dict[str, Any]) -> tuple[Tensor | None, ...]:
        """All operands in order. Removes operands given by name from ``attrs``."""
        operands = sources
        if attrs and not self._names.isdisjoint(attrs):
            named = {name: attrs.pop(name) for name in self.tensors if name in attrs}
            twice = [name for name in self.tensors[: len(sources)] if name in named]
            if twice:
                raise GraphError(f"{self.name} got its operand {', '.join(twice)} twice, by position and by name")
            operands = (*sources, *map(named.get, self.tensors[len(sources) :]))
        elif len(sources) < len(self.tensors):
            operands = (*sources, *(None,) * (len(self.tensors) - len(sources)))
        if len(operands) > len(self.tensors) or any(t is None for t in operands[: self.required]):
            n = sum(t is not None for t in operands)
            raise GraphError(f"{self.name} takes ({', '.join(self.tensors)}); got {n} tensors")
        return operands

    def _describe(self, sources: tuple[Tensor | None, ...], attrs: dict[str, Any], why: str) -> str:
        names = itertools.repeat("x") if self.variadic else self.tensors
        operands = [f"{n} {t.dtype.name}{list(t.shape)}" for n, t in zip(names, sources) if t is not None]
        operands += [f"{k}={shown(v)}" for k, v in attrs.items()]
        where = f" in {scope_name()}" if scope_name() else ""
        return f"{self.name}({', '.join(operands)}){where}: {why}"

    def __repr__(self) -> str:
        parameters = [p.replace(annotation=p.empty) for p in self.__signature__.parameters.values()]
        plain = self.__signature__.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        return f"<{'composite' if self.composite else 'primitive'} op {self.name}{plain}>"


def _signature(body: Callable[..., Any]) -> inspect.Signature:
    """The signature of a call of the op: positional parameters are Tensors, even if the body takes arrays."""
    signature = inspect.signature(body)
    parameters = [p if p.kind is p.KEYWORD_ONLY else _as_tensor(p) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation="Tensor")


def _as_tensor(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(annotation="Tensor" if parameter.default is parameter.empty else "Tensor | None")


def _common_context(tensors: Sequence[Tensor]) -> Context | None:
    found: Context | None = None
    for t in tensors:
        if t.context is not None and t.context is not found:
            if found is not None:
                raise GraphError(
                    "operands belong to two contexts",
                    hint="build each graph from the inputs of one context; weights, states and constants fit in any",
                )
            found = t.context
    return found
