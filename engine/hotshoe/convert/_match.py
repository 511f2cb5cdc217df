"""Match the tensors of a checkpoint with those that a model declares: names, shapes, and how each value is made."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.convert._blocks import Scaled
from hotshoe.convert._layout import TensorLayout
from hotshoe.convert._names import NameTable, other_expert, without_wrappers
from hotshoe.nn._choose_forms import choose_forms
from hotshoe.nn.binder import absent_optional
from hotshoe_core.errors import ConversionError, did_you_mean

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.convert._safetensors import StoredTensor
    from hotshoe.nn import Module
    from hotshoe.nn.module import Parameter
    from hotshoe_core.tensors.dtypes import DType

__all__ = ["Array", "Recipe", "Rules", "from_groups", "interleave", "match_tensors", "minus_exp", "plus"]

Array = np.ndarray[Any, np.dtype[np.float32]]
Shape = tuple[int, ...]

_BLOCK = re.compile(r"(?:[av]\.|enc\.)?blk\.(\d+)\.")
# buffers that old versions of transformers saved; they are not weights
_NOT_WEIGHTS = (
    *(".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias", ".attn.bias", ".attn.masked_bias"),
    *(".position_ids", ".token_type_ids"),
)
# matrices that engines read as f32. A quantized router would choose other experts.
_FULL_PRECISION = (
    *(
        "_norm.weight",
        ".ffn_gate_inp.weight",
        ".ffn_gate_inp_shexp.weight",
        ".ssm_conv1d.weight",
        ".shortconv.conv.weight",
    ),
    *("position_embd.weight", "token_types.weight", ".altup_predict_coef.weight", ".altup_correct_coef.weight"),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a tensor of the file is made from one of the checkpoint."""

    make: Callable[[Array], Array] = lambda value: value
    """Gets the values in the checkpoint, float32, or their bytes if ``by_rows``.

    Its result has the shape in the file, except for axes of length 1.
    """
    stored: Shape | None = None
    """The shape in the checkpoint, if it differs from that in the file by more than axes of length 1."""
    by_rows: bool = False
    """True if ``make`` only selects and reorders rows (all axes but the last), so that it can also get their bytes."""
    full_precision: bool | None = None
    """True if the tensor stays f32, False if it gets the type of the file; None if its name and shape decide."""


def plus(number: float) -> Recipe:
    """Add a number to every value."""
    return Recipe(lambda value: value + np.float32(number))


def interleave(n_heads: int) -> Recipe:
    """Reorder the rows of each head: from RoPE pairs (i, i + head_dim / 2) to (2i, 2i + 1)."""
    # (heads, half, pair, …) to (heads, pair, half, …)
    return Recipe(lambda v: v.reshape(n_heads, 2, -1, *v.shape[1:]).swapaxes(1, 2).reshape(v.shape), by_rows=True)


def from_groups(n_heads: int, n_kv_heads: int) -> Recipe:
    """Reorder the rows of queries, keys and values in one tensor, from groups to all queries, all keys, all values.

    Each of the ``n_kv_heads`` groups holds the heads of its queries, then one of keys and one of values.
    """
    queries = n_heads // n_kv_heads

    def make(value: Array) -> Array:
        groups = value.reshape(n_kv_heads, queries + 2, -1, *value.shape[1:])
        parts = groups[:, :queries], groups[:, queries], groups[:, queries + 1]
        return np.concatenate([part.reshape(-1, *value.shape[1:]) for part in parts])

    return Recipe(make, by_rows=True)


def minus_exp(value: Array) -> Array:
    """-exp of each value. Raises ConversionError if one is too large for float32."""
    logarithm = value.astype(np.float64)
    if logarithm.max(initial=0.0) > 88:
        raise ConversionError(f"A_log reaches {logarithm.max():.4g}; its exponential is too large for float32")
    return -np.exp(logarithm).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a converter says about tensors, beyond the names and shapes that the model declares.

    The keys are names in the file without the layer, such as "attn_q.weight".
    """

    required: Collection[str] = ()
    """Optional tensors that this checkpoint has, as names or patterns ("attn_*.bias"). The file gets no others."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """How tensors are made that differ from the checkpoint's."""
    names: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Names that are not in NAMES, or that mean another tensor in this family."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Tensors that are not in the checkpoint, and their values."""
    rows: Mapping[str, int | Shape] = field(default_factory=dict)
    """The first axis, or the first axes, of tensors for which the model allows any size."""
    ignored: tuple[str, ...] = ()
    """Starts of names in the checkpoint of tensors that the model does not use."""


