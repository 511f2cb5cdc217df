"""A file with a tensor or a key too many, too few, or of another shape is refused, for every row."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotshoe.families import find_model
from hotshoe.nn import Module, bind
from hotshoe.nn.binder import unused
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import ModelError, ModelFileError, WeightsError
from hotshoe_core.gguf import GGUFFile
from tests.families.made import Made
from tests.families.rows import TEXT
from tests.support.rewrite import Stored, rewrite

OPEN_SHAPES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight", "blk.*.laurel_r.weight")
OPTIONAL = ("*.bias", "*.scale", "output.weight", "rope_freqs.weight")


class NothingWrong(Exception):  # noqa: N818
    """Raised when ``bind`` begins to load tensors."""


class Altered:
    """A file with other tensors than those on the disk. Only ``bind`` reads it, which fails before it loads one."""

    def __init__(self, file: GGUFFile, tensors: dict[str, Any]) -> None:
        self._file, self.tensors = file, tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def data(self, name: str) -> Any:
        raise NothingWrong


@pytest.fixture
def file(made: Made) -> Iterator[GGUFFile]:
    with GGUFFile(made.file()) as file:
        yield file


def model_of(file: GGUFFile) -> Module:
    model_class = find_model(file.metadata)
    return model_class(model_class.config_type().from_metadata(file.metadata))


def bind_altered(model: Module, file: GGUFFile, tensors: dict[str, Any]) -> None:
    altered: Any = Altered(file, tensors)
    with open_reference() as backend:
        bind(model, altered, backend)


def test_each_missing_tensor_is_named(made: Made, file: GGUFFile) -> None:
    loaded = []
    for name in file.tensors:
        model, message = model_of(file), ""
        rest = {other: info for other, info in file.tensors.items() if other != name}
        try:
            bind_altered(model, file, rest)
        except WeightsError as error:
            message = error.message
        except NothingWrong:
            loaded.append(name)
            continue
        names = next(p.names for p in model.parameters() if name in p.names)
        assert any(other in message for other in names)
    allowed = (*OPTIONAL, *made.row.optional)
    assert [name for name in loaded if not any(fnmatch.fnmatchcase(name, p) for p in allowed)] == []
    unused = [p for p in made.row.optional if not any(fnmatch.fnmatchcase(name, p) for name in loaded)]
    assert unused == [], "the row's patterns of optional tensors that match nothing"


def test_each_tensor_of_another_shape_is_named(file: GGUFFile) -> None:
    for name, info in file.tensors.items():
        if any(fnmatch.fnmatchcase(name, p) for p in OPEN_SHAPES) or unused(model_of(file), [name]):
            continue
        shape = (*info.shape[:-1], info.shape[-1] + 1)
        with pytest.raises(WeightsError) as caught:
            bind_altered(model_of(file), file, {**file.tensors, name: info._replace(shape=shape)})
        assert name in caught.value.message


def test_another_tensor_is_named(file: GGUFFile) -> None:
    info = next(iter(file.tensors.values()))
    for name in ("blk.0.other.weight", "other.weight"):
        with pytest.raises(WeightsError, match=name):
            bind_altered(model_of(file), file, {**file.tensors, name: info._replace(name=name)})


def test_a_key_that_nothing_reads_is_named(made: Made) -> None:
    key = f"{made.row.arch}.attention.invented"
    path = rewrite(made.file(), made.scratch / "key.gguf", {key: 1.5})
    with pytest.raises(ModelFileError, match=key):
        made.open(path)


def test_a_layer_of_jamba_without_an_mlp_is_named(tmp_path: Path) -> None:
    """Its two kinds of MLP are both optional for the binder, as no key says which one a layer has."""
    jamba = Made("jamba", TEXT["jamba"], tmp_path)

    def drop(tensors: dict[str, Stored]) -> None:
        for name in [name for name in tensors if name.startswith("blk.1.ffn_") and "norm" not in name]:
            del tensors[name]

    with pytest.raises(WeightsError, match="layer 1 has neither an MLP nor experts"):
        jamba.open(rewrite(jamba.file(), tmp_path / "m.gguf", edit=drop))


def test_a_missing_layer_is_named(made: Made) -> None:
    n = made.n_layers
    path = rewrite(made.file(), made.scratch / "layer.gguf", {f"{made.row.arch}.block_count": n + 1})
    with pytest.raises((ModelError, ModelFileError, WeightsError), match=rf"block_count|blk\.{n}\.|one for each layer"):
        made.open(path)
