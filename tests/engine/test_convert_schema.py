"""The model is the schema of a conversion: it declares every shape, and every tensor that does not fit is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hotshoe import families
from hotshoe.convert._checkpoint import Checkpoint, open_checkpoint
from hotshoe.convert._layout import FileLayout, TensorLayout
from hotshoe.convert._match import Array, Recipe, Rules, match_tensors, plus
from hotshoe.convert._names import NameTable, without_wrappers
from hotshoe.convert._schema import make_layout
from hotshoe.convert._sizes import read_sizes
from hotshoe.nn import Module
from hotshoe_core.errors import ConversionError, ModelError, WeightsError
from hotshoe_core.gguf import GGUFFile
from tests.support.recorded import MODELS, make_recorded
from tests.support.rewrite import rewrite
from tests.support.text_models import load


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(make_recorded(request.param, tmp_path_factory.mktemp(request.param)))


def describe(checkpoint: Checkpoint) -> FileLayout:
    found: Callable[[Checkpoint], FileLayout] = families.find(families.CONVERTERS, str(checkpoint.architecture))
    return found(checkpoint)


def test_every_shape_is_declared(data: Path) -> None:
    """So that a converter need not know it, and loading finds a damaged file before memory is allocated."""
    for path in sorted((data / "llamacpp").glob("*.gguf")):
        with GGUFFile(path) as file:
            model_class = families.find_model(file.metadata)
            model = model_class(model_class.config_type().from_metadata(file.metadata))
            open_shapes = {p.names[0] for p in model.parameters() if p.shape is None and p.names[0] in file.tensors}
        assert open_shapes <= {"rope_freqs.weight"}, path.name


def test_each_tensor_that_is_missing_is_named(checkpoint: Checkpoint) -> None:
    for name in checkpoint.tensors:
        rest = {other: tensor for other, tensor in checkpoint.tensors.items() if other != name}
        with pytest.raises(ConversionError) as caught:
            describe(replace(checkpoint, tensors=rest))
        named = caught.value.message.partition(" missing: ")[2]
        if name.startswith("model.layers.1.self_attn.") and checkpoint.architecture == "Lfm2ForCausalLM":
            continue  # its only layer with attention: no other layer shows which of the table's names it uses
        assert without_wrappers(named) == without_wrappers(name)


def test_each_tensor_of_another_shape_is_named(checkpoint: Checkpoint) -> None:
    for name, tensor in checkpoint.tensors.items():
        shape = (*tensor.shape[:-1], tensor.shape[-1] + 1)
        with pytest.raises(ConversionError) as caught:
            describe(replace(checkpoint, tensors=checkpoint.tensors | {name: replace(tensor, shape=shape)}))
        assert f"{name} is {shape}, expected {tensor.shape}" in caught.value.message


def test_each_tensor_that_is_unknown_is_named(checkpoint: Checkpoint) -> None:
    last = max(name for name in checkpoint.tensors if ".0." in name)
    for name in (f"{last}.scale", last.replace(".0.", ".9."), f"extra.{last}", "spice.weight"):
        more = checkpoint.tensors | {name: checkpoint.tensors[last]}
        with pytest.raises(ConversionError, match=r"are not those its config\.json describes") as caught:
            describe(replace(checkpoint, tensors=more))
        assert f"unknown: {name}" in caught.value.message


def test_names_of_two_kinds_for_one_tensor(checkpoint: Checkpoint) -> None:
    name = next(name for name in sorted(checkpoint.tensors) if ".0." in name)
    other = f"model.{name}" if not name.startswith("model.") else name.removeprefix("model.")
    with pytest.raises(ConversionError, match=r" twice: as .* and as "):
        describe(replace(checkpoint, tensors=checkpoint.tensors | {other: checkpoint.tensors[name]}))


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [("llama.feed_forward_length", 80, "ffn_gate.weight"), ("llama.attention.head_count_kv", 4, "attn_k.weight")],
)
def test_a_file_of_another_shape_is_refused_before_it_is_loaded(
    data: Path, tmp_path: Path, key: str, value: int, name: str
) -> None:
    path = rewrite(data / "llamacpp" / "LlamaForCausalLM.gguf", tmp_path / "m.gguf", {key: value})
    with pytest.raises(WeightsError, match=rf"blk\.0\.{name} has shape .*; expected .* from the file's metadata"):
        load(path, "reference")


def add_rules(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add rules to those of each converter; recipes replace its recipes."""

    def match(checkpoint: Checkpoint, model: Module, own: Rules, block: str) -> tuple[TensorLayout, ...]:
        names, recipes = own.names | rules.names, rules.recipes or own.recipes
        ignored = (*own.ignored, *rules.ignored)
        return match_tensors(checkpoint, model, replace(own, names=names, recipes=recipes, ignored=ignored), block)

    monkeypatch.setattr("hotshoe.convert._schema.match_tensors", match)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules(names={"layers.self_attn.q_proj": "attn_qq"}), r"names=…\): the model has no tensor 'attn_qq'"),
        (Rules(recipes={"attn_qq.weight": plus(1.0)}), r"recipes=…\): the model has no tensor 'attn_qq.weight'"),
        (Rules(names={"layers.self_atn.q_proj": "token_embd"}), r"has no tensor 'layers\.self_atn\.q_proj'"),
    ],
)
def test_a_misspelt_rule_is_an_error(
    rules: Rules, words: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rules(rules, monkeypatch)
    with pytest.raises(ConversionError, match=words):
        describe(checkpoint)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(make_recorded("LlamaForCausalLM", tmp_path_factory.mktemp("llama")))


@pytest.mark.parametrize("make", [lambda v: v.T, lambda v: v[1:]], ids=["transposed", "shorter"])
def test_a_recipe_of_another_shape_is_an_error(
    make: Callable[[Array], Array], llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rules(Rules(recipes={"attn_k.weight": Recipe(make)}), monkeypatch)
    layout = next(t for t in describe(llama).tensors if t.name == "blk.0.attn_k.weight")
    with pytest.raises(ConversionError) as caught:
        layout.make()
    made = make(llama.read("model.layers.0.self_attn.k_proj.weight")).shape
    assert f"the recipe of {layout.name} makes {made}, expected {layout.shape}" in caught.value.message


def test_a_recipe_can_state_the_precision(llama: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = {"attn_k.weight": Recipe(full_precision=True), "attn_norm.weight": Recipe(full_precision=False)}
    add_rules(Rules(recipes=recipes), monkeypatch)
    found = {t.name: t.full_precision for t in describe(llama).tensors}
    names = ("blk.1.attn_k", "blk.1.attn_v", "blk.1.attn_norm", "blk.1.ffn_norm")
    assert [found[f"{name}.weight"] for name in names] == [True, False, False, True]


def test_the_rows_of_a_family_replace_those_of_the_table() -> None:
    """However the family spells the name: with the modules around the model, or without them."""
    for name in ("norm", "model.norm", "backbone.norm"):
        names = NameTable({name: "token_embd_norm"}, ["model.norm.weight"])
        assert names.in_file("model.norm.weight") == (["token_embd_norm.weight"], -1)


@pytest.mark.parametrize("prefix", ["layers.99.", "model.layers.99.", "backbone.layers.99."])
def test_tensors_that_are_ignored(prefix: str, llama: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [t.name for t in describe(llama).tensors]
    more = llama.tensors | {"model.layers.99.head.weight": next(iter(llama.tensors.values()))}
    add_rules(Rules(ignored=(prefix,)), monkeypatch)
    assert [t.name for t in describe(replace(llama, tensors=more)).tensors] == expected


def test_a_prefix_of_wrappers_ignores_only_what_it_names(llama: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [t.name for t in describe(llama).tensors]
    more = llama.tensors | {"encoder.tower.weight": next(iter(llama.tensors.values()))}
    add_rules(Rules(ignored=("encoder.",)), monkeypatch)
    assert [t.name for t in describe(replace(llama, tensors=more)).tensors] == expected


def test_a_key_that_the_model_does_not_read_is_not_written(llama: Checkpoint) -> None:
    sizes = read_sizes(llama)
    with pytest.raises(ModelError, match=r"'llama' writes invented = 3, which .*llama\.Model does not read"):
        make_layout(llama, "llama", sizes.keys() | {"invented": 3}, vocab=sizes.vocab)
