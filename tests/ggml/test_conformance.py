"""The conformance kit on the ggml CPU backend, opened through the loader as a user does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.testing import GRAPH_CASES, OP_CASES, BackendConformance, Case, OpConformance
from hotshoe_core.testing.run import AnyCase

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_loader import load_all


def _is_large(case: AnyCase) -> bool:
    return isinstance(case, Case) and any(a is not None and math.prod(a.shape) > 4096 for a in case.args)


class Ggml:
    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open("cpu", params)


class TestGgmlCpu(Ggml, BackendConformance):
    params = BackendParams(n_threads=1)


class TestTwoThreads(Ggml, OpConformance):
    params = BackendParams(n_threads=2)  # one class only: threads that wait for each other are slow on a busy machine

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        named = ("a_decoder_layer", "a_deep_graph")
        return [c for c in super().cases() if c.id in named or _is_large(c)]


class TestWithoutRepacking(Ggml, OpConformance):
    params = BackendParams(n_threads=1, repack=False)

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        return [c for c in OP_CASES if any(a is not None and a.uses for a in c.args)]


class TestFlashAttention(Ggml, OpConformance):
    params = BackendParams(n_threads=2, flash_attention="on")

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        named = ("a_state_of_three_axes", "a_decoder_layer")
        return [*(c for c in OP_CASES if c.op == "attention"), *(g for g in GRAPH_CASES if g.id in named)]

    def tolerance(self, case: AnyCase) -> float:
        return max(super().tolerance(case), 4e-3)  # the fused kernel multiplies and adds values in half precision
