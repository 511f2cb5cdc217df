"""The ``use`` of a tensor is an op, and one that reads it: a wrong one would choose another device or layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotshoe import nn
from hotshoe.kvcache import AttentionView
from hotshoe.nn import GatedMLP, Module, TextConfig, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor
from hotshoe_core.errors import ModelDefinitionError
from tests.support.rewrite import rewrite
from tests.support.text_models import load


def test_a_use_that_is_not_an_op() -> None:
    with pytest.raises(ModelDefinitionError, match=r"A\.rate: use='ssm_conf' is not an op[\s\S]*'ssm_conv'"):

        class A(Module):
            rate: Tensor = tensor("rate", use="ssm_conf")


class Gated(nn.Attention):
    rate: Tensor = tensor("rate.weight", use="linear", shape=lambda c, i: (c.dim,))

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        return super().__call__(x, batch, view) * self.rate.reshape(1, -1)


class Block(nn.TransformerBlock):
    attention: Gated = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


def test_a_use_that_does_not_read_the_tensor(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a view too, as here."""
    more = {f"blk.{i}.rate.weight": np.ones(32, np.float32) for i in range(2)}
    path = rewrite(data / "llamacpp" / "LlamaForCausalLM.gguf", tmp_path / "m.gguf", add=more)
    monkeypatch.setattr("hotshoe.load_request.model_class_of", lambda metadata: Model)
    with pytest.raises(ModelDefinitionError, match=r"Gated\.rate: .*use='linear', but the op mul reads it[\s\S]*'mul'"):
        load(path, "reference")
