"""Config: the sizes of a model. Each field names the key of the file's metadata that it is read from."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

from hotshoe.nn.bounds import check_range
from hotshoe.nn.pattern import LayerPattern, pattern_from
from hotshoe.nn.rope import rope_from
from hotshoe_core.errors import ModelDefinitionError
from hotshoe_core.gguf import GGUFArray, Metadata
from hotshoe_core.ops import RoPE

if typing.TYPE_CHECKING:
    from typing import Self

__all__ = [
    "Config",
    "FileConfig",
    "LayerNormConfig",
    "TextConfig",
    "TransformerConfig",
    "derived",
    "key",
    "pattern_key",
    "rope_key",
]

_REQUIRED: Any = object()
_GET = "hotshoe.get"
_INTEGERS = tuple("BbHhIiQq")  # element types of an array
_UNUSED = 5  # a token type


def key(
    name: str,
    *,
    default: Any = _REQUIRED,
    minimum: float | None = None,
    maximum: float | Callable[[Any], float] | None = None,
    per_layer: bool = False,
) -> Any:
    """Declare a field that is read from the key ``<architecture>.<name>``. Its annotation is int, float, bool or str.

        n_experts: int = key("expert_count", minimum=1)

    default: the value if the file lacks the key. A function is called with an object whose attributes are the fields
    declared before this one. Without a default, a missing key is a ModelFileError.
    minimum, maximum: the bounds, inclusive. The default bounds of an int are 0 and 2²⁴. A maximum may be a function, as
    a default may.
    per_layer: the file holds one value for all layers, or an array with one for each. The field is a tuple of
    ``n_layers`` values.
    """

    def get(metadata: Metadata, found: SimpleNamespace, type: Any) -> Any:
        values = metadata.arch
        if name not in values and default is not _REQUIRED:
            value = default(found) if callable(default) else default
            return (value,) * found.n_layers if per_layer and not isinstance(value, tuple) else value
        if per_layer:
            numbers = _per_layer(values, name, found, typing.get_args(type)[0])
        else:
            options = [a for a in typing.get_args(type) if a is not None.__class__]
            numbers = (values.require(name, options[0] if options else type),)
        for value in numbers:
            check_range(metadata, name, value, minimum, maximum(found) if callable(maximum) else maximum)
        return numbers if per_layer else numbers[0]

    return derived(get)


def derived(get: Callable[[Metadata, SimpleNamespace, Any], Any]) -> Any:
    """Declare a field with the value ``get(metadata, fields, annotation)``.

    ``fields`` is an object whose attributes are the fields declared before this one.
    """
    return field(metadata={_GET: get})


def rope_key(*, interleaved: bool = False, base: float = 10000.0, **options: Any) -> Any:
    """Declare a field for the file's RoPE over ``head_dim`` elements.

    interleaved: how the architecture pairs elements: (2i, 2i + 1) if true, else (i, i + dim / 2).
    base: the frequency base, if the file does not give one.
    options: ``sections``, ``magnitude`` and ``truncate``, as ``rope_from`` takes them.
    """
    return derived(
        lambda metadata, found, _: rope_from(metadata, found.head_dim, interleaved=interleaved, base=base, **options)
    )


def pattern_key(
    period: int,
    *,
    dense_first: bool = False,
    base: float | None = None,
    unscaled: bool = False,
    rope_on_full: bool = True,
) -> Any:
    """Declare the field ``pattern`` of a TextConfig: which layers have a sliding window, and the RoPE of each layer.

        pattern: LayerPattern = pattern_key(4, unscaled=True)

    Keys: ``attention.sliding_window_pattern`` (a period, or an array with one value for each layer) and, for the RoPE
    of layers with a window, ``rope.freq_base_swa`` and ``rope.dimension_count_swa``. All layers are full if ``window``
    is 0.

    period: one layer in ``period`` is full, if the file does not say which are; 0: none.
    dense_first: the first layer of a period is full, instead of the last.
    base: the frequency base of layers with a window, if the file does not give one; None for that of full layers.
    unscaled: layers with a window do not scale their RoPE.
    rope_on_full: False if full layers have no RoPE, although others have a window.
    """
    return derived(
        lambda metadata, found, _: pattern_from(
            metadata, found.n_layers, found.window, found.rope, period=period, dense_first=dense_first, base=base,
            unscaled=unscaled, rope_on_full=rope_on_full,
        )
    )  # fmt: skip


def _n_layers(metadata: Metadata, found: SimpleNamespace, _: Any) -> int:
    n = check_range(metadata, "block_count", metadata.arch.require("block_count", int), 1, 10_000)
    if found.n_nextn >= n:
        raise metadata.arch.error(
            "nextn_predict_layers",
            f"{found.n_nextn} of the file's {n} layers are drafting layers (NextN), so none is left for the model",
            "this file helps to draft tokens for a model in another file: load that one",
        )
    return n - int(found.n_nextn)


def _per_layer(values: Metadata, name: str, found: SimpleNamespace, type: Any) -> tuple[Any, ...]:
    """One value for each layer. Arrays count drafting layers too, or not: files differ."""
    array = values[name]
    n_all = found.n_layers + found.n_nextn
    n = n_all if isinstance(array, (GGUFArray, list)) and len(array) == n_all else found.n_layers
    return tuple(values.per_layer(name, n, type)[: found.n_layers])


def _n_vocab(metadata: Metadata, _: SimpleNamespace, __: Any) -> int:
    tokens, types = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    n = len(tokens) if isinstance(tokens, GGUFArray) else 0  # the tokenizer reports what is wrong
    if isinstance(types, GGUFArray) and len(types) == n and types.type.code in _INTEGERS:
        # llama.cpp's converter pads Gemma's vocabulary with unused tokens, but omits their rows in the embedding
        used = (types.numpy() != _UNUSED).nonzero()[0]
        return int(used[-1]) + 1 if len(used) else 0
    return n


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """Base class of what is read from a file's metadata. Fields are declared with ``key`` or ``derived``."""

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Read the config from a file's metadata.

        Raises ModelFileError, which names the key, if a key is missing or its value is invalid; ModelDefinitionError
        if a field is not declared with ``key``, ``derived`` or ``rope_key``.
        """
        found = SimpleNamespace()
        try:
            types = typing.get_type_hints(cls)
        except NameError as error:
            raise ModelDefinitionError(
                f"{cls.__module__}.{cls.__qualname__}: an annotation cannot be read: {error}",
                hint="the annotations of fields must be defined in the module, not only under TYPE_CHECKING",
            ) from error
        for declared in fields(cls):
            name = declared.name
            if _GET not in declared.metadata:
                raise ModelDefinitionError(
                    f"{cls.__module__}.{cls.__qualname__}.{name}: the field does not say where its value comes from",
                    hint=f'write `{name}: {declared.type} = key("the.key")`, or make it a property of other fields',
                )
            setattr(found, name, declared.metadata[_GET](metadata, found, types[name]))
        return cls(**vars(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(FileConfig):
    """Base class of model configs: the sizes that every model needs.

        @dataclass(frozen=True, slots=True, kw_only=True)
        class Config(TextConfig):
            softcap: float = key("final_logit_softcapping", default=0.0)

    Declare fields with ``key``, ``derived``, ``rope_key`` or ``pattern_key``. A subclass may declare an inherited field
    again, if the architecture has another key or default. Make properties of values that follow from other fields.
    """

    n_nextn: int = key("nextn_predict_layers", default=0)
    """Layers at the end of the file that only draft tokens (NextN, multi-token prediction)."""
    n_drafting: int = derived(lambda *_: 0)
    """How many of them are loaded. The loader sets it: see ``nn.NextN``."""
    n_layers: int = derived(_n_layers)
    """Layers of the model: ``block_count`` without drafting layers."""
    dim: int = key("embedding_length", minimum=1)
    """Elements of a hidden state."""
    n_ctx: int = key("context_length", minimum=1, maximum=(1 << 31) - 1)  # positions are int32
    """The longest context that the model was trained for, in tokens."""
    mlp_dim: tuple[int, ...] = key("feed_forward_length", per_layer=True, default=0)
    """Hidden elements of the MLP of each layer; 0 if the file does not say."""
    n_vocab: int = derived(_n_vocab)
    """Tokens of the file's vocabulary, without unused ones at its end: the fewest rows that the embedding may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig(Config):
    """The config of models with attention: adds heads, norms and the sliding window."""

    n_heads: tuple[int, ...] = key("attention.head_count", per_layer=True)
    """Query heads of each layer."""
    n_kv_heads: tuple[int, ...] = key("attention.head_count_kv", per_layer=True, default=lambda c: c.n_heads)
    """Key and value heads of each layer; 0 if the layer has no attention."""
    head_dim: int = key("attention.key_length", minimum=1, default=lambda c: c.dim // max(1, *c.n_heads))
    """Elements of one head's query and key."""
    v_dim: int = key("attention.value_length", minimum=1, default=lambda c: c.head_dim)
    """Elements of one head's value."""
    norm_eps: float = key("attention.layer_norm_rms_epsilon", minimum=0)
    window: int = key("attention.sliding_window", default=0)
    """How many positions a token sees, itself included; 0 for all."""

    @property
    def head_dims(self) -> tuple[int, ...]:
        """``head_dim`` of each layer."""
        return (self.head_dim,) * self.n_layers

    @property
    def v_dims(self) -> tuple[int, ...]:
        """``v_dim`` of each layer."""
        return (self.v_dim,) * self.n_layers

    def window_for(self, layer: int) -> int:
        """The window of a layer; 0 for all positions."""
        return self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig(TransformerConfig):
    """The config of text models: attention with rotary position embeddings (RoPE)."""

    rope: RoPE = rope_key()  # noqa: RUF009
    pattern: LayerPattern | None = derived(lambda *_: None)  # noqa: RUF009
    """The window and the RoPE of each layer, if layers differ: see ``pattern_key``."""

    def window_for(self, layer: int) -> int:
        """The window of a layer; 0 for all positions."""
        return self.window if self.pattern is None else self.pattern.window_for(layer)

    def rope_for(self, layer: int) -> RoPE | None:
        """The RoPE of a layer; None if it has none."""
        return self.rope if self.pattern is None else self.pattern.rope_for(layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNormConfig(TextConfig):
    """A TextConfig of models whose norms are LayerNorms: their blocks and decoders have these by default."""

    norm_eps: float = key("attention.layer_norm_epsilon", minimum=0)
