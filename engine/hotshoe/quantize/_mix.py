"""The mixes of llama.cpp, as tables: which block format each tensor of a model gets.

The rules are those of src/llama-quant.cpp in llama.cpp (as of llama-cpp-python 0.3.36), in new code. So a file made
here has the same types, and then the same bytes. In short: the output matrix, the value matrices of attention, and
``ffn_down`` of the first and last layers get more bits. If many queries share few keys and values, or if the model has
8 experts, the matrices of keys and values are small, and get more bits still.
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
    """The properties of a model that the mixes depend on."""

    architecture: str
    n_layers: int = 0
    n_experts: int = 0
    grouped: int = 1
    """Query heads for each key/value head, in the first layer; 0 if the model has no heads."""
    is_70b: bool = False
    tied: bool = False
    """True if the token embedding is also the output matrix."""


@dataclass(frozen=True, slots=True)
class _Case:
    """One tensor to choose a type for: number ``i`` of the ``n`` tensors of its role, or in layer ``i`` of ``n``."""

    facts: Facts
    i: int
    n: int
    importance: bool  # there is an importance matrix

    @property
    def shares(self) -> bool:
        """True if so many queries share keys and values that their matrices are small."""
        return self.facts.grouped >= 4

    @property
    def eight(self) -> bool:
        """True if the model has 8 experts, as Mixtral: the tensors outside the experts are then a small share."""
        return self.facts.n_experts == 8

    @property
    def falcon(self) -> bool:
        return self.facts.architecture == "falcon"

    @property
    def early(self) -> bool:
        """True in the first eighth."""
        return self.i < self.n // 8

    @property
    def sensitive(self) -> bool:
        """True in the first eighth, in the last eighth, and for every third tensor between them."""
        return self.early or self.i >= 7 * self.n // 8 or (self.i - self.n // 8) % 3 == 2

    @property
    def middle(self) -> bool:
        return self.n // 8 <= self.i < 7 * self.n // 8


Q8_0, Q6_K, Q5_K, Q4_K, Q3_K, Q2_K = DType.Q8_0, DType.Q6_K, DType.Q5_K, DType.Q4_K, DType.Q3_K, DType.Q2_K
IQ3_S, IQ3_XXS, IQ2_S, IQ2_XXS = DType.IQ3_S, DType.IQ3_XXS, DType.IQ2_S, DType.IQ2_XXS

Rule = Callable[[_Case], "DType | None"]
"""The type for a case; None means the base type of the file."""

_LOW = frozenset({"iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq1_s", "iq1_m"})
"""File types of about two bits, which have separate rules."""
_ROOMIER = frozenset({"iq2_s", "iq2_m"})

_OUTPUT: Mapping[str, DType] = dict.fromkeys((*_LOW, "iq3_xxs"), Q5_K) | {"mxfp4_moe": Q8_0, "q8_0": Q8_0}
"""Types of the output matrix; Q6_K for any other file type."""

_EMBEDDING: Mapping[str, DType] = {
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq1_s", "iq1_m"), Q2_K),
    **dict.fromkeys(("iq2_s", "iq2_m", "iq3_xxs"), IQ3_S),
    **dict.fromkeys(("tq1_0", "tq2_0", "q2_0"), Q4_K),
}
"""Types of the token embedding, if it is not also the output matrix."""

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
    # without importance these would be worse than the base type
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
"""A type with smaller blocks and at least as many bits, for rows that are not a multiple of the block size."""

_PROTECTED = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}
"""By architecture, parts of the names of tensors that need 8 bits or more."""

_LAYER = re.compile(r"blk\.(\d+)")


def fallback(name: str, dtype: DType, n_columns: int) -> DType:
    """Return ``dtype``, or a type with smaller blocks if ``n_columns`` is not a multiple of its block size.

    Raises ConversionError, which names the tensor, if ``dtype`` has large blocks and no such replacement.
    """
    if n_columns % dtype.block_size == 0:
        return dtype
    smaller = _NEXT.get(dtype)
    if smaller is None:
        if dtype.block_size > 32:
            raise ConversionError(
                f"{name} cannot be {dtype.name.lower()}: its rows have {n_columns} elements, which is not a multiple "
                f"of that type's block size, {dtype.block_size}",
                hint="choose another type; q4_k and similar types switch to one with smaller blocks by themselves",
            )
        smaller = dtype
    return smaller if n_columns % smaller.block_size == 0 else DType.F16


def sort_key(name: str) -> tuple[int, bytes]:
    """Sort key for llama.cpp's order of tensors: first those outside the layers, then each layer, by name."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1, name.encode()


class Mixer:
    """Chooses the type of each tensor. Call it in the order of ``sort_key``: some rules count earlier tensors."""

    def __init__(self, file_type: FileType, facts: Facts, *, n_values: int, importance: bool) -> None:
        """n_values: the number of tensors whose role ``is_values``. importance: there is an importance matrix."""
        self._type = file_type
        self._facts = facts
        self._importance = importance
        self._n_values = n_values
        self._seen = dict.fromkeys(("values", Role.DOWN, Role.GATE, Role.UP), 0)

    def choose(self, name: str, shape: tuple[int, ...], role: Role, output_type: DType | None) -> DType:
        """Return the type from the mix, even if the rows do not fit it. output_type: the user's choice, if any."""
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
        is_experts = len(shape) > 2 and shape[-3] > 1
        if self._facts.architecture == "bailingmoe3":  # it has other tensors with three dimensions
            is_experts = is_experts and role in (Role.UP, Role.GATE, Role.DOWN)
        return DType.MXFP4 if is_experts else Q8_0

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
        """Return how many tensors of this kind came before, and count this one."""
        self._seen[what] += 1
        return self._seen[what] - 1


def _apply(rules: Mapping[str, Rule], mix: str, case: _Case) -> DType | None:
    rule = rules.get(mix)
    return None if rule is None else rule(case)


def _falcon_down(case: _Case) -> DType:
    return Q6_K if case.i < case.n // 16 else Q5_K if case.sensitive else Q4_K


def _more_of_70b(facts: Facts, chosen: DType) -> DType:
    # 8 query heads share one key/value head, so the matrix is an eighth of that of the queries
    return Q5_K if facts.is_70b and chosen in (Q3_K, Q4_K) else chosen
