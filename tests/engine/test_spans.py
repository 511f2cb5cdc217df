"""Spans of embeddings among tokens, as for an image or a sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.runner.items import EmbeddingSpan, Items, SpanRow, n_common
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import GraphError, InputTooLongError, ShapeError, TokenizerError
from tests.support.text_models import assert_close, load
from tests.support.tiny_text import state_dict

RNG = np.random.default_rng(3)
IDS = RNG.integers(2, 250, 30).tolist()
DIM = 64


@pytest.fixture(scope="module")
def table(folder: Callable[..., Path]) -> np.ndarray:
    """The token embeddings of the tiny llama: (vocab, dim)."""
    return state_dict(folder("LlamaForCausalLM"))["model.embed_tokens.weight"]


def test_embeddings_of_tokens_are_as_good_as_the_tokens(
    table: np.ndarray, device: str, gguf: Callable[..., Path]
) -> None:
    for n_batch in (512, 7):
        with load(gguf("LlamaForCausalLM"), device, n_batch=n_batch) as model:
            expected = model.logits(IDS)
            items = [
                *IDS[:5],
                EmbeddingSpan(table[IDS[5:12]]),
                *IDS[12:20],
                EmbeddingSpan(table[IDS[20:21]]),
                *IDS[21:],
            ]
            assert_close(model.logits(items), expected)
            with model.sequence(items[:6]) as sequence:
                assert (len(sequence), sequence.ids) == (12, IDS[:5])
                assert_close(sequence.append(), expected[11])
                assert_close(sequence.append(*items[6:]), expected[-1])
            streamed = model.generate(items, max_tokens=3, temperature=0)
            assert streamed.tokens == model.generate(IDS, max_tokens=3, temperature=0).tokens


def test_a_bidirectional_span_sees_all_of_itself(
    table: np.ndarray, device: str, folder: Callable[..., Path], gguf: Callable[..., Path]
) -> None:
    torch = pytest.importorskip("torch", reason="the reference logits need torch")
    transformers = pytest.importorskip("transformers", reason="the reference logits need transformers")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder("LlamaForCausalLM"), dtype=torch.float32
    ).eval()
    start, stop = 6, 15
    seen = torch.tril(torch.ones(30, 30, dtype=torch.bool))
    seen[start:stop, start:stop] = True
    with torch.no_grad():
        mask = torch.where(seen, 0.0, -torch.inf)[None, None]
        expected = reference(torch.tensor([IDS]), attention_mask=mask).logits[0].numpy()
    span = EmbeddingSpan(table[IDS[start:stop]], bidirectional=True)
    for n_batch, n_ubatch in ((512, None), (10, 9)):
        with load(gguf("LlamaForCausalLM"), device, n_batch=n_batch, n_ubatch=n_ubatch) as model:
            assert_close(model.logits([*IDS[:start], span, *IDS[stop:]]), expected)
            with model.sequence([*IDS[:start], span]) as sequence:
                assert_close(sequence.append(), expected[stop - 1])
                assert_close(sequence.append(*IDS[stop:]), expected[-1])


def test_prefixes_match_by_content(table: np.ndarray, model: TextModel) -> None:
    def items(embeddings: np.ndarray, *after: int, **options: Any) -> list[Any]:
        return [*IDS[:4], EmbeddingSpan(embeddings, **options), *after]

    same, other = table[IDS[4:10]], table[IDS[5:11]]

    def n_cached(given: list[Any]) -> int:
        return model.generate(given, max_tokens=1).n_cached

    assert n_cached(items(same, 5, 6)) == 0
    assert n_cached(items(same.copy(), 5, 7)) == 11
    assert n_cached(items(other, 5, 6)) == 4
    assert n_cached([*IDS[:10], 5, 6]) == 4  # tokens are not embeddings
    assert n_cached(items(same, 5, 6, hash=b"mine")) == 4
    assert n_cached(items(other, 5, 6, hash=b"mine")) == 11  # an explicit hash decides
    assert n_cached(items(same, 5, 6, bidirectional=True)) == 4
    assert n_cached(items(same, bidirectional=True)) == 4  # its last row is needed, so the whole span is computed
    assert n_cached(items(same, 5, 8, bidirectional=True)) == 11


def test_positions_of_a_spans_own(table: np.ndarray, device: str, gguf: Callable[..., Path]) -> None:
    """The item after a span continues after its largest position. RoPE depends only on distances."""
    with load(gguf("LlamaForCausalLM", num_hidden_layers=1), device) as model:
        one_place = EmbeddingSpan(table[[7, 8, 9]], positions=np.zeros(3, int))
        logits = model.sequence([*IDS[:3], one_place, *IDS[6:9]]).append()
        in_place = EmbeddingSpan(table[[9, 7, 8]], positions=np.zeros(3, int))  # the same, in another order
        assert_close(model.sequence([*IDS[:3], in_place, *IDS[6:9]]).append(), logits, 1e-4)
        plain = model.sequence([*IDS[:3], EmbeddingSpan(table[[7, 8, 9]]), *IDS[6:9]]).append()
        assert np.abs(plain - logits).max() > 1e-2
        with model.sequence([*IDS[:3], one_place, *IDS[6:9]]) as sequence:
            with pytest.raises(GraphError, match="positions of its own"):
                sequence.shift(0, 2)


def test_positions_beyond_32_bits_are_refused(table: np.ndarray, model: TextModel) -> None:
    """They wrapped to negative numbers."""
    for numbers in ([0, 2**31], [0, 2**32], [0, 2**63 - 1]):
        with pytest.raises(ShapeError, match=rf"are 0 to {numbers[1]}; expected 0 to 2147483647"):
            EmbeddingSpan(table[:2], positions=np.array(numbers))
    far = [EmbeddingSpan(table[i : i + 1], positions=np.array([2**30])) for i in range(2)]
    assert np.isfinite(model.logits([3, far[0], 4])).all()
    with pytest.raises(ShapeError, match=r"the sequence would reach position 2147\d{6}; expected at most 2147483647"):
        model.logits([3, *far, 4])
    with model.sequence([3, far[0]]) as sequence:
        before = sequence.append()
        with pytest.raises(ShapeError, match="would reach position"):
            sequence.append(far[1])
        assert len(sequence) == 2
        assert np.array_equal(sequence.append(), before)


def test_positions_go_on_after_the_largest() -> None:
    rng = np.random.default_rng(0)
    grid = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    items = Items([5, 6, EmbeddingSpan(rng.random((4, 2)), positions=grid), 7, EmbeddingSpan(rng.random((2, 2))), 8])
    expected = np.array(
        [[0, 1, 2, 2, 2, 2, 4, 5, 6, 7], [0, 1, 2, 2, 3, 3, 4, 5, 6, 7], [0, 1, 2, 3, 2, 3, 4, 5, 6, 7]]
    )
    assert (items.positions(0, 10, 3) == expected).all()
    for start in range(10):
        for n in range(1, 11 - start):
            assert (items.positions(start, n, 3) == expected[:, start : start + n]).all()
    flat = Items([5, EmbeddingSpan(rng.random((2, 2)), positions=np.array([3, 1])), 9])
    assert flat.positions(0, 4).tolist() == [0, 4, 2, 5]


def test_items_are_cut_between_spans() -> None:
    items = Items([1, EmbeddingSpan(np.ones((3, 2)), bidirectional=True), 2, 3, EmbeddingSpan(np.ones((2, 2)))])
    assert items.bidirectional == ((1, 4),)
    assert [items.outside_span(n) for n in (0, 1, 2, 3, 4, 7)] == [0, 1, 1, 1, 4, 7]
    for n in (2, 3, 7):
        with pytest.raises(GraphError, match="in the middle of a span"):
            items.truncate(n)
    with pytest.raises(GraphError, match="in the middle"):
        items.cut(0, 2)
    items.cut(0, 4)
    assert [row if isinstance(row, int) else row.index for row in items.rows] == [2, 3, 0, 1]
    assert [at.start for at in items.spans] == [2]
    arrays, rows = items.embeddings(1, 2)
    assert (len(arrays), rows) == (1, [1])
    assert n_common(items.rows, [2, 3, *items.rows[2:3]]) == 3
    assert isinstance(items.rows[2], SpanRow)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite(value: float) -> None:
    array = np.ones((3, 2))
    array[1, 1] = value
    with pytest.raises(GraphError, match="row 1 of a span of embeddings has NaN or infinity"):
        EmbeddingSpan(array)


def test_a_span_keeps_its_values() -> None:
    """The caller may use the array again, for the next picture."""
    array = np.ones((3, 2), np.float32)
    span = EmbeddingSpan(array)
    array[:] = np.nan
    assert (span.array == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        span.array[0] = 2


def test_wrong_spans_and_items(table: np.ndarray, gguf: Callable[..., Path]) -> None:
    for wrong, error, message in (
        (lambda: EmbeddingSpan(np.ones(3)), ShapeError, "rows, dim"),
        (
            lambda: EmbeddingSpan(np.ones((3, 2)), positions=np.arange(2)),
            ShapeError,
            r"expected integers of shape \(3,\)",
        ),
        (lambda: EmbeddingSpan(np.ones((3, 2)), positions=np.arange(3) - 1), ShapeError, "are -1 to 1; expected 0 to"),
        (lambda: Items([1.5]), TokenizerError, r"1\.5 \(float\)"),
        (lambda: Items([True]), TokenizerError, "bool"),
        (lambda: Items(b"abc"), TokenizerError, "bytes; expected token ids"),
        (lambda: Items(["a"]), TokenizerError, "str"),
        (lambda: Items(np.array([1.0])), TokenizerError, "float"),
    ):
        with pytest.raises(error, match=message):
            wrong()
    with load(gguf("LlamaForCausalLM"), "reference", n_batch=8) as model:
        with pytest.raises(ShapeError, match="the model takes rows of 64"):
            model.sequence([EmbeddingSpan(np.ones((3, 2)))])
        with pytest.raises(InputTooLongError, match="at most n_ubatch=8"):
            model.sequence([EmbeddingSpan(table[:9], bidirectional=True)])
        with pytest.raises(ShapeError, match="3 streams of positions; the model takes one"):
            model.sequence([EmbeddingSpan(table[:2], positions=np.zeros((3, 2), int))])
