"""Op: one row of the op table. Calling it records a node."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe_core.errors import GraphError, HotshoeError, ShapeError
from hotshoe_core.tensors.attributes import kind_of
from hotshoe_core.tensors.leaf_checks import MAX_ELEMENTS
from hotshoe_core.tensors.tensor import Rule, Shape, Tensor, scope_name

if TYPE_CHECKING:
    from hotshoe_core.graphs.context import Context

__all__ = ["Indexed", "Op", "RowOperands"]

RowOperands = Callable[[Sequence[Tensor | None], Mapping[str, Any], Shape], Sequence[int] | None]
"""Which operands' rows a row of the result comes of, for its (sources, attrs, shape); see ``ops/_rules.py``."""


class Indexed(NamedTuple):
    """Operand ``indices`` of an op counts along ``axis`` of ``source``; both operands by their positions."""

    source: int
    indices: int
    axis: int


class Op:
    """One row of the op table: name, arguments, shape and dtype rule, meaning.

    The function it wraps is its meaning: for a *primitive* over NumPy arrays, which makes the reference
    backend; for a *composite* over Tensors, which is its decomposition. Positional parameters are
    tensors (default None: optional; ``*xs``: any number), keyword-only ones are attributes.

    indexed: which operands are indices, and into what. movement: the result may be a view of the first source's
    memory. overwrites: the result is the first source but for a part, so a backend may work in place. by_row: which
    operands' rows a row of the result comes of (see ``ops/_rules.py``); None for an op that mixes rows.
    reference: a composite's meaning over NumPy arrays, where the decomposition is one that grows with the data.
    """

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
        # by hand: inspect.signature of a hundred ops is a good part of what importing core costs
        written: Any = inspect.unwrap(body)
        code, defaults, keyword_defaults = written.__code__, written.__defaults__ or (), written.__kwdefaults__ or {}
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
        self.required = n - len(defaults) + self.variadic
        self.required_attrs = tuple(name for name in keywords if name not in keyword_defaults)
        self.attrs = {name: keyword_defaults.get(name, inspect.Parameter.empty) for name in keywords}
        annotated = ((name, kind_of(written.__annotations__.get(name, ""))) for name in keywords)
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
        """A new node. Raises ShapeError or DTypeError naming op, operands and the part of the model."""
        if not self.variadic:
            sources = self._by_position(sources, attrs)
        present = [t for t in sources if t is not None]
        for t in present:
            if not isinstance(t, Tensor):
                raise GraphError(
                    f"{self.name}: got a {type(t).__name__}, expected a Tensor",
                    hint="wrap arrays in hotshoe_core.constant(array), or make them an input of the context",
                )
        if self.variadic and (not present or len(present) < len(sources)):
            got = f"None among {len(sources)}" if sources else "none"
            raise GraphError(f"{self.name} needs at least one tensor, and nothing else; got {got}")
        if not attrs.keys() <= self.attrs.keys():
            unknown = sorted(attrs.keys() - self.attrs.keys())
            raise GraphError(f"{self.name} has no attribute {', '.join(unknown)}; it has {list(self.attrs)}")
        full = {**self.attrs, **attrs}
        for name in self.required_attrs:
            if name not in attrs:
                raise GraphError(f"{self.name} needs the attribute {name}")
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

    def _by_position(self, sources: tuple[Tensor | None, ...], attrs: dict[str, Any]) -> tuple[Tensor | None, ...]:
        """All operands in order; those given by name are taken out of ``attrs``."""
        given = sources
        if len(sources) < len(self.tensors) or attrs:
            named = {name: attrs.pop(name) for name in self.tensors if name in attrs}
            twice = [name for name in self.tensors[: len(sources)] if name in named]
            if twice:
                raise GraphError(f"{self.name} got its operand {', '.join(twice)} twice, by position and by name")
            given = (*sources, *map(named.get, self.tensors[len(sources) :]))
        if len(given) > len(self.tensors) or any(t is None for t in given[: self.required]):
            n = sum(t is not None for t in given)
            raise GraphError(f"{self.name} takes ({', '.join(self.tensors)}); got {n} tensors")
        return given

    def _describe(self, sources: tuple[Tensor | None, ...], attrs: dict[str, Any], why: str) -> str:
        names = itertools.repeat("x") if self.variadic else self.tensors
        operands = [f"{n} {t.dtype.name}{list(t.shape)}" for n, t in zip(names, sources) if t is not None]
        operands += [f"{k}={v!r}" for k, v in attrs.items()]
        where = f" in {scope_name()}" if scope_name() else ""
        return f"{self.name}({', '.join(operands)}){where}: {why}"

    def __repr__(self) -> str:
        parameters = [p.replace(annotation=p.empty) for p in self.__signature__.parameters.values()]
        plain = self.__signature__.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        return f"<{'composite' if self.composite else 'primitive'} op {self.name}{plain}>"


def _signature(body: Callable[..., Any]) -> inspect.Signature:
    """Of a call of the op: its positional parameters are tensors, whatever its meaning takes."""
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
