"""EmbeddingModel against transformers with real weights, on the reference backend and on ggml-cpu."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.encoder_model import EncoderSignature, _n_counted
from hotshoe_core.errors import (
    ClosedError,
    DeviceNotFoundError,
    InputTooLongError,
    InputTypeError,
    ModelError,
    ModelFileError,
    ShapeError,
    UnknownArchitectureError,
    WeightsError,
)
from hotshoe_core.gguf import GGUFFile
from hotshoe_core.tensors.tensor import nodes_created
from tests.support.minilm import Reference, load_record
from tests.support.rewrite import rewrite
from tests.support.texts import load_texts

DEVICES = ("reference", "cpu")
LEAST_COSINE = {"f32": 0.99999, "f16": 0.9999, "q8_0": 0.999}


def require(device: str) -> str:
    if device not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {device!r}: hotshoe-ggml-cpu is not installed")
    return device


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return require(request.param)


@pytest.fixture(params=DEVICES)
def tiny(request: pytest.FixtureRequest, data: Path) -> Iterator[EmbeddingModel]:
    """A BERT with random weights, in a file that llama.cpp's converter wrote."""
    with hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", require(request.param)) as model:
        yield model


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
def test_minilm_is_transformers(device: str, dtype: str, minilm_gguf: Callable[[str], Path]) -> None:
    """All texts; a third of them for the slow reference backend, a ninth if only the weights differ."""
    record, chosen = load_record(), load_texts()
    assert len(chosen) >= 50
    if device == "reference":
        chosen = chosen[:: 3 if dtype == "f32" else 9]
    texts, expected = [t.text for t in chosen], np.stack([record[t.name] for t in chosen])
    with hotshoe.load_model(minilm_gguf(dtype), device) as model:
        assert (model.dim, model.n_ctx, model.device.name) == (384, 512, device)
        vectors = model.embed(texts, truncate=True)
    assert (vectors.shape, vectors.dtype) == ((len(texts), 384), np.float32)
    cosines = (vectors * expected).sum(axis=1)
    worst = int(cosines.argmin())
    assert cosines[worst] >= LEAST_COSINE[dtype], texts[worst][:60]


def test_the_record_is_what_transformers_computes(minilm_reference: Reference) -> None:
    record, chosen = load_record(), load_texts()
    assert list(record) == [t.name for t in chosen]
    for text, vector in zip(chosen[::9], minilm_reference.embed([t.text for t in chosen[::9]]), strict=True):
        assert vector @ record[text.name] >= 0.999999


def test_a_file_of_llama_cpps_converter(tiny: EmbeddingModel, data: Path) -> None:
    expected = json.loads((data / "bert-tiny-expected.json").read_text(encoding="utf-8"))
    vectors = tiny.embed(expected["texts"], truncate=True)
    cosines = (vectors * np.array(expected["embeddings"])).sum(axis=1)
    assert cosines.min() > 0.99999


