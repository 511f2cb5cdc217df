"""What quantizing will do to each tensor, decided before anything is read or written."""

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
from hotshoe_core.errors.arguments import described
from hotshoe_core.gguf import GGUFArray, Metadata
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Change", "Chosen", "QuantizeParams", "facts_of", "make_plan"]

Array = np.ndarray[Any, Any]

_NEEDS_IMPORTANCE = frozenset({DType.IQ3_XXS, DType.IQ2_XXS, DType.IQ2_XS, DType.IQ2_S, DType.IQ1_M, DType.IQ1_S})
"""Types so small that without importance the result is garbage; of some of them ggml makes none at all."""
_NEVER_WITHOUT = frozenset({DType.IQ2_XXS, DType.IQ2_XS, DType.IQ1_S})
_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


@dataclass(frozen=True, slots=True)
class QuantizeParams:
    """How a file's mix is departed from, and what it is told of the model.

    imatrix: an importance matrix, or the path of one. output_type: of the matrix that gives the logits.
    token_embedding_type: of the token embedding, which may be the same matrix. tensor_types: pairs of a regular
    expression and a type, ``("attn_v", "q8_0")``; of those that match within a tensor's name the first holds. pure: no
    mix, all weights get one type. leave_output: the matrix that gives the logits stays as it is. allow_requantize:
    quantize again what is quantized already, which loses more than quantizing the original.

    Raises ConversionError for a type that is none, a pattern that cannot be used, or options that contradict.
    """

    imatrix: ImportanceMatrix | str | os.PathLike[str] | None = None
    output_type: DType | str | None = None
    token_embedding_type: DType | str | None = None
    tensor_types: Sequence[tuple[str, DType | str]] = ()
    pure: bool = False
    leave_output: bool = False
    allow_requantize: bool = False

    def __post_init__(self) -> None:
        if self.leave_output and self.output_type is not None:
            raise ConversionError(
                "output_type= asks for another type, and leave_output= for none; expected one of them"
            )
        for name in ("pure", "leave_output", "allow_requantize"):
            if not isinstance(getattr(self, name), bool):
                raise ConversionError(f"{name} is {described(getattr(self, name))}; expected True or False")
        self.chosen()

    def chosen(self) -> Chosen:
        """The types, as types."""
        patterns = []
        for given in self.tensor_types:
            if not isinstance(given, (tuple, list)) or len(given) != 2 or not isinstance(given[0], str):
                raise ConversionError(f"tensor_types holds {given!r:.100}; expected pairs of a pattern and a type")
            try:
                pattern = re.compile(given[0])
            except re.error as error:
                raise ConversionError(
                    f"tensor_types: {given[0]!r} is no regular expression: {error}",
                    hint=r"a part of a name is one, as in attn_v=q8_0; a dot is written \.",
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
    """Types that were asked for, checked."""

    output: DType | None
    embedding: DType | None
    patterns: tuple[tuple[re.Pattern[str], DType], ...]

    def named(self, name: str) -> DType | None:
        """What the first pattern that matches says."""
        return next((dtype for pattern, dtype in self.patterns if pattern.search(name)), None)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What becomes of one tensor. importance: of each column, float32 (matrices, columns), where there is some."""

    name: str
    shape: tuple[int, ...]
    old: DType
    new: DType
    importance: Array | None = None
    lacks_importance: bool = False  # it needs some, and there is none

    @property
    def nbytes_old(self) -> int:
        return self.old.nbytes(self.shape)

    @property
    def nbytes_new(self) -> int:
        return self.new.nbytes(self.shape)


def facts_of(metadata: Metadata, names: Iterable[str]) -> Facts:
    """What a mix goes by, from the metadata and the names of the tensors. Raises ModelFileError."""
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
    """One value for all layers, or that of the first."""
    value = arch.get(key)
    if not isinstance(value, (GGUFArray, list)):
        return arch.get(key, default)
    found = value[0] if len(value) else default
    if not isinstance(found, int):
        raise arch.error(key, f"begins with {found!r:.40}; expected whole numbers")
    return found


def make_plan(
    tensors: Mapping[str, tuple[tuple[int, ...], DType]],
    facts: Facts,
    file_type: FileType,
    params: QuantizeParams,
    imatrix: ImportanceMatrix | None,
) -> tuple[Change, ...]:
    """What becomes of each tensor, in the order of the file to be written.

    Raises ConversionError for options that cannot be met or have no effect, and for an importance matrix that is of
    another model.
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
            f"{imatrix.path or 'the importance matrix'} has {len(imatrix.weights)} entries, none for a tensor of this "
            f"model: it has {next(iter(imatrix.weights), 'nothing')}, and not {ordered[0] if ordered else 'a tensor'}",
            hint="make one of this model: hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf",
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
    named = chosen.named(name)
    asked = None
    # the large table of embeddings for each layer (Gemma 3n) goes with the other one, unless it is named
    if role is Role.EMBEDDING and chosen.embedding is not None and (name == "token_embd.weight" or named is None):
        asked = chosen.embedding
    elif role is Role.OUTPUT and chosen.output is not None:
        asked = chosen.output
    if asked is not None:
        if shape[-1] % asked.block_size:
            raise ConversionError(
                f"{name} cannot be {asked.name.lower()}: its rows have {shape[-1]} elements, and a block of that type "
                f"has {asked.block_size}",
                hint="choose one that fits, such as q8_0 where rows are a multiple of 32, or f16",
            )
        return asked
    if named is not None:
        return fallback(name, named, shape[-1])
    if file_type.is_plain or params.pure:
        output = chosen.output if role is Role.EMBEDDING and facts.tied else None
        return fallback(name, output or file_type.base, shape[-1])
    return fallback(name, mixer.choose(name, shape, role, chosen.output), shape[-1])


def _check_effect(
    tensors: Mapping[str, tuple[tuple[int, ...], DType]], facts: Facts, chosen: Chosen, params: QuantizeParams
) -> None:
    """No option without an effect."""
    weights = [name for name, (shape, dtype) in tensors.items() if may_quantize(name, shape, dtype, facts.architecture)]
    for pattern, _ in chosen.patterns:
        if not any(map(pattern.search, weights)):
            raise ConversionError(
                f"no name of a tensor that is quantized matches the pattern {pattern.pattern!r}",
                hint=did_you_mean(pattern.pattern, {re.sub(r"^blk\.\d+\.|\.weight$", "", name) for name in weights}),
            )
    if chosen.output is not None and facts.tied and (chosen.embedding or "token_embd.weight" not in tensors):
        raise ConversionError(
            "output_type: the model has no output.weight",
            hint="its token embedding gives the logits: give token_embedding_type= alone (--token-embedding-type)",
        )
    if params.leave_output and facts.tied:
        raise ConversionError(
            "leave_output: the model has no output.weight; its token embedding gives the logits",
            hint="choose that one's type: token_embedding_type= (--token-embedding-type)",
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
    if role_of(name) is Role.EMBEDDING:  # what counted there was the output's columns, or nothing
        return None
    raise ConversionError(
        f"{imatrix.path or 'the importance matrix'} has {mean.size} values for {name}; expected {n * shape[-1]}: it is "
        "of another model",
        hint="make one of this model: hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf",
    )


def _needs_importance(name: str, new: DType, file_type: FileType) -> bool:
    if role_of(name) in (Role.OUTPUT, Role.EMBEDDING):
        return new in _NEVER_WITHOUT
    return new in _NEEDS_IMPORTANCE or (new is DType.Q2_K and file_type.name == "q2_k_s")
