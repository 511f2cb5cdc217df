"""Plan a quantization: the new type of each tensor, decided before any data is read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from hotshoe.quantize._filetypes import FileType, parse_dtype
from hotshoe.quantize._imatrix import ImportanceMatrix
from hotshoe.quantize._mix import Facts, Mixer, fallback, sort_key
from hotshoe.quantize._roles import Role, may_quantize, role_of
from hotshoe_core.errors import ConversionError, did_you_mean
from hotshoe_core.errors.arguments import described, listed
from hotshoe_core.gguf import GGUFArray, Metadata
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Change", "Chosen", "QuantizeParams", "facts_of", "make_plan"]

Array = np.ndarray[Any, Any]

_NEEDS_IMPORTANCE = frozenset({DType.IQ3_XXS, DType.IQ2_XXS, DType.IQ2_XS, DType.IQ2_S, DType.IQ1_M, DType.IQ1_S})
"""Types so small that the result is garbage without importance."""
_NEVER_WITHOUT = frozenset({DType.IQ2_XXS, DType.IQ2_XS, DType.IQ1_S})
"""Types that ggml refuses to make without importance."""
_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


@dataclass(frozen=True, slots=True)
class QuantizeParams:
    """Options for ``quantize_model`` that change the mix of types.

    Raises ConversionError if a type is unknown, a pattern is invalid, or options contradict each other.
    """

    imatrix: ImportanceMatrix | str | os.PathLike[str] | None = None
    """An importance matrix, or the path of its file."""
    output_type: DType | str | None = None
    """The type of the output matrix."""
    token_embedding_type: DType | str | None = None
    """The type of the token embedding, which may be the same matrix as the output."""
    tensor_types: Sequence[tuple[str, DType | str]] = ()
    """Pairs of a regular expression and a type, such as ``("attn_v", "q8_0")``. The expression may match any part of a
    tensor's name; the first pair that matches is used."""
    pure: bool = False
    """Use no mix: all weights get the same type."""
    leave_output: bool = False
    """Do not change the type of the output matrix."""
    allow_requantize: bool = False
    """Quantize tensors that are quantized already. This loses more precision than quantizing the original."""

    def __post_init__(self) -> None:
        if self.leave_output and self.output_type is not None:
            raise ConversionError("output_type and leave_output contradict each other; expected one of them")
        for name in ("pure", "leave_output", "allow_requantize"):
            if not isinstance(getattr(self, name), bool):
                raise ConversionError(f"{name} is {described(getattr(self, name))}; expected True or False")
        self.chosen()

    def chosen(self) -> Chosen:
        """Parse the types and patterns."""
        patterns = []
        for given in listed("tensor_types", self.tensor_types, "pairs of a pattern and a type", ConversionError):
            if not isinstance(given, (tuple, list)) or len(given) != 2 or not isinstance(given[0], str):
                raise ConversionError(f"tensor_types holds {described(given)}; expected pairs of a pattern and a type")
            try:
                pattern = re.compile(given[0])
            except re.error as error:
                raise ConversionError(
                    f"tensor_types: {given[0]!r} is not a regular expression: {error}",
                    hint=r"for example a part of a name, as in attn_v=q8_0; write \. for a dot",
                ) from None
            patterns.append((pattern, parse_dtype(given[1], f"tensor type {given[0]!r}")))
        output, embedding = self.output_type, self.token_embedding_type
        return Chosen(
            None if output is None else parse_dtype(output, "output type"),
            None if embedding is None else parse_dtype(embedding, "token embedding type"),
            tuple(patterns),
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """The types in QuantizeParams, parsed."""

    output: DType | None
    embedding: DType | None
    patterns: tuple[tuple[re.Pattern[str], DType], ...]

    def matching(self, name: str) -> DType | None:
        """The type of the first pattern that matches ``name``, or None."""
        return next((dtype for pattern, dtype in self.patterns if pattern.search(name)), None)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The old and the new type of one tensor."""

    name: str
    shape: tuple[int, ...]
    old: DType
    new: DType
    importance: Array | None = None
    """The importance of each column, float32 (matrices, columns), if known."""
    lacks_importance: bool = False
    """True if the new type needs importance, but it is not known."""

    @property
    def nbytes_old(self) -> int:
        """Bytes of the tensor before."""
        return self.old.nbytes(self.shape)

    @property
    def nbytes_new(self) -> int:
        """Bytes of the tensor after."""
        return self.new.nbytes(self.shape)


def facts_of(metadata: Metadata, names: Iterable[str]) -> Facts:
    """Read the facts from a file's metadata and the names of its tensors. Raises ModelFileError for invalid values."""
    arch, name = metadata.arch, metadata.architecture
    n_layers = arch.get("block_count", 0)
    n_experts = arch.get("expert_count", 0)
    heads = _first(arch, "attention.head_count", 0)
    kv_heads = _first(arch, "attention.head_count_kv", heads)
    large = n_layers == _LAYERS_OF_70B.get(name) and (name != "llama" or (heads != kv_heads and n_experts != 8))
    return Facts(
        architecture=name,
        n_layers=n_layers,
        n_experts=n_experts,
        grouped=heads // kv_heads if kv_heads > 0 else 0,
        is_70b=large,
        tied="output.weight" not in set(names),
    )


def _first(arch: Metadata, key: str, default: int) -> int:
    """The value for all layers, or the value of the first layer. Raises ModelFileError if it is not an integer."""
    value = arch.get(key)
    if not isinstance(value, (GGUFArray, list)):
        return arch.get(key, default)
    found = value[0] if len(value) else default
    if not isinstance(found, int):
        raise arch.error(key, f"begins with {found!r:.40}; expected integers")
    return found


def make_plan(
    tensors: Mapping[str, tuple[tuple[int, ...], DType]],
    facts: Facts,
    file_type: FileType,
    params: QuantizeParams,
    imatrix: ImportanceMatrix | None,
) -> tuple[Change, ...]:
    """The old and the new type of each tensor, in the order of the new file.

    Raises ConversionError if an option is impossible or has no effect, or if the importance matrix belongs to another
    model.
    """
    chosen = params.chosen()
    _check_effect(tensors, facts, chosen, params)
    ordered = sorted(tensors, key=sort_key)
    n_values = sum(role_of(name).is_values for name in ordered)
    mixer = Mixer(file_type, facts, n_values=n_values, importance=imatrix is not None)
    changes = []
    for name in ordered:
        shape, old = tensors[name]
        new = old
        if may_quantize(name, shape, old, facts.architecture) and not (params.leave_output and name == "output.weight"):
            new = _type(name, shape, facts, file_type, params, chosen, mixer)
        importance = None if imatrix is None or new is old else _importance(name, shape, imatrix)
        lacks = new is not old and importance is None and _needs_importance(name, new, file_type)
        changes.append(Change(name, shape, old, new, importance, lacks))
    if imatrix is not None and not any(name in imatrix.weights for name in tensors):
        raise ConversionError(
            f"{imatrix.path or 'the importance matrix'} has {len(imatrix.weights)} entries, but none for a tensor of "
            f"this model: it has {next(iter(imatrix.weights), 'nothing')}, not {ordered[0] if ordered else 'a tensor'}",
            hint="make one for this model: hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf",
        )
    return tuple(changes)


def _type(
    name: str,
    shape: tuple[int, ...],
    facts: Facts,
    file_type: FileType,
    params: QuantizeParams,
    chosen: Chosen,
    mixer: Mixer,
) -> DType:
    role = role_of(name)
    matching = chosen.matching(name)
    requested = None
    # the per-layer token embedding (Gemma 3n) gets the same type as the token embedding, unless a pattern matches it
    if role is Role.EMBEDDING and chosen.embedding is not None and (name == "token_embd.weight" or matching is None):
        requested = chosen.embedding
    elif role is Role.OUTPUT and chosen.output is not None:
        requested = chosen.output
    if requested is not None:
        if shape[-1] % requested.block_size:
            raise ConversionError(
                f"{name} cannot be {requested.name.lower()}: its rows have {shape[-1]} elements, which is not a "
                f"multiple of that type's block size, {requested.block_size}",
                hint="choose a type that fits, such as q8_0 for a multiple of 32, or f16",
            )
        return requested
    if matching is not None:
        return fallback(name, matching, shape[-1])
    if file_type.is_plain or params.pure:
        output = chosen.output if role is Role.EMBEDDING and facts.tied else None
        return fallback(name, output or file_type.base, shape[-1])
    return fallback(name, mixer.choose(name, shape, role, chosen.output), shape[-1])


def _check_effect(
    tensors: Mapping[str, tuple[tuple[int, ...], DType]], facts: Facts, chosen: Chosen, params: QuantizeParams
) -> None:
    """Raise ConversionError if an option has no effect on this model."""
    weights = [name for name, (shape, dtype) in tensors.items() if may_quantize(name, shape, dtype, facts.architecture)]
    for pattern, _ in chosen.patterns:
        if not any(map(pattern.search, weights)):
            raise ConversionError(
                f"the pattern {pattern.pattern!r} matches no tensor that is quantized",
                hint=did_you_mean(pattern.pattern, {re.sub(r"^blk\.\d+\.|\.weight$", "", name) for name in weights}),
            )
    if chosen.output is not None and facts.tied and (chosen.embedding or "token_embd.weight" not in tensors):
        raise ConversionError(
            "output_type: the model has no output.weight",
            hint="its token embedding is the output matrix: use token_embedding_type alone",
        )
    if params.leave_output and facts.tied:
        raise ConversionError(
            "leave_output: the model has no output.weight; its token embedding is the output matrix",
            hint="choose the type of the token embedding: token_embedding_type",
        )
    if chosen.embedding is not None and "token_embd.weight" not in tensors:
        raise ConversionError("token_embedding_type: the model has no token_embd.weight")


def _importance(name: str, shape: tuple[int, ...], imatrix: ImportanceMatrix) -> Array | None:
    weight = imatrix.weights.get(name)
    if weight is None:
        return None
    mean = weight.mean
    n = prod(shape[:-2])
    if mean.size == n * shape[-1]:
        return mean.reshape(n, shape[-1])
    if role_of(name) is Role.EMBEDDING:  # an entry for the embedding counts inputs of the output, or nothing
        return None
    raise ConversionError(
        f"{imatrix.path or 'the importance matrix'} has {mean.size} values for {name}; expected {n * shape[-1]}: it "
        "belongs to another model",
        hint="make one for this model: hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf",
    )


def _needs_importance(name: str, new: DType, file_type: FileType) -> bool:
    if role_of(name) in (Role.OUTPUT, Role.EMBEDDING):
        return new in _NEVER_WITHOUT
    return new in _NEEDS_IMPORTANCE or (new is DType.Q2_K and file_type.name == "q2_k_s")
