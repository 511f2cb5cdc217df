"""What calls of the API are given that few parameters expect, and what they are tried on."""

from __future__ import annotations

import decimal
import fractions
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.reranker import RerankModel
from hotshoe.runner.text import TextModel
from hotshoe.sampling import SamplingParams
from hotshoe_core import BackendParams, DType, constant
from hotshoe_core.contract.backend import Backend

__all__ = ["OwnError", "World", "odd", "raise_own"]


class OwnError(Exception):
    """What a user's own iterable or callback raises: it must come out as it is."""


class World(NamedTuple):
    """What the calls are tried on, and what must stay true of it."""

    model: TextModel
    other: TextModel
    encoder: EmbeddingModel
    reranker: RerankModel
    backends: tuple[Backend, ...]
    greedy: str
    vectors: np.ndarray[Any, Any]


CONSTANTS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 1.5, 1e300, float("nan"), float("inf"), 2**31, 2**63, -(2**63), 10**30, 3 + 4j),
    *("", "x", "\ud800", "\x1b[31m", "the cat", b"the", (), range(3)),
    *(int, str, np, Exception, object(), repr, Path("x")),
    *(decimal.Decimal("1.5"), fractions.Fraction(1, 3), ..., slice(1, 2), DType.F16),
    *(np.int64(3), np.float32(1), np.bool_(True)),
)


def odd(rng: random.Random, world: World) -> Any:
    """A value that few parameters expect."""
    if rng.random() < 0.5:
        return rng.choice(CONSTANTS)
    made: tuple[Callable[[], Any], ...] = (
        *(list, dict, set, lambda: [None], lambda: ["a", 1], lambda: [True], lambda: [5, 6], lambda: [[5], ["x"]]),
        *(lambda: {"a": 1}, lambda: {1: float("nan")}, lambda: {5, 6}, lambda: bytearray(b"ab"), lambda: [[]]),
        *(lambda: np.array([1, 2]), lambda: np.array([[1.5]]), lambda: np.array("x"), lambda: np.zeros(0)),
        *(lambda: np.array([object()]), lambda: np.zeros((2, 3), np.float32), lambda: np.array([2**63], np.uint64)),
        *(lambda: (i for i in (5, 6)), _raising, lambda: iter("ab"), threading.Lock, SamplingParams, BackendParams),
        *(lambda: world.model, lambda: world.other.sequence([5]), lambda: world.model.sequence([5])),
        *(lambda: constant([1.0]), lambda: EmbeddingSpan(np.zeros((2, 8), np.float32)), lambda: memoryview(b"abc")),
        *(lambda: [{"role": "user", "content": "Hi"}], lambda: type("Text", (str,), {})("the")),
    )
    return rng.choice(made)()


def _raising() -> Iterator[int]:
    yield 5
    raise OwnError


def raise_own(*_: Any, **__: Any) -> Any:
    raise OwnError