def match_tensors(checkpoint: Checkpoint, model: Module, rules: Rules, block: str = "blk.") -> tuple[TensorLayout, ...]:
    """Find the source of each tensor that the model declares. The order is that of the checkpoint's names.

    block: what the names of layers begin with in the file, before their number.
    Raises ConversionError if tensors are missing, unknown, duplicate, or of another shape.
    """
    matcher = _Matcher(checkpoint, model, rules, block)
    matcher.find()
    return (*(_constant(name, values) for name, values in rules.constants.items()), *matcher.layouts())


class _Matcher:
    def __init__(self, checkpoint: Checkpoint, model: Module, rules: Rules, block: str) -> None:
        self.checkpoint, self.rules = checkpoint, rules
        self.names = NameTable(rules.names, checkpoint.tensors, block)
        unused = [name for name in model.unused_tensors() if "*" not in name]
        self.declared = {*unused, *(name for p in model.parameters() for name in p.names)}
        shapes = {target: t.shape for name, t in checkpoint.tensors.items() for target in self.names.in_file(name)[0]}
        self.cut: dict[str, list[str]] = {}
        """The tensors of the file, by the name that they would have in one tensor, as the checkpoint has them."""
        self._choose_forms(model, shapes)
        absent = absent_optional(model, {p for p in model.parameters() if not shapes.keys().isdisjoint(p.names)})
        self.parameters = [
            p
            for p in model.parameters()
            if rules.constants.keys().isdisjoint(p.names)
            and (not (p.optional or p in absent) or self._is_required(p.names[0]))
        ]
        self.wanted: dict[str, Parameter | None] = dict.fromkeys(unused)
        for p in reversed(self.parameters):  # the first that declares a name has it
            self.wanted |= dict.fromkeys(p.names, p)
        self.sources: dict[str, dict[int, str]] = {}
        """Names in the checkpoint, by name in the file and number of the expert, or -1."""
        self.together: dict[str, list[str]] = {}
        """The tensors of the file that have the same source, by name of each."""

    def _choose_forms(self, model: Module, shapes: Mapping[str, Shape]) -> None:
        """Choose the forms that the checkpoint has. Tensors that rules name are cut from the one that holds them."""
        named = {*self.rules.recipes, *self.rules.required}
        before = [
            (module, attribute, {other: getattr(module, other) for other in others})
            for module in _all_modules(model)
            for attribute, others in module.forms.items()
        ]
        choose_forms(model, shapes)
        for module, attribute, parts in before:
            whole = getattr(module, attribute)
            names = [
                {p.attribute: p.names[0] for p in part.parameters()} for part in parts.values() if part is not None
            ]
            if whole is None or not any(_in_layer(name) in named for each in names for name in each.values()):
                continue
            self.cut |= {p.names[0]: [each[p.attribute] for each in names] for p in whole.parameters()}
            for other, part in {attribute: None, **parts}.items():
                setattr(module, other, part)

    def find(self) -> None:
        """Find the sources. Raises ConversionError if tensors are missing, unknown or duplicate."""
        self._check_rules()
        names = self.names
        # a prefix that consists of wrappers, such as "encoder.", has nothing without them
        ignored = tuple(filter(None, map(without_wrappers, self.rules.ignored)))
        extra = []
        for source in sorted(self.checkpoint.tensors):
            is_ignored = source.startswith(self.rules.ignored) or without_wrappers(source).startswith(ignored)
            if is_ignored or source.endswith(_NOT_WEIGHTS):
                continue
            candidates, expert = names.in_file(source)
            cut = [name for candidate in candidates for name in self.cut.get(candidate, [candidate])]
            targets = [name for name in cut if name in self.wanted]
            for target in targets:
                sources = self.sources.setdefault(target, {})
                if expert in sources or (sources and (expert < 0) != (-1 in sources)):
                    other = next(iter(sources.values()))
                    raise ConversionError(f"{self.checkpoint.model} has {target} twice: as {other} and as {source}")
                sources[expert] = source
                self.together[target] = targets
            if not targets:
                extra.append(source)
        missing = set()
        for p in self.parameters:
            accepted = [_in_layer(name) for name in p.names]
            accepted = accepted[:1] if self._is_required(p.names[0]) else accepted
            if not any(name in self.sources for name in p.names[: len(accepted)]):
                block = _BLOCK.match(p.names[0])
                missing.add(names.in_checkpoint(accepted, block[1] if block else ""))
        _raise_unless_complete(self.checkpoint, sorted(missing), extra)
        if unused := names.unused():
            raise ConversionError(
                f"Rules(names=…): {self.checkpoint.model} has no tensor {unused[0]!r}",
                hint="check the converter's names",
            )

    def _is_required(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(_in_layer(name), pattern) for pattern in self.rules.required)

    def _check_rules(self) -> None:
        """Raise ConversionError for a name of the file that the model does not declare."""
        declared = {_in_layer(name) for name in self.declared}
        whole = declared | self.declared  # a second list of layers has names with their numbers
        stems = whole | {name.rpartition(".")[0] for name in whole}
        rows = [(row,) if isinstance(row, str) else row for row in self.rules.names.values()]
        given = [("names", name, stems) for row in rows for name in row]
        for argument, name, known in [*given, *(("recipes", name, declared) for name in self.rules.recipes)]:
            if name not in known:
                raise ConversionError(
                    f"Rules({argument}=…): the model has no tensor {name!r}", hint=did_you_mean(name, known)
                )

    def layouts(self) -> list[TensorLayout]:
        """How each tensor is made. Raises ConversionError if tensors have another shape, or experts are missing."""
        wrong: list[str] = []
        layouts = [one for name, sources in self.sources.items() for one in self._layout(name, sources, wrong)]
        if wrong:
            raise ConversionError(
                f"{self.checkpoint.model} has tensors of another shape than config.json describes: "
                + _some(wrong, "; "),
                hint="check that the weights belong to this config.json",
            )
        return layouts

    def _layout(self, name: str, sources: Mapping[int, str], wrong: list[str]) -> list[TensorLayout]:
        """How one tensor is made, and its scales. Adds a description of each source of another shape to ``wrong``."""
        tensors, by_expert = self.checkpoint.tensors, -1 not in sources
        first = next(iter(sources.values()))
        stored = (len(sources), *tensors[first].shape) if by_expert else tensors[first].shape
        shape = self._shape(name, stored)
        if by_expert:
            numbers = range(min(shape[0], len(tensors)))  # config.json may name a huge number
            missing = [other_expert(first, i) for i in numbers if i not in sources]
            _raise_unless_complete(self.checkpoint, missing, [s for i, s in sources.items() if i >= shape[0]])
        recipe = self._recipe(name, shape, stored)
        expected = (recipe.stored or shape)[by_expert:]
        for source in sources.values():
            actual = tensors[source].shape
            if (fitting := _with_ones_of(actual, expected)) != actual:
                wrong.append(f"{source} is {actual}, expected {fitting}")

        small = _is_small(name, shape) if recipe.full_precision is None else recipe.full_precision
        scaled = [tensors[source] for _, source in sorted(sources.items())]
        packed = None if small or not recipe.by_rows else self._packed(name, scaled)
        written = shape if packed is None else (*shape[:-1], packed.nbytes(shape[-1:]))

        def make() -> Array:
            read = self.checkpoint.read if packed is None else self.checkpoint.read_blocks
            value = read(first)
            if by_expert:
                value = np.empty((len(sources), *value.shape), value.dtype)
                for i, source in sources.items():
                    value[i] = read(source)
            made = recipe.make(value)
            if (fitting := _with_ones_of(made.shape, written)) != made.shape:
                raise ConversionError(
                    f"Rules(recipes=…): the recipe of {name} makes {made.shape}, expected {fitting}",
                    hint="check the converter's recipe",
                )
            return np.ascontiguousarray(made.reshape(written))

        layout = TensorLayout(name, first, shape, small, make, packed)
        return [layout] if packed is None else [layout, *_factors(name, scaled, shape)]

    def _packed(self, name: str, tensors: Sequence[StoredTensor]) -> DType | None:
        """The type of blocks that a tensor keeps, or None if the file gets its values."""
        if not isinstance(tensors[0], Scaled) or f"{name.removesuffix('weight')}scale" not in self.declared:
            return None
        found = {tensor.packed if isinstance(tensor, Scaled) else None for tensor in tensors}
        return found.pop() if len(found) == 1 else None

    def _shape(self, name: str, stored: Shape) -> Shape:
        """The shape in the file: what the model declares; for open axes what the converter says, or the source has."""
        p, rows = self.wanted[name], self.rules.rows.get(_in_layer(name))
        if p is None or p.shape is None:
            return stored
        known = () if rows is None else (rows,) if isinstance(rows, int) else rows
        open_axes = dict(enumerate(stored)) | dict(enumerate(known))
        return tuple(open_axes.get(i, 1) if n is None else n for i, n in enumerate(p.shape))

    def _recipe(self, name: str, shape: Shape, stored: Shape) -> Recipe:
        recipe = self.rules.recipes.get(_in_layer(name))
        if recipe is None:
            return self._part(name, shape, stored)
        if not any(name in parts for parts in self.cut.values()):
            return recipe
        part, make = self._part(name, shape, stored), recipe.make
        by_rows = part.by_rows and recipe.by_rows
        return replace(recipe, make=lambda value: make(part.make(value)), stored=part.stored, by_rows=by_rows)

    def _part(self, name: str, shape: Shape, stored: Shape) -> Recipe:
        """Take a tensor from one that may hold several: their rows follow each other on the last axis but one."""
        together = self.together[name]
        if len(together) == 1:
            return Recipe(by_rows=True)
        axis, number = max(len(shape) - 2, 0), together.index(name)
        ends = np.cumsum([self._shape(other, stored)[axis] for other in together]).tolist()
        return Recipe(
            lambda value: np.split(value, ends[:-1], axis)[number],
            stored=(*shape[:axis], ends[-1], *shape[axis + 1 :]),
            by_rows=axis < len(shape) - 1,
        )


