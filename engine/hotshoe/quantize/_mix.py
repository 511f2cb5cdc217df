"""Which tensor of a model gets which block format: the mixes of llama.cpp, as tables.

The rules, though not a line of the code, are those of src/llama-quant.cpp in llama.cpp (as of llama-cpp-python 0.3.36),
so that a file made here has the types, and then the bytes, of one made there. What they come to: the matrix that
gives the logits and the values of attention get more bits, as do the first and the last layers' ``ffn_down``; models
that share few keys and values among many queries, or have 8 experts, can afford more for these small matrices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hotshoe.quantize._filetypes import FileType
from hotshoe.quantize._roles import Role
from hotshoe_core.errors import ConversionError
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Facts", "Mixer", "fallback", "sort_key"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the mixes go by. grouped: query heads to one of keys and values, in the first layer; 0 without heads."""

    architecture: str
    n_layers: int = 0
    n_experts: int = 0
    grouped: int = 1
    is_70b: bool = False
    tied: bool = False  # the token embedding gives the logits, too


@dataclass(frozen=True, slots=True)
class _Case:
    """One tensor to choose for. i of n: its number among those of its role, or its layer among all."""

    facts: Facts
    i: int
    n: int
    importance: bool  # there is an importance matrix

    @property
    def shares(self) -> bool:
        """So many queries share keys and values that the matrices for these are small."""
        return self.facts.grouped >= 4

    @property
    def eight(self) -> bool:
        """As Mixtral has: what the experts share is little of the whole."""
        return self.facts.n_experts == 8

    @property
    def falcon(self) -> bool:
        return self.facts.architecture == "falcon"

    @property
    def early(self) -> bool:
        """In the first eighth."""
        return self.i < self.n // 8

    @property
    def sensitive(self) -> bool:
        """In the first eighth, the last, or one of three between."""
        return self.early or self.i >= 7 * self.n // 8 or (self.i - self.n // 8) % 3 == 2

    @property
    def middle(self) -> bool:
        return self.n // 8 <= self.i < 7 * self.n // 8


Q8_0, Q6_K, Q5_K, Q4_K, Q3_K, Q2_K = DType.Q8_0, DType.Q6_K, DType.Q5_K, DType.Q4_K, DType.Q3_K, DType.Q2_K
IQ3_S, IQ3_XXS, IQ2_S, IQ2_XXS = DType.IQ3_S, DType.IQ3_XXS, DType.IQ2_S, DType.IQ2_XXS

Rule = Callable[[_Case], "DType | None"]
"""The type for a case; None: the base type of the file."""

_LOW = frozenset({"iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq1_s", "iq1_m"})
"""File types of about two bits, which have rules of their own."""
_ROOMIER = frozenset({"iq2_s", "iq2_m"})

_OUTPUT: Mapping[str, DType] = dict.fromkeys((*_LOW, "iq3_xxs"), Q5_K) | {"mxfp4_moe": Q8_0, "q8_0": Q8_0}
"""Of the matrix that gives the logits; any other file type: Q6_K."""

_EMBEDDING: Mapping[str, DType] = {
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"), Q2_K),
    **dict.fromkeys(("iq2_s", "iq2_m", "iq3_xxs"), IQ3_S),
    **dict.fromkeys(("tq1_0", "tq2_0", "q2_0"), Q4_K),
}
"""Of the token embedding, where it gives no logits."""

_VALUES: Mapping[str, Rule] = {
    "q2_k": lambda c: Q4_K if c.shares else Q3_K,
    "q2_k_s": lambda c: Q4_K if c.shares else None,
    "iq3_xxs": lambda c: Q4_K if c.shares else IQ3_XXS if c.importance else IQ3_S,
    "iq3_xs": lambda c: Q4_K if c.shares else None,
    "iq3_s": lambda c: Q4_K if c.shares else None,
    "iq3_m": lambda c: Q4_K,
    "q3_k_m": lambda c: Q5_K if c.i < 2 else Q4_K,
    "q3_k_l": lambda c: Q5_K,
    "iq4_nl": lambda c: Q5_K if c.shares else None,
    "iq4_xs": lambda c: Q5_K if c.shares else None,
    "q4_k_m": lambda c: Q6_K if c.sensitive else None,
    "q5_k_m": lambda c: Q6_K if c.sensitive else None,
    "q4_k_s": lambda c: Q5_K if c.i < 4 else None,
}

