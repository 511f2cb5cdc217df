"""RerankModel and embedding by a causal model against transformers, as sentence-transformers uses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

import hotshoe
from hotshoe.convert import convert
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.pooling import Pooling
from hotshoe.runner.reranker import RerankModel, _sigmoid
from hotshoe_core import Context
from hotshoe_core.errors import BackendError, ClosedError, InputTooLongError, InputTypeError, ModelFileError, ShapeError
from tests.support.recorded import make_recorded
from tests.support.rewrite import rewrite
from tests.support.tiny_text import COMMON, make_tokenizer

QUERY = "the cat"
DOCUMENTS = ["a dog", "the cat and the dog", "cat", "", "the the the the the the the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recorded("BertForSequenceClassification", tmp_path_factory.mktemp("rerank") / "hf")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return convert(folder, folder.parent / "m.gguf", "f32")


@pytest.fixture
def reranker(path: Path, device: str) -> Iterator[RerankModel]:
    with hotshoe.load_model(path, device) as model:
        assert isinstance(model, RerankModel)
        yield model


def logits_of(folder: Path, reranker: RerankModel) -> np.ndarray:
    """Return transformers' logit of each document, computed one by one."""
    torch = pytest.importorskip("torch", reason="the reference scores need torch")
    transformers = pytest.importorskip("transformers", reason="the reference scores need transformers")
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    logits = []
    for document in DOCUMENTS:
        ids, types = reranker.tokenizer.encode_pair(QUERY, document)
        with torch.no_grad():
            logits.append(oracle(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0, 0].item())
    return np.array(logits)


def test_scores_are_those_of_transformers(reranker: RerankModel, folder: Path) -> None:
    expected = 1 / (1 + np.exp(-logits_of(folder, reranker)))
    assert np.ptp(expected) > 0.01
    pairs = [(QUERY, document) for document in DOCUMENTS]
    scores = reranker.scores(pairs)
    assert (scores.shape, scores.dtype) == ((5,), np.float32)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_allclose(reranker.scores(pairs, batch_size=2), expected, atol=1e-5)
    order = np.argsort(-expected).tolist()
    ranked = reranker.rank(QUERY, DOCUMENTS)
    assert [i for i, _ in ranked] == order
    np.testing.assert_allclose([s for _, s in ranked], expected[order], atol=1e-5)
    assert reranker.rank(QUERY, DOCUMENTS, top_n=2) == ranked[:2]
    assert reranker.rank(QUERY, []) == []


def test_the_file_says_what_becomes_of_a_score(path: Path, folder: Path, tmp_path: Path, device: str) -> None:
    plain = rewrite(path, tmp_path / "plain.gguf", {"hotshoe.rerank.activation": "identity"})
    with hotshoe.load_model(plain, device) as model:
        assert isinstance(model, RerankModel)
        scores = model.scores([(QUERY, document) for document in DOCUMENTS])
        np.testing.assert_allclose(scores, logits_of(folder, model), atol=1e-4)
    wrong = rewrite(path, tmp_path / "wrong.gguf", {"hotshoe.rerank.activation": "tanh"})
    with pytest.raises(ModelFileError, match=r"hotshoe\.rerank\.activation: is 'tanh'"):
        hotshoe.load_model(wrong, device)
    wrong = rewrite(path, tmp_path / "mean.gguf", {"bert.pooling_type": 0})
    with pytest.raises(ModelFileError, match="pooling type 0"):
        hotshoe.load_model(wrong, device, task="rerank")