def test_a_batch_gives_what_each_text_gives_alone(tiny: EmbeddingModel) -> None:
    texts = ["the cat", "", "the dog and the cat " * 5, "a", "the cat"]
    together = tiny.embed(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(tiny.embed(text), vector, atol=2e-5)
    np.testing.assert_allclose(tiny.embed(texts, batch_size=2), together, atol=2e-5)
    assert tiny.embed([]).shape == (0, tiny.dim)


def test_the_same_shapes_again_build_and_lower_nothing(tiny: EmbeddingModel) -> None:
    first = tiny.embed(["the cat", "a dog"])
    nodes, counters = nodes_created(), (tiny.backend.counters.compiled, tiny.backend.counters.lowered)
    second = tiny.embed(["a dog", "the cat"])
    assert nodes_created() == nodes
    assert (tiny.backend.counters.compiled, tiny.backend.counters.lowered) == counters
    np.testing.assert_allclose(second, first[::-1], atol=2e-5)
    assert not np.allclose(first[0], first[1], atol=1e-3)


def test_many_shapes_keep_the_memory_of_few(tiny: EmbeddingModel) -> None:
    """A graph counts its tokens, and at least 256."""
    assert [_n_counted(EncoderSignature(*shape)) for shape in ((32, 64), (1, 5))] == [2048, 256]
    tiny._contexts._capacity = 8 * 256
    for n in range(1, 25):
        tiny.embed("a " * n)
    assert len(tiny.backend._executables if hasattr(tiny.backend, "_executables") else tiny.backend._graphs) <= 8


def test_threads_share_a_model(tiny: EmbeddingModel) -> None:
    texts = ["the cat", "a dog and a cat", "the"]
    expected = [tiny.embed(t) for t in texts]
    wrong: list[str] = []

    def work(text: str, vector: np.ndarray) -> None:
        for _ in range(20):
            if not np.allclose(tiny.embed(text), vector, atol=2e-5):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(texts, expected, strict=True)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize(("pooling", "name"), [(1, "mean"), (2, "CLS"), (3, "last")])
def test_pooling_of_the_file(pooling: int, name: str, data: Path, tmp_path: Path, device: str) -> None:
    """Check each pooling against the mean over one token: a text cut to the token that the pooling takes."""
    path = rewrite(data / "bert-tiny-llamacpp.gguf", tmp_path / "m.gguf", {"bert.pooling_type": pooling})
    with hotshoe.load_model(path, device) as model:
        states = model.hidden_states("the cat and the dog")  # (n, dim)
        expected = {"mean": states.mean(axis=0), "CLS": states[0], "last": states[-1]}[name]
        np.testing.assert_allclose(model.embed("the cat and the dog"), expected / np.linalg.norm(expected), atol=2e-5)


def test_unnormalized(data: Path, tmp_path: Path, device: str) -> None:
    path = rewrite(data / "bert-tiny-llamacpp.gguf", tmp_path / "m.gguf", {"hotshoe.embedding.normalize": False})
    with hotshoe.load_model(path, device) as model:
        states = model.hidden_states("the cat")
        np.testing.assert_allclose(model.embed("the cat"), states.mean(axis=0), atol=2e-5)


def test_memory_and_closing(tiny: EmbeddingModel) -> None:
    before = tiny.memory().total
    assert before > 0
    tiny.embed("the cat")
    assert tiny.memory().total > before
    tiny.close()
    tiny.close()
    assert tiny.memory().total == 0
    with pytest.raises(ClosedError, match="load_model"):
        tiny.embed("the cat")


def test_progress_reaches_the_end_and_can_cancel(data: Path, device: str) -> None:
    seen: list[float] = []
    with hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", device, progress=seen.append) as model:
        model.embed(["a", "b c", "d"], batch_size=1, progress=seen.append)
    assert seen[-1] == 1.0
    assert seen == sorted(seen[: seen.index(1.0) + 1]) + seen[seen.index(1.0) + 1 :]

    def cancel(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", device, progress=cancel)


# Bad input


def test_too_long_unless_cut(tiny: EmbeddingModel) -> None:
    long = "the cat " * 200
    with pytest.raises(InputTooLongError, match=r"text 1 .*tokens; the context holds 64[\s\S]*truncate=True"):
        tiny.embed(["short", long])
    cut = tiny.embed(long, truncate=True)
    assert np.isfinite(cut).all()


def test_n_ctx(data: Path, device: str) -> None:
    with hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", device, n_ctx=8) as model:
        with pytest.raises(InputTooLongError, match="holds 8"):
            model.embed("the cat and the dog and the cat")
    with pytest.raises(ModelError, match="trained for at most 64 tokens"):
        hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", device, n_ctx=65)


def test_wrong_arguments(tiny: EmbeddingModel) -> None:
    with pytest.raises(ShapeError, match="batch_size is 0"):
        tiny.embed(["a"], batch_size=0)
    with pytest.raises(InputTypeError, match=r"texts\[0\] is 1 \(int\); expected str"):
        tiny.embed([1])  # type: ignore[list-item]
    with pytest.raises(InputTypeError, match=r"texts is 1 .*; expected a text or an iterable of texts"):
        tiny.embed(1)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"truncate is array.*; expected True or False"):
        tiny.embed("a", truncate=np.zeros(0))  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"progress is 3 .*; expected a function"):
        tiny.embed(["a"], progress=3)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"ids is True .*; expected an iterable of token ids"):
        tiny.tokenizer.decode(True)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match=r"token id 1.5 \(float\); expected an integer below"):
        tiny.tokenizer.decode([1.5])  # type: ignore[list-item]


def test_no_such_device(data: Path) -> None:
    with pytest.raises(DeviceNotFoundError, match="cuda"):
        hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", "cuda")


def test_folders(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="hotshoe convert"):
        hotshoe.load_model(data / "bert-tiny")
    with pytest.raises(ModelFileError, match="is a folder"):
        hotshoe.load_model(tmp_path)


