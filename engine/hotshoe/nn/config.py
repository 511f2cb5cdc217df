"""Config: a model's sizes, each field read from the key of the file's metadata that it names."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

from hotshoe.nn.rope import rope_from
from hotshoe_core.errors import ModelDefinitionError
from hotshoe_core.gguf import GGUFArray, Metadata
from hotshoe_core.ops import RoPE

if typing.TYPE_CHECKING:
    from typing import Self

__all__ = ["Config", "TextConfig", "TransformerConfig", "derived", "key", "rope_key"]

_REQUIRED: Any = object()
_GET = "hotshoe.get"
_INTEGERS = tuple("BbHhIiQq")  # element types of an array
_UNUSED = 5  # a token's type
_MOST = 1 << 24  # of a size, where nothing else is said: a file may not make anybody allocate what it claims


def key(
    name: str,
    *,
    default: Any = _REQUIRED,
    least: float | None = None,
    most: float | None = None,
    per_layer: bool = False,
) -> Any:
    """A field read from ``<architecture>.<name>``; its type is the annotation's: int, float, bool or str.

    default: for files without the key; a function is called with the fields before this one, as attributes.
    least, most: its bounds, those of an int 0 and 2²⁴ where none is given. per_layer: one value for all layers or an
    array of one for each; the field is a tuple of ``n_layers``.
    """

    def get(metadata: Metadata, found: SimpleNamespace, type: Any) -> Any:
        values = metadata.arch
        if name not in values and default is not _REQUIRED:
            value = default(found) if callable(default) else default
            return (value,) * found.n_layers if per_layer and not isinstance(value, tuple) else value
        if per_layer:
            each = tuple(values.per_layer(name, found.n_layers, typing.get_args(type)[0]))
        else:
            options = [a for a in typing.get_args(type) if a is not None.__class__]
            each = (values.require(name, options[0] if options else type),)
        for value in each:
            _check(metadata, name, value, least, most)
        return each if per_layer else each[0]

    return derived(get)


def derived(get: Callable[[Metadata, SimpleNamespace, Any], Any]) -> Any:
    """A field that ``get(metadata, fields before this one, annotated type)`` works out."""
    return field(metadata={_GET: get})


def rope_key(*, interleaved: bool = False, base: float = 10000.0) -> Any:
    """A field for the file's RoPE over ``head_dim``. interleaved, base: what the architecture takes for granted."""
    return derived(lambda metadata, found, _: rope_from(metadata, found.head_dim, interleaved=interleaved, base=base))


def _n_vocab(metadata: Metadata, _: SimpleNamespace, __: Any) -> int:
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    n = len(tokens) if isinstance(tokens, GGUFArray) else 0  # the tokenizer says what is wrong with it
    if isinstance(types, GGUFArray) and len(types) == n and types.type.code in _INTEGERS:
        # llama.cpp's converter pads Gemma's vocabulary with unused tokens, and leaves their rows out
        used = (types.numpy() != _UNUSED).nonzero()[0]
        return int(used[-1]) + 1 if len(used) else 0
    return n


def _check(metadata: Metadata, name: str, value: Any, least: float | None, most: float | None) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if isinstance(value, int):
        least, most = (0 if least is None else least), (_MOST if most is None else most)
    if not (least is None or value >= least) or not (most is None or value <= most) or value != value:
        low, high = "any" if least is None else least, "any" if most is None else most
        raise metadata.arch.error(
            name,
            f"is {value}; expected {low} to {high}",
            "the file is damaged, or was not made by a converter that knows the architecture",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Base of a model's sizes. A field is declared by ``key``, ``derived`` or ``rope_key``.

    A subclass adds fields of its own, and may declare inherited ones anew. n_vocab: tokens of the file's vocabulary up
    to the last that is in use, and so the fewest rows of an embedding of them.
    """

    n_layers: int = key("block_count", least=1, most=10_000)
    dim: int = key("embedding_length", least=1)
    n_ctx: int = key("context_length", least=1, most=(1 << 31) - 1)  # positions are int32
    n_vocab: int = derived(_n_vocab)

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """The config of a file. Raises ModelFileError naming the key that is missing or makes no sense."""
        found = SimpleNamespace()
        try:
            types = typing.get_type_hints(cls)
        except NameError as error:
            raise ModelDefinitionError(
                f"{cls.__module__}.{cls.__qualname__}: an annotation cannot be read: {error}",
                hint="what a field is annotated with must be defined in the module, not only under TYPE_CHECKING",
            ) from error
        for each in fields(cls):
            if _GET not in each.metadata:
                raise ModelDefinitionError(
                    f"{cls.__module__}.{cls.__qualname__}.{each.name}: nothing says where its value comes from",
                    hint=f'write `{each.name}: {each.type} = key("the.key")`, or make it a property of other fields',
                )
            setattr(found, each.name, each.metadata[_GET](metadata, found, types[each.name]))
        return cls(**vars(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig(Config):
    """What models with attention share. n_heads, n_kv_heads: of each layer. window: positions a token looks back."""

    n_heads: tuple[int, ...] = key("attention.head_count", per_layer=True)
    n_kv_heads: tuple[int, ...] = key("attention.head_count_kv", per_layer=True, default=lambda c: c.n_heads)
    head_dim: int = key("attention.key_length", least=1, default=lambda c: c.dim // max(1, *c.n_heads))
    norm_eps: float = key("attention.layer_norm_rms_epsilon", least=0)
    window: int = key("attention.sliding_window", default=0)  # 0: all


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig(TransformerConfig):
    """What text models share: attention, and keys and queries turned by their positions."""

    rope: RoPE = rope_key()  # noqa: RUF009