def _all_modules(module: Module) -> Iterator[Module]:
    yield module
    for _, child in module.children():
        yield from _all_modules(child)


def _constant(name: str, values: Array) -> TensorLayout:
    return TensorLayout(name, name, values.shape, full_precision=True, make=lambda: values)


def _factors(name: str, tensors: Sequence[StoredTensor], shape: Shape) -> list[TensorLayout]:
    """The factors of a matrix in blocks, one number or one for each expert, and those of its input."""
    layouts, stem = [], name.removesuffix("weight")
    for kind in ("scale", "input_scale"):
        values = np.concatenate([t.factors(kind == "input_scale") for t in tensors if isinstance(t, Scaled)])
        if (values != 1).any():
            layouts.append(_constant(f"{stem}{kind}", np.broadcast_to(values, shape[0] if len(shape) > 2 else 1)))
    return layouts


def _raise_unless_complete(checkpoint: Checkpoint, missing: Sequence[str], extra: Sequence[str]) -> None:
    parts = [f"{what}: {_some(found)}" for what, found in (("missing", missing), ("unknown", extra)) if found]
    if parts:
        raise ConversionError(
            f"the tensors of {checkpoint.model} are not those its config.json describes: {'; '.join(parts)}",
            hint="check the names in the model's class, the converter's names, and num_hidden_layers in config.json; "
            "an optional tensor, such as a bias, must be in the converter's Rules(required=…)",
        )


def _some(names: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return separator.join(names[:4]) + more


def _in_layer(name: str) -> str:
    """A name in the file without its layer, "blk.N."."""
    return _BLOCK.sub("", name)


def _with_ones_of(actual: Shape, expected: Shape) -> Shape:
    """The expected shape with axes of length 1 where the actual one has them."""
    sizes = [n for n in expected if n != 1]
    if len(sizes) != sum(n != 1 for n in actual):
        return expected
    return tuple(1 if n == 1 else sizes.pop(0) for n in actual)


def _is_small(name: str, shape: Shape) -> bool:
    # vectors, norms, parameters of other ops than matrix products, and what _FULL_PRECISION names
    return len(shape) < 2 or not name.endswith(".weight") or name.endswith(_FULL_PRECISION)