_QUERIES_AND_KEYS: Mapping[str, DType] = {"iq3_xs": IQ3_XXS, "iq3_xxs": IQ2_S}

_DOWN: Mapping[str, Rule] = {
    "q2_k": lambda c: Q3_K,
    "q2_k_s": lambda c: Q4_K if c.early else None,
    "iq3_xxs": lambda c: None if c.importance else Q4_K if c.early else Q3_K,
    "q3_k_m": lambda c: Q5_K if c.i < c.n // 16 else Q4_K if not c.falcon or c.sensitive else Q3_K,
    "iq3_m": lambda c: Q4_K if c.early or (c.eight and c.sensitive) else None,
    "q3_k_l": lambda c: Q4_K if c.falcon else Q5_K,
    "q4_k_m": lambda c: _falcon_down(c) if c.falcon else Q6_K if c.sensitive else None,
    "iq4_nl": lambda c: Q5_K if c.early and not c.importance else None,
    "iq4_xs": lambda c: Q5_K if c.early and not c.importance else None,
    "q5_k_m": lambda c: Q6_K if c.sensitive else None,
    "q4_k_s": lambda c: Q5_K if c.early and not c.falcon else None,
    # without importance these would be worse than the base type, and files stay as they have always been
    "q4_0": lambda c: DType.Q4_1 if c.early and c.importance else None,
    "q5_0": lambda c: DType.Q5_1 if c.early and c.importance else None,
}

_ATTENTION_OUTPUT: Mapping[str, DType] = {"q2_k": Q3_K, "iq3_xxs": IQ3_S, "q3_k_m": Q4_K, "q3_k_l": Q5_K, "iq3_m": Q4_K}
_ATTENTION_OUTPUT_OF_EIGHT = frozenset(
    {
        *("q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m"),
        *("iq3_xs", "iq3_xxs", "iq3_s", "iq3_m", "iq4_nl", "iq4_xs"),
    }
)  # these get Q5_K

_NEXT: Mapping[DType, DType] = {
    **dict.fromkeys(
        (DType.IQ1_S, DType.IQ1_M, IQ2_XXS, DType.IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, DType.IQ4_XS), DType.IQ4_NL
    ),
    **dict.fromkeys((DType.Q2_0, Q2_K, Q3_K, DType.TQ1_0, DType.TQ2_0), DType.Q4_0),
    Q4_K: DType.Q5_0,
    Q5_K: DType.Q5_1,
    Q6_K: Q8_0,
}
"""Where rows are no whole number of a type's blocks: a type of smaller blocks and no fewer bits."""

_PROTECTED = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
"""Parts of names that an architecture wants in 8 bits or more."""

_LAYER = re.compile(r"blk\.(\d+)")


def fallback(name: str, dtype: DType, n_columns: int) -> DType:
    """``dtype``, or what takes its place where rows of so many columns are no whole number of its blocks.

    Raises ConversionError, which names the tensor, for a type that has large blocks and no kin with smaller ones.
    """
    if n_columns % dtype.block_size == 0:
        return dtype
    smaller = _NEXT.get(dtype)
    if smaller is None:
        if dtype.block_size > 32:
            raise ConversionError(
                f"{name} cannot be {dtype.name.lower()}: its rows have {n_columns} elements, and a block of that type "
                f"has {dtype.block_size}",
                hint="choose another type; those named q4_k and the like find one that fits by themselves",
            )
        smaller = dtype
    return smaller if n_columns % smaller.block_size == 0 else DType.F16


