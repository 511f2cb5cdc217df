"""What a model's author does wrong, and what a file claims that its tensors do not bear out: typed, and where it is."""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe import load_request, nn
from hotshoe.nn import MLP, Linear, Module, RMSNorm, TextConfig, key, layers, submodule, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import (
    BackendError,
    HotshoeError,
    ModelDefinitionError,
    ModelFileError,
    SamplingError,
    ShapeError,
    WeightsError,
)
from hotshoe_core.gguf import GGUFFile
from tests.fuzz.gguf_parts import Parts
from tests.support.rewrite import rewrite


def author_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The last line of this file in the traceback."""
    return [f.line for f in traceback.extract_tb(error.tb) if f.filename == __file__][-1] or ""


# Declarations


def test_no_annotation() -> None:
    with pytest.raises(
        ModelDefinitionError, match=r"Attention\.q: submodule\('attn_q'\) has no annot.*\s.*q: Linear ="
    ) as e:

        class Attention(Module):
            q = submodule("attn_q")

    assert "class Attention" in author_line(e)


def test_a_class_may_declare_an_attribute_that_its_base_annotates() -> None:
    class Other(MLP):
        up = submodule("ffn_up_proj")

    assert (
        next(p.names[0] for p in Other(types.SimpleNamespace(dim=4, mlp_dim=(8,))).parameters()) == "ffn_up_proj.weight"
    )


@pytest.mark.parametrize("layer", [-1, 2])
def test_an_mlp_outside_the_layers_has_no_hidden_size(layer: int) -> None:
    config = types.SimpleNamespace(dim=4, n_layers=2, mlp_dim=(8, 16))
    for made in (MLP, nn.GatedMLP):
        shapes = {p.names[0]: p.shape for p in made(config, layer=layer).parameters() if p.attribute == "weight"}
        assert shapes.pop("ffn_down.weight") == (4, None)
        assert set(shapes.values()) == {(None, 4)}
    gate_up = nn.GatedMLP(config, layer=1).gate_up
    assert gate_up is not None
    assert gate_up._parameters[0].shape == (32, 4)


def test_an_annotation_of_the_base_that_does_not_fit() -> None:
    class Base(Module):
        q: object

    says = r"Mine\.q: has no annotation in Mine, and that of Base is object; submodule\('q'\) needs a subclass"
    with pytest.raises(ModelDefinitionError, match=says):

        class Mine(Base):
            q = submodule("q")


def test_a_tensor_of_another_library_is_named_in_full() -> None:
    other = type("Tensor", (), {"__module__": "torch"})
    with pytest.raises(ModelDefinitionError, match=r"is annotated <class 'torch\.Tensor'>; .* needs Tensor"):
        type("Mine", (Module,), {"__annotations__": {"w": other}, "w": tensor("w", use="linear")})


def test_wrong_annotations() -> None:
    with pytest.raises(ModelDefinitionError, match=r"A\.q: is annotated int; .* needs a subclass of Module"):

        class A(Module):
            q: int = submodule("attn_q")

    with pytest.raises(ModelDefinitionError, match=r"B\.q: is annotated Tensor[\s\S]*Tensor = tensor\('attn_q', use="):

        class B(Module):
            q: Tensor = submodule("attn_q")

    with pytest.raises(ModelDefinitionError, match=r"C\.q: is annotated Linear; .* Tensor[\s\S]*submodule\('q'\)"):

        class C(Module):
            q: Linear = tensor("q", shape=lambda c, i: (None, c.dim))

    with pytest.raises(ModelDefinitionError, match=r"D\.blocks: is annotated MLP; .* needs list"):

        class D(Module):
            blocks: MLP = layers("blk")

    with pytest.raises(ModelDefinitionError, match=r"E\.blocks: 2 classes, but no rule[\s\S]*choose="):

        class E(Module):
            blocks: list[MLP | RMSNorm] = layers("blk")


def test_a_tensor_without_its_op_or_its_name() -> None:
    with pytest.raises(ModelDefinitionError, match=r"A\.sinks: tensor\('sinks'\) does not say the op[\s\S]*use="):

        class A(Module):
            sinks: Tensor = tensor("sinks")

    with pytest.raises(ModelDefinitionError, match=r"B\.sinks: .* does not say the tensor's name in the file"):

        class B(Module):
            sinks: Tensor | None = tensor(use="attention")


def test_an_annotation_that_names_nothing() -> None:
    class Mine(Module):
        mlp: MPL = submodule()  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ModelDefinitionError, match=r"Mine\.mlp: the annotation 'MPL' cannot be read[\s\S]*'MLP'"):
        Mine(None)


def test_layers_without_their_number() -> None:
    class Mine(Module):
        blocks: list[MLP] = layers("blk")

    with pytest.raises(ModelDefinitionError, match=r"Mine\.blocks: .*the config has no n_layers[\s\S]*TextConfig"):
        Mine(object())


def test_a_chosen_class_that_is_not_a_module() -> None:
    @dataclass
    class Config:
        n_layers: int = 2

    class Mine(Module):
        blocks: list[MLP] = layers("blk", choose=lambda config, i: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(ModelDefinitionError, match=r"Mine\.blocks: choose returned None for layer 0"):
        Mine(Config())


def test_a_shape_for_a_module_without_weight() -> None:
    class Mine(Module):
        mlp: MLP = submodule("mlp", shape=lambda c, i: (1,))

    with pytest.raises(ModelDefinitionError, match=r"Mine\.mlp: shape= needs a tensor `weight`, but MLP has none"):
        Mine(types.SimpleNamespace(dim=4, mlp_dim=(8,)))


def test_a_config_field_of_unknown_origin(data: Path) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config(TextConfig):
        n_things: int = 3

    with GGUFFile(data / "llamacpp" / "LlamaForCausalLM.gguf") as file:
        with pytest.raises(
            ModelDefinitionError, match=r'Config\.n_things: the field does not say[\s\S]*n_things: int = key\("'
        ):
            Config.from_metadata(file.metadata)


# Models that lack something, at load


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: nn.GatedMLP = submodule()


class Good(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, data: Path) -> Callable[[Any], Any]:
    def get(model: Any) -> Any:
        monkeypatch.setattr(load_request, "find_model", lambda metadata: model)
        return hotshoe.load_model(data / "llamacpp" / "LlamaForCausalLM.gguf", "reference")

    return get


def test_a_good_one_loads(load: Callable[[Any], Any]) -> None:
    with load(Good) as model:
        assert model.logits([1, 2]).shape[0] == 2


def test_no_config(load: Callable[[Any], Any]) -> None:
    class Mine(Module):
        blocks: list[Block] = layers("blk")

    with pytest.raises(ModelDefinitionError, match=r"Mine\.config: has no annotation[\s\S]*write `config: Config`"):
        load(Mine)


def test_a_config_of_another_type(load: Callable[[Any], Any]) -> None:
    class Sizes:
        n_layers = 2

    class Mine(Good):
        config: Sizes  # type: ignore[assignment]

    with pytest.raises(ModelDefinitionError, match=r"Mine\.config: is annotated Sizes; expected a subclass of"):
        load(Mine)


def test_a_config_that_is_unknown(load: Callable[[Any], Any]) -> None:
    class Mine(Good):
        config: TextConfg  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ModelDefinitionError, match=r"'TextConfg' cannot be read[\s\S]*did you mean 'TextConfig'"):
        load(Mine)


def test_a_config_that_a_function_defines(load: Callable[[Any], Any]) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config(TextConfig):
        expert_count: int = key("expert_count", default=7)

    class Mine(Good):
        config: Config

    class Further(Mine):
        pass

    assert Further.config_type() is Config
    with load(Further) as model:
        assert model.logits([1, 2]).shape[0] == 2


def test_no_cache_spec(load: Callable[[Any], Any]) -> None:
    class Mine(Module):
        config: TextConfig
        blocks: list[Block] = layers("blk")

    with pytest.raises(ModelDefinitionError, match=r"Mine has no cache_spec\(\)[\s\S]*def cache_spec"):
        load(Mine)


@pytest.mark.parametrize(("spec", "words"), [([None], "gave 1 entries"), (None, "gave None"), (7, "gave 7")])
def test_a_cache_spec_of_the_wrong_length(spec: Any, words: str, load: Callable[[Any], Any]) -> None:
    class Mine(Good):
        def cache_spec(self) -> Any:
            return spec

    with pytest.raises(ModelDefinitionError, match=rf"Mine\.cache_spec\(\) {words}; expected a tuple of 2"):
        load(Mine)


def test_an_author_s_own_error_keeps_its_line(load: Callable[[Any], Any]) -> None:
    class Mine(Good):
        def __call__(self, batch: Any, views: Any) -> Tensor:
            return self.token_embedding(batch.tokens).reshape(-1, 7)  # the mistake

    with pytest.raises(ShapeError, match="reshape") as e:
        load(Mine)
    assert "the mistake" in author_line(e)


# What a file claims


def changed(data: Path, tmp_path: Path, name: str = "LlamaForCausalLM", **metadata: Any) -> Path:
    source = data / "llamacpp" / f"{name}.gguf"
    arch = {"LlamaForCausalLM": "llama", "Gemma3ForCausalLM": "gemma3"}[name]
    keys = {f"{arch}.{k.replace('__', '.')}": v for k, v in metadata.items()}
    return rewrite(source, tmp_path / "m.gguf", keys)


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        ({"block_count": 2**31}, ModelFileError, r"llama\.block_count': is 2147483648; expected 1 to 10000"),
        ({"block_count": 0}, ModelFileError, r"llama\.block_count': is 0; expected 1"),
        (
            {"block_count": 5},
            ModelFileError,
            r"block_count': the metadata says 5 layers, but the file has tensors of 2",
        ),
        (
            {"attention__key_length": 4_000_000, "attention__value_length": 4_000_000},
            WeightsError,
            r"attn_\w+\.weight has shape \[\d+, \d+\]; expected .*16000000",
        ),
        ({"attention__head_count_kv": 100_000}, WeightsError, r"attn_k\.weight has shape .* expected \["),
        ({"attention__head_count": 0}, WeightsError, r"attn_q.weight .* \[0, 32\]"),
        ({"attention__sliding_window": -8}, ModelFileError, r"sliding_window': is -8; expected 0"),
        ({"embedding_length": 2**40}, ModelFileError, r"embedding_length': is 1099511627776"),
        ({"context_length": 0}, ModelFileError, r"context_length': is 0; expected 1"),
        ({"attention__layer_norm_rms_epsilon": -1.0}, ModelFileError, r"epsilon': is -1\.0"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, ModelFileError, r"epsilon': is nan"),
        ({"rope__freq_base": 0.0}, ModelFileError, r"rope\.freq_base': is 0\.0; expected"),
        ({"context_length": 2**31}, ModelFileError, r"context_length': is 2147483648; expected 1 to 2147483647"),
        (
            {"rope__scaling__original_context_length": 2**31},
            ModelFileError,
            r"original_context_length': is 2147483648; expected 0 or more, and below 2147483648",
        ),
        ({"rope__dimension_count": 4_000_000}, HotshoeError, "rope"),
        ({"rope__dimension_count": -2}, ModelFileError, r"rope\.dimension_count': is -2"),
    ],
)
def test_hyper_parameters_are_checked_before_anything_is_made(
    metadata: dict[str, Any], error: type[Exception], words: str, data: Path, tmp_path: Path
) -> None:
    """The backend is asked for no memory: that of the cache would be terabytes."""
    path = changed(data, tmp_path, **metadata)
    with pytest.raises(error, match=words):
        hotshoe.load_model(path, "reference", kv_dtype="f32")


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("name", ["blk.0.ffn_up.weight", "blk.0.ffn_up.bias", "token_embd.weight"])
def test_a_weight_without_axes(name: str, device: str, data: Path, tmp_path: Path) -> None:
    parts = Parts.of(data / "llamacpp" / "BertForSequenceClassification.gguf")
    next(row for row in parts.rows if row.name == name).dims.clear()
    (tmp_path / "m.gguf").write_bytes(parts.bytes())
    with pytest.raises(HotshoeError, match=rf"{name} has shape \[\]; expected"):
        hotshoe.load_model(tmp_path / "m.gguf", device)


@pytest.mark.parametrize(
    ("name", "axis"), [("blk.0.attn_norm.weight", 0), ("output_norm.weight", 0), ("token_embd.weight", 1)]
)
def test_an_axis_of_one_is_not_broadcast(name: str, axis: int, data: Path, tmp_path: Path) -> None:
    path = rewrite(data / "llamacpp" / "LlamaForCausalLM.gguf", tmp_path / "m.gguf", narrow=(name, axis))
    with pytest.raises(WeightsError, match=rf"{name} has shape \[.*1\]; expected"):
        hotshoe.load_model(path, "reference")


def test_a_bias_of_one_element_is_not_broadcast() -> None:
    class Config:
        norm_eps = 1e-5

    linear, norm = Linear(Config()), nn.LayerNorm(Config())
    from hotshoe_core import constant

    x = constant(np.zeros((2, 4), np.float32))
    linear.weight, linear.bias = constant(np.zeros((3, 4), np.float32)), constant(np.zeros(1, np.float32))
    with pytest.raises(ShapeError, match=r"\[1\]; expected \[3\]"):
        linear(x)
    norm.weight, norm.bias = constant(np.zeros(4, np.float32)), constant(np.zeros(1, np.float32))
    with pytest.raises(ShapeError, match=r"\[1\]; expected \[4\]"):
        norm(x)


def test_per_layer_values_of_another_length(data: Path, tmp_path: Path) -> None:
    path = changed(data, tmp_path, attention__head_count_kv=[2, 2, 2])
    with pytest.raises(ModelFileError, match=r"head_count_kv.*an array of 3 values; expected 2"):
        hotshoe.load_model(path, "reference")


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("MixtralForCausalLM", {"llama.expert_used_count": 5}, "5 of 4 experts are used"),
        (
            "MixtralForCausalLM",
            {"llama.expert_count": 3},
            r"ffn_gate_inp\.weight has shape \[4, 32\]; expected \[3, 32\]",
        ),
        ("DeepseekV3ForCausalLM", {"deepseek2.expert_group_count": 3}, "8 experts do not divide into 3 equal groups"),
        (
            "DeepseekV3ForCausalLM",
            {"deepseek2.expert_group_used_count": 9},
            "9 of 4 groups of experts are used",
        ),
        (
            "DeepseekV3ForCausalLM",
            {"deepseek2.expert_gating_func": 7},
            r"expert_gating_func': is 7; expected 1 \(softmax",
        ),
        ("DeepseekV3ForCausalLM", {"deepseek2.attention.kv_lora_rank": 2**20}, r"attn_k_b\.weight has shape"),
        ("Mamba2ForCausalLM", {"mamba2.ssm.state_size": 2**20}, r"ssm_conv1d\.weight has shape"),
        ("Mamba2ForCausalLM", {"mamba2.ssm.conv_kernel": 1}, r"ssm\.conv_kernel': is 1; expected 2"),
        ("Lfm2ForCausalLM", {"lfm2.shortconv.l_cache": 2**20}, r"shortconv\.conv\.weight has shape"),
        (
            "../bert-tiny-llamacpp",
            {"bert.context_length": 2**20},
            r"position_embd.weight has 64 rows; expected 1048576",
        ),
    ],
)
def test_what_the_new_families_claim(name: str, keys: dict[str, Any], words: str, data: Path, tmp_path: Path) -> None:
    path = rewrite(data / "llamacpp" / f"{name}.gguf", tmp_path / "m.gguf", keys)
    with pytest.raises(hotshoe.errors.ModelError, match=words):
        hotshoe.load_model(path, "reference")


@pytest.mark.parametrize("name", ["bert-tiny-llamacpp", "llamacpp/LlamaForCausalLM", "llamacpp/Gemma3ForCausalLM"])
def test_more_tokens_than_the_embedding_has_rows(name: str, data: Path, tmp_path: Path) -> None:
    """One that is in use would be read beyond the weight; those that are not need no row."""
    source = data / f"{name}.gguf"
    with GGUFFile(source) as file:
        tokens, types = (list(file.metadata[f"tokenizer.ggml.{k}"]) for k in ("tokens", "token_type"))
    tokens += [f"more{i}" for i in range(9)]
    for kind in (5, 1):
        keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types + [kind] * 9}
        path = rewrite(source, tmp_path / f"{kind}.gguf", keys)
        if kind == 5:
            hotshoe.load_model(path, "reference").close()
            continue
        with pytest.raises(WeightsError, match=rf"token_embd\.weight has \d+ rows; expected {len(tokens)} or more"):
            hotshoe.load_model(path, "reference")


def test_more_logits_than_rows(data: Path, tmp_path: Path) -> None:
    """A token could be generated that the embedding has no row for."""
    source, path = data / "llamacpp" / "LlamaForCausalLM.gguf", tmp_path / "m.gguf"
    with GGUFFile(source) as file:
        n = len(file.metadata["tokenizer.ggml.tokens"])
    rewrite(source, path, {"tokenizer.ggml.token_type": [1] + [5] * (n - 1)}, narrow=("token_embd.weight", 0))
    with pytest.raises(WeightsError, match=rf"token_embd\.weight has 1 rows; expected {n} or more: there"):
        hotshoe.load_model(path, "reference")


def test_more_logits_than_tokens_of_a_model_that_says_no_shape(load: Callable[[Any], Any]) -> None:
    class Mine(Good):
        def logits(self, x: Tensor) -> Tensor:
            return ops.concat(self.output(x), x[:, :1], axis=-1)

    with pytest.raises(WeightsError, match="the model gives 321 logits; the vocabulary has 320 tokens"):
        load(Mine)


@pytest.mark.parametrize(
    ("odd", "words"),
    [("\x1b[31mweight", r"\\x1b\[31mweight"), ("\u202e", r"\\u202e"), ("x" * 9000, "x{79}…")],
)
def test_names_of_a_file_do_not_drive_a_terminal(odd: str, words: str, data: Path, tmp_path: Path) -> None:
    source = data / "llamacpp" / "LlamaForCausalLM.gguf"
    with pytest.raises(WeightsError, match=rf"the llama model does not use some tensors \(1\): {words}\n"):
        hotshoe.load_model(rewrite(source, tmp_path / "m.gguf", add={odd: np.zeros(8, np.float32)}), "reference")
    path = rewrite(source, tmp_path / "n.gguf", rename=("blk.0.attn_norm.weight", odd))
    with pytest.raises(WeightsError, match=r"missing \(1\): blk\.0\.attn_norm\.weight\n") as missing:
        hotshoe.load_model(path, "reference")
    path = rewrite(source, tmp_path / "o.gguf", {"general.architecture": odd})
    with pytest.raises(hotshoe.errors.UnknownArchitectureError) as unknown:
        hotshoe.load_model(path, "reference")
    for error in (missing, unknown):
        assert all(line.isprintable() for line in str(error.value).split("\n"))
        assert len(str(error.value)) < 2000


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_weights_of_nan_give_no_text(device: str, data: Path, tmp_path: Path) -> None:
    """Also not by the device's argmax, which would say that the first token is the best."""
    path = tmp_path / "m.gguf"
    path.write_bytes((data / "llamacpp" / "LlamaForCausalLM.gguf").read_bytes())
    with GGUFFile(path) as file:
        place = file.tensors["output_norm.weight"].offset
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(np.full(32, np.nan, np.float32).tobytes())
    if device not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {device!r}")
    with hotshoe.load_model(path, device) as model:
        for options in ({"temperature": 0}, {"temperature": 1}):
            with pytest.raises(SamplingError, match="NaN"):
                model.generate("the", max_tokens=2, **options)
        for call in (lambda: model.logits([1, 2]), lambda: model.score("the")):
            with pytest.raises(BackendError, match=f"gave NaN or infinity on {device}"):
                call()


def test_keys_of_wrong_types(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"block_count.*found '2' of type str; expected int"):
        hotshoe.load_model(changed(data, tmp_path, block_count="2"), "reference")


def test_a_key_s_default_may_come_from_fields_before_it(data: Path) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config(TextConfig):
        twice: int = key("no.such.key", default=lambda c: 2 * c.dim)

    with GGUFFile(data / "llamacpp" / "LlamaForCausalLM.gguf") as file:
        config = Config.from_metadata(file.metadata)
        assert (config.twice, config.n_heads) == (2 * config.dim, (config.n_heads[0],) * 2)
