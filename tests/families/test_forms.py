"""Forms that a file may have, for every row: two devices, drafting layers, scales, joined matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotshoe.nn import Linear
from hotshoe.nn.experts import Experts
from hotshoe_core.gguf import GGUFFile
from tests.families.made import Made
from tests.families.rows import TEXT
from tests.support.fake_registry import FakeRegistry, fake
from tests.support.file_forms import joined, scaled, with_nextn
from tests.support.rewrite import Stored, rewrite

ROWS = TEXT


def test_layers_on_two_devices(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second layer, and what it keeps, is on the other of two devices of core's fake family."""
    registry = FakeRegistry(fake("gpu:0"), fake("gpu:1"))
    monkeypatch.setattr("hotshoe.loading.load_all", lambda **options: registry)
    layers = [f"gpu:{i % 2}" for i in range(made.n_layers)]
    with made.load("gpu:0,gpu:1", layer_devices=layers) as model:
        assert list(model.backend.placement.layers) == layers
        made.near(model.logits(made.ids), made.expected(made.ids))
        with model.sequence() as sequence:
            made.near(np.stack([sequence.append(i) for i in made.ids]), made.expected(made.ids))


def _same(made: Made, path: Path, device: str) -> None:
    with made.open(path, device) as model:
        ours = model.logits(made.ids)
    theirs = made.model(device).logits(made.ids)
    assert (
        np.array_equal(ours, theirs)
        if made.is_exact
        else np.abs(ours - theirs).max() <= made.bound * np.abs(theirs).max()
    )


def test_drafting_layers_are_passed_over(made: Made, main_device: str) -> None:
    _same(made, with_nextn(made.file(), made.scratch / "nextn.gguf"), main_device)


def test_a_scale_of_each_matrix(made: Made, main_device: str) -> None:
    """All that the model multiplies with ``linear``, and the experts. The factors are powers of two: nothing rounds."""
    with made.load(main_device) as model:
        modules = [p for p in model._model.parameters() if isinstance(p.module, (Linear, Experts))]
        names = {p.names[0] for p in modules if p.attribute == "weight"}
    with GGUFFile(made.file()) as file:
        names = {n for n in names & file.tensors.keys() if n.replace(".weight", ".scale") not in file.tensors}
    path = made.scratch / "scaled.gguf"
    _same(made, rewrite(made.file(), path, edit=lambda tensors: scaled(tensors, names)), main_device)


def test_vectors_with_an_axis_of_length_1(made: Made, main_device: str) -> None:
    def widen(tensors: dict[str, Stored]) -> None:
        vectors = {name: (v[None], kind) for name, (v, kind) in tensors.items() if v.ndim == 1 and "blk." in name}
        tensors.update(vectors)

    _same(made, rewrite(made.file(), made.scratch / "wide.gguf", edit=widen), main_device)


@pytest.mark.parametrize(
    "join",
    [
        joined("attn_q", "attn_k", "attn_v", whole="attn_qkv"),
        joined("ffn_gate", "ffn_up", whole="ffn_up"),
        joined("ffn_gate_exps", "ffn_up_exps", whole="ffn_gate_up_exps"),
    ],
    ids=["qkv", "gate_up", "gate_up_exps"],
)
def test_matrices_in_one_tensor(made: Made, main_device: str, join: Callable[[dict[str, Stored]], None]) -> None:
    path = rewrite(made.file(), made.scratch / "joined.gguf", edit=join)
    with GGUFFile(path) as one, GGUFFile(made.file()) as several:
        if one.tensors.keys() == several.tensors.keys():
            pytest.skip("the family has no such matrices, or has them in one tensor already")
    with made.open(path, main_device) as model:
        made.near(model.logits(made.ids), made.model(main_device).logits(made.ids))