def sort_key(name: str) -> tuple[int, bytes]:
    """llama.cpp's order of tensors, in which the mixes count: those of no layer, then layer by layer, by name."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1, name.encode()


class Mixer:
    """Chooses for one tensor after another, in the order of ``sort_key``: a few rules count what came before."""

    def __init__(self, file_type: FileType, facts: Facts, *, n_values: int, importance: bool) -> None:
        """n_values: how many tensors there are in all whose role ``is_values``."""
        self._type = file_type
        self._facts = facts
        self._importance = importance
        self._n_values = n_values
        self._seen = dict.fromkeys(("values", Role.DOWN, Role.GATE, Role.UP), 0)

    def choose(self, name: str, shape: tuple[int, ...], role: Role, output_type: DType | None) -> DType:
        """The type by the mix, whether or not the rows fit it. output_type: what the output was asked to be."""
        mix, facts = self._type.name, self._facts
        if any(part in name for part in _PROTECTED.get(facts.architecture, ())):
            return Q8_0
        if role is Role.OUTPUT or (role is Role.EMBEDDING and facts.tied):
            return output_type or self._output(shape)
        if mix == "mxfp4_moe":
            return self._mxfp4(shape, role)
        if role is Role.EMBEDDING:
            return _EMBEDDING.get(mix, self._type.base)
        chosen = self._low(role) if mix in _LOW else self._usual(name, role)
        return chosen or self._type.base

    def _output(self, shape: tuple[int, ...]) -> DType:
        if self._facts.architecture == "falcon" or shape[-1] % self._type.base.block_size:
            return Q8_0
        return _OUTPUT.get(self._type.name, Q6_K)

    def _mxfp4(self, shape: tuple[int, ...], role: Role) -> DType:
        of_experts = len(shape) > 2 and shape[-3] > 1
        if self._facts.architecture == "bailingmoe3":  # has other tensors of three dimensions
            of_experts = of_experts and role in (Role.UP, Role.GATE, Role.DOWN)
        return DType.MXFP4 if of_experts else Q8_0

    def _low(self, role: Role) -> DType | None:
        facts, roomier = self._facts, self._type.name in _ROOMIER
        if role.is_values:
            if facts.grouped >= 4 or facts.n_experts >= 4:
                return Q4_K
            return IQ3_S if roomier else Q2_K
        if role is Role.KEYS:
            return Q4_K if facts.n_experts == 8 else None
        if role is Role.DOWN:
            i = self._count(Role.DOWN)
            return (IQ3_S if roomier else Q2_K) if i < facts.n_layers // 8 else None
        if role is Role.ATTENTION_OUTPUT:
            if facts.n_experts == 8:
                return Q5_K
            return IQ3_S if roomier else IQ2_XXS if self._type.name in ("iq1_s", "iq1_m") else None
        return None

    def _usual(self, name: str, role: Role) -> DType | None:
        mix, facts = self._type.name, self._facts
        if role.is_values:
            case = self._case(self._count("values"), self._n_values)
            return Q8_0 if case.eight else _more_of_70b(facts, _apply(_VALUES, mix, case) or self._type.base)
        if role in (Role.KEYS, Role.QUERIES):
            return Q8_0 if role is Role.KEYS and facts.n_experts == 8 else _QUERIES_AND_KEYS.get(mix)
        if role is Role.ATTENTION_OUTPUT:
            if facts.architecture == "falcon":
                return Q4_K if mix == "q3_k_l" else None
            if facts.n_experts == 8:
                return Q5_K if mix in _ATTENTION_OUTPUT_OF_EIGHT else None
            return _ATTENTION_OUTPUT.get(mix)
        if role in (Role.DOWN, Role.GATE, Role.UP):
            i = self._count(role)
            if facts.n_experts > 1 and (layer := _LAYER.match(name)):
                i = int(layer[1])  # a layer may have several such tensors
            case = self._case(i, facts.n_layers)
            if role is Role.DOWN:
                return _apply(_DOWN, mix, case)
            return IQ3_XXS if mix == "iq3_xs" and case.middle else None
        return None

    def _case(self, i: int, n: int) -> _Case:
        return _Case(self._facts, i, n, self._importance)

    def _count(self, what: str | Role) -> int:
        """How many of these came before this one."""
        self._seen[what] += 1
        return self._seen[what] - 1


def _apply(rules: Mapping[str, Rule], mix: str, case: _Case) -> DType | None:
    rule = rules.get(mix)
    return None if rule is None else rule(case)


def _falcon_down(case: _Case) -> DType:
    return Q6_K if case.i < case.n // 16 else Q5_K if case.sensitive else Q4_K


def _more_of_70b(facts: Facts, chosen: DType) -> DType:
    # 8 heads share the matrix, which is therefore an eighth of the queries'
    return Q5_K if facts.is_70b and chosen in (Q3_K, Q4_K) else chosen