def test_wrong_pairs(reranker: RerankModel) -> None:
    with pytest.raises(InputTooLongError, match=r"pair 1 [\s\S]*truncate=True"):
        reranker.scores([(QUERY, "a"), (QUERY, "the cat " * 200)])
    assert np.isfinite(reranker.scores([(QUERY, "the cat " * 200)], truncate=True)).all()
    with pytest.raises(ShapeError, match="top_n is 0"):
        reranker.rank(QUERY, DOCUMENTS, top_n=0)
    with pytest.raises(ShapeError, match="batch_size is 0"):
        reranker.scores([], batch_size=0)
    with pytest.raises(InputTypeError, match=r"documents is 'a text'.*; expected an iterable of texts"):
        reranker.rank(QUERY, "a text")  # not the letters of it
    with pytest.raises(InputTypeError, match=r"truncate is 1 "):
        reranker.rank(QUERY, DOCUMENTS, truncate=1)  # type: ignore[arg-type]
    reranker.close()
    with pytest.raises(ClosedError):
        reranker.scores([(QUERY, "a")])


def test_nan_of_a_reranker_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hotshoe.load_model(path, "reference") as model:
        assert isinstance(model, RerankModel)
        read = Context.read

        def broken(self: Context, *args: Any, **kwargs: Any) -> np.ndarray:
            out = read(self, *args, **kwargs)
            out[-1] = np.nan
            return out

        monkeypatch.setattr(Context, "read", broken)
        with pytest.raises(BackendError, match="NaN or infinity on reference"):
            model.rank(QUERY, DOCUMENTS)


def test_a_users_seterr_changes_no_score(reranker: RerankModel) -> None:
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = reranker.scores(pairs)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(reranker.scores(pairs), expected)
        np.testing.assert_array_equal(_sigmoid(np.array([-2000.0, 0, 2000])), [0, 0.5, 1])


def test_a_causal_model_embeds_by_its_last_token(tmp_path: Path, device: str) -> None:
    torch = pytest.importorskip("torch", reason="the reference vectors need torch")
    transformers = pytest.importorskip("transformers", reason="the reference vectors need transformers")
    folder = make_recorded("Qwen3Embedding", tmp_path / "hf")
    oracle = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    texts = ["the quick brown fox", "hello", "the camera has a hot shoe; the flash is on the camera", "3 33 333"]
    with hotshoe.load_model(convert(folder, tmp_path / "m.gguf", "f32"), device) as model:
        assert isinstance(model, EmbeddingModel)
        assert (model.causal, model.pooling) == (True, Pooling.LAST)
        expected: list[Any] = []
        for text in texts:
            with torch.no_grad():
                state = oracle(torch.tensor([model.tokenizer.encode(text)])).last_hidden_state[0, -1]
            expected.append((state / state.norm()).numpy())
        np.testing.assert_allclose(model.embed(texts), np.stack(expected), atol=2e-5)
        np.testing.assert_allclose(model.embed(texts, batch_size=1), np.stack(expected), atol=2e-5)


YES, NO = 70, 71  # of the tiny vocabulary, in place of "yes" and "no"
TEMPLATE = "judge: {query}\nby {document}\nnow"


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make the folder of a text model, and the reranker that llama.cpp's converter makes of it (Qwen3-Reranker)."""
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = make_recorded("Qwen3ForCausalLM", tmp_path_factory.mktemp("causal") / "hf")
    head = safetensors.load_file(folder / "model.safetensors")["lm_head.weight"].astype(np.float32)
    plain = convert(folder, folder.parent / "text.gguf", "f32")
    metadata = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"]}
    metadata["tokenizer.chat_template.rerank"] = TEMPLATE
    return folder, rewrite(plain, folder.parent / "m.gguf", metadata, add={"cls.output.weight": head[[YES, NO]]})