def test_unknown_architecture(data: Path, tmp_path: Path) -> None:
    path = rewrite(data / "bert-tiny-llamacpp.gguf", tmp_path / "m.gguf", {"general.architecture": "brt"})
    with pytest.raises(UnknownArchitectureError, match=r"m\.gguf.*'brt'[\s\S]*docs/families\.md lists"):
        hotshoe.load_model(path)


def test_missing_and_extra_tensors(data: Path, tmp_path: Path) -> None:
    source = data / "bert-tiny-llamacpp.gguf"
    path = rewrite(source, tmp_path / "less.gguf", drop="blk.1.ffn_up.weight")
    with pytest.raises(WeightsError, match=r"missing \(1\): blk\.1\.ffn_up\.weight"):
        hotshoe.load_model(path)
    path = rewrite(source, tmp_path / "other.gguf", rename=("blk.1.ffn_up.weight", "blk.1.ffn_up_.weight"))
    with pytest.raises(
        WeightsError, match=r"hint: instead of blk\.1\.ffn_up\.weight the file has blk\.1\.ffn_up_\.weight; "
    ):
        hotshoe.load_model(path)
    path = rewrite(source, tmp_path / "more.gguf", rename=("blk.1.ffn_up.bias", "blk.1.ffn_gate.bias"))
    with pytest.raises(WeightsError, match=r"does not use some tensors \(1\): blk\.1\.ffn_gate\.bias"):
        hotshoe.load_model(path)


def test_a_tensor_of_the_wrong_shape(data: Path, tmp_path: Path) -> None:
    path = rewrite(data / "bert-tiny-llamacpp.gguf", tmp_path / "m.gguf", transpose="blk.0.ffn_up.weight")
    with pytest.raises(WeightsError, match=r"blk\.0\.ffn_up"):
        hotshoe.load_model(path)


def test_no_pooling(data: Path, tmp_path: Path) -> None:
    path = rewrite(data / "bert-tiny-llamacpp.gguf", tmp_path / "m.gguf", {"bert.pooling_type": 0})
    with pytest.raises(ModelFileError, match=r"bert\.pooling_type"):
        hotshoe.load_model(path)


def test_a_tokenizer_alone(data: Path) -> None:
    tokenizer = hotshoe.load_tokenizer(data / "bert-tiny-llamacpp.gguf")
    with GGUFFile(data / "bert-tiny-llamacpp.gguf") as file:
        assert tokenizer.vocab_size == len(file.metadata["tokenizer.ggml.tokens"])


def test_texts_of_several_callers_are_one_batch(tiny: EmbeddingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "b", "d", "e", "g", "h"]
    expected = [tiny.embed(text) for text in texts]
    sizes: list[int] = []
    compute = tiny._compute
    monkeypatch.setattr(tiny, "_compute", lambda ids, *a, **k: sizes.append(len(ids)) or compute(ids, *a, **k))
    found: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, tiny.embed(texts[i])))  # type: ignore[misc]
        for i in range(len(texts))
    ]
    with tiny._lock:  # the device is busy
        for thread in threads:
            thread.start()
        while len(tiny._waiting) < len(texts):
            pass
    for thread in threads:
        thread.join(60)
    assert sizes == [6]
    for i, vector in enumerate(expected):
        np.testing.assert_allclose(found[i], vector, atol=1e-5)
    assert tiny._waiting == []


def test_a_text_that_fails_fails_alone(tiny: EmbeddingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in one row of a batch is for the caller of that row."""
    expected, compute = tiny.embed("b"), tiny._compute

    def damaged(ids: list[list[int]], *args: object, **options: object) -> np.ndarray:
        rows = compute(ids, *args, **options).copy()  # type: ignore[arg-type]
        rows[[len(i) > 4 for i in ids]] = np.nan
        return rows

    monkeypatch.setattr(tiny, "_compute", damaged)
    results: dict[str, object] = {}

    def embed(text: str) -> None:
        try:
            results[text] = tiny.embed(text)
        except hotshoe.HotshoeError as error:
            results[text] = error

    threads = [threading.Thread(target=embed, args=(text,)) for text in ("the river bank of the town", "b")]
    with tiny._lock:
        for thread in threads:
            thread.start()
        while len(tiny._waiting) < 2:
            pass
    for thread in threads:
        thread.join(60)
    np.testing.assert_allclose(results["b"], expected, atol=1e-5)  # type: ignore[arg-type]
    assert "NaN or infinity" in str(results["the river bank of the town"])
