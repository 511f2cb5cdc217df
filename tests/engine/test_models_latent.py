"""Files with latent attention that are not as today's converter writes them, and what models with it have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import hotshoe
from hotshoe.families import find_model
from hotshoe_core.errors import ModelError, WeightsError
from hotshoe_core.gguf import GGUFFile
from tests.support.forward import Forward
from tests.support.rewrite import Stored, rewrite

NAME = "llamacpp/DeepseekV3ForCausalLM.gguf"
IDS = list(range(40, 70))


def logits(path: Path, device: str = "reference", pieces: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
    with Forward(path, device) as model:
        return model.logits(IDS, pieces)


def joined(tensors: dict[str, Stored]) -> None:
    """Hold the matrices that expand the latent as one, as files of 2024 do."""
    for name in [n for n in tensors if n.endswith("attn_k_b.weight")]:
        (k, kind), (v, _) = (tensors.pop(n) for n in (name, name.replace("attn_k_b", "attn_v_b")))
        rows = np.concatenate([k.swapaxes(1, 2), v], axis=1)  # (heads, plain + v, kv_rank)
        tensors[name.replace("attn_k_b", "attn_kv_b")] = rows.reshape(-1, rows.shape[-1]), kind


@pytest.fixture
def of_2024(data: Path, tmp_path: Path) -> Path:
    keys = {"key_length": 24, "value_length": 12, "key_length_mla": None, "value_length_mla": None, "head_count_kv": 4}
    changes = {f"deepseek2.attention.{key}": value for key, value in keys.items()}
    return rewrite(data / NAME, tmp_path / "2024.gguf", changes, edit=joined)


@pytest.mark.parametrize("pieces", [(), (8, 1, 21)])
def test_one_matrix_for_keys_and_values(data: Path, of_2024: Path, device: str, pieces: tuple[int, ...]) -> None:
    expected = logits(data / NAME)
    np.testing.assert_allclose(logits(of_2024, device, pieces), expected, atol=1e-5 * np.abs(expected).max())


def test_a_file_with_both_forms_of_the_matrices(data: Path, tmp_path: Path) -> None:
    more = {"blk.0.attn_kv_b.weight": np.zeros((112, 16), np.float32)}
    path = rewrite(data / NAME, tmp_path / "both.gguf", add=more)
    with pytest.raises(WeightsError, match=r"does not use some tensors \(1\): blk\.0\.attn_kv_b"):
        logits(path)


@pytest.mark.parametrize(
    ("n_layers", "n_tokens", "stated", "gating"),
    [
        (47, 154_880, 0, "sigmoid"),
        (47, 154_880, 1, "softmax"),
        (46, 154_880, 0, "softmax"),
        (47, 102_400, 0, "softmax"),
        (47, 102_400, 2, "sigmoid"),
        (47, None, 0, "softmax"),  # the vocabulary has 320 tokens
    ],
)
def test_the_router_of_files_that_do_not_name_it(
    n_layers: int, n_tokens: int | None, stated: int, gating: str, data: Path, tmp_path: Path
) -> None:
    """The first files of GLM-4.7-Flash lack the key, although its scores are sigmoids."""
    keys = {"block_count": n_layers, "vocab_size": n_tokens, "expert_gating_func": stated}
    path = rewrite(data / NAME, tmp_path / "glm.gguf", {f"deepseek2.{key}": value for key, value in keys.items()})
    with GGUFFile(path) as file:
        config: Any = find_model(file.metadata).config_type().from_metadata(file.metadata)
    assert config.gating == gating


def test_queries_are_scaled_by_their_positions(data: Path, tmp_path: Path) -> None:
    """As in Mistral Large 3, whose architecture is deepseek2. Nothing changes before ``temperature_length``."""
    keys = {"deepseek2.attention.temperature_scale": 0.5, "deepseek2.attention.temperature_length": 16}
    found, before = logits(rewrite(data / NAME, tmp_path / "m.gguf", keys)), logits(data / NAME)
    largest = np.abs(before).max()
    np.testing.assert_allclose(found[:16], before[:16], rtol=0, atol=1e-6 * largest)
    assert np.abs(found[16:] - before[16:]).max() > 0.01 * largest


def test_longer_contexts_than_an_indexer_chooses_from(data: Path, tmp_path: Path) -> None:
    """DeepSeek-V3.2 is DeepSeek-V3 if the context is no longer than ``top_k``."""
    fields = gguf.GGUFReader(data / NAME).fields
    keys = {k.replace("deepseek2.", "deepseek32."): f.contents() for k, f in fields.items() if "deepseek2." in k}
    keys |= {"deepseek32.attention.indexer.top_k": 32, "deepseek32.attention.indexer.head_count": 4}
    keys |= {"deepseek32.expert_gating_func": 2, "general.architecture": "deepseek32"}
    path = rewrite(data / NAME, tmp_path / "m.gguf", dict.fromkeys(k for k in fields if "deepseek2." in k) | keys)
    with hotshoe.load_model(path, "reference") as model:
        assert model.n_ctx == 32
    with pytest.raises(ModelError, match="can have at most 32 tokens: hotshoe does not have the indexer"):
        hotshoe.load_model(path, "reference", n_ctx=33)
    expected = logits(data / NAME)
    np.testing.assert_allclose(logits(path), expected, atol=1e-6 * np.abs(expected).max())