def test_a_causal_model_ranks_by_the_probability_of_yes(causal: tuple[Path, Path], device: str) -> None:
    torch = pytest.importorskip("torch", reason="the reference scores need torch")
    transformers = pytest.importorskip("transformers", reason="the reference scores need transformers")
    folder, path = causal
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    documents = ["a dog", "the cat and the dog", "{query}", ""]
    with hotshoe.load_model(path, device) as model:
        assert isinstance(model, RerankModel)
        expected: list[float] = []
        for document in documents:
            ids = model.tokenizer.encode(f"judge: {QUERY}\nby {document}\nnow", add_special=False)
            with torch.no_grad():
                logits = oracle(torch.tensor([ids])).logits[0, -1, [YES, NO]]
            expected.append(logits.softmax(-1)[0].item())
        assert np.ptp(expected) > 0.01
        scores = model.scores([(QUERY, document) for document in documents])
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_a_document_is_cut_so_that_the_template_stays_whole(causal: tuple[Path, Path], device: str) -> None:
    with hotshoe.load_model(causal[1], device, n_ctx=40) as model:
        assert isinstance(model, RerankModel)
        long = "the camera has a hot shoe " * 20
        with pytest.raises(InputTooLongError, match=r"pair 0 [\s\S]*truncate=True"):
            model.scores([(QUERY, long)])
        ((ids, _),) = model._encode([(QUERY, long)], truncate=True)
        text = model.tokenizer.decode(ids, skip_special=False)
        assert len(ids) <= 40
        assert text.startswith(f"judge: {QUERY}\nby the camera has a hot")
        assert text.endswith("\nnow")
        with pytest.raises(InputTooLongError, match="pair 0"):
            model.scores([(long, "a")], truncate=True)


def test_a_template_without_its_blanks(causal: tuple[Path, Path], tmp_path: Path, device: str) -> None:
    wrong = rewrite(causal[1], tmp_path / "m.gguf", {"tokenizer.chat_template.rerank": "no blanks {query}"})
    with pytest.raises(ModelFileError, match=r"chat_template\.rerank: expected a text with \{query\} and \{document\}"):
        hotshoe.load_model(wrong, device)


@pytest.fixture(scope="module", params=["cls", "mean"])
def modern(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ModernBERT with a classifier: it reads the first token, or the mean of all."""
    torch = pytest.importorskip("torch", reason="the tiny model needs torch")
    transformers = pytest.importorskip("transformers", reason="the tiny model needs transformers")
    folder: Path = tmp_path_factory.mktemp("modern") / "hf"
    sizes = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"} | {"pad_token_id": 1}
    config = transformers.ModernBertConfig(
        **sizes, local_attention=10, cls_token_id=0, sep_token_id=1, num_labels=1, classifier_pooling=request.param
    )
    torch.manual_seed(0)
    model = transformers.ModernBertForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape) * (0.2 if value.ndim < 2 else 1.5 / value.shape[-1] ** 0.5)
            value.copy_(noise + (1.0 if name.endswith("norm.weight") else 0.0))
    model.save_pretrained(folder)
    make_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin, end = "<|begin|>", "<|end|>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B {end}", special_tokens=[(begin, 0), (end, 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_modern_bert_scores_as_transformers_does(modern: Path, device: str) -> None:
    path = convert(modern, modern.parent / "m.gguf", "f32", overwrite=True)
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(modern, dtype=torch.float32).eval()
    with hotshoe.load_model(path, device) as model:
        assert isinstance(model, RerankModel)
        pairs = [(QUERY, document) for document in DOCUMENTS]
        ids = [model.tokenizer.encode_pair(*pair)[0] for pair in pairs]
        with torch.no_grad():
            expected = torch.cat([oracle(torch.tensor([each])).logits[0] for each in ids]).sigmoid().numpy()
        assert np.ptp(expected) > 0.01
        np.testing.assert_allclose(model.scores(pairs), expected, atol=1e-5)


def test_a_modern_bert_reranker_must_say_how_it_pools(modern: Path, tmp_path: Path) -> None:
    path = convert(modern, modern.parent / "m.gguf", "f32", overwrite=True)
    wrong = rewrite(path, tmp_path / "wrong.gguf", {"modern-bert.classifier.pooling_type": 3})
    with pytest.raises(ModelFileError, match=r"classifier\.pooling_type"):
        hotshoe.load_model(wrong, "reference")
