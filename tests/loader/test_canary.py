"""The canary: its numbers are the same as NumPy's, and an op with an error of 1 % is found and named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.reference import numpy_library, reference_device
from hotshoe_loader import canary
from hotshoe_loader.verdict import Outcome, Rejected

OPS = ("add", "mul", "take", "linear", "silu", "softmax", "rms_norm")


def test_the_expected_numbers_are_numpys():
    x, w, bias = (np.array(values, np.float64) for values in (canary._X, canary._W, canary._BIAS))
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    right = {
        "add": x + bias,
        "mul": x * bias,
        "take": w[canary._INDICES],
        "linear": x @ w.T,
        "silu": x / (1 + np.exp(-x)),
        "softmax": powers / powers.sum(axis=-1, keepdims=True),
        "rms_norm": x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + canary._EPS),
    }
    found = canary.expected()
    assert tuple(found) == OPS
    for op, wanted in right.items():
        np.testing.assert_allclose(found[op], wanted, rtol=1e-12, err_msg=op)


class Spoiled:
    """A provider of the reference backend with one wrong op; composites are then not decomposed."""

    name = "spoiled"

    def __init__(self, op: str, spoil):
        self.op, self.spoil = op, spoil

    def open(self, devices, params: BackendParams):
        library = numpy_library()
        functions = dict(library.functions)
        right = functions.get(self.op, rms_norm)
        functions[self.op] = lambda *arrays, **attributes: self.spoil(right(*arrays, **attributes))
        return EagerBackend(self.name, devices, params, dataclasses.replace(library, functions=functions))


def rms_norm(x, weight=None, *, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def test_correct_results_pass():
    canary.check_canary(Spoiled("rms_norm", lambda y: y), reference_device())


def one_wrong(y):
    y = y.copy()
    y.flat[-1] += 0.02 * np.abs(y).max()
    return y


SPOILS = {
    "1 %": lambda y: y * np.float32(1.01),
    "minus 1 %": lambda y: y * np.float32(0.99),
    "one number": one_wrong,
    "NaN": lambda y: y * np.float32("nan"),
    "infinite": lambda y: y + np.float32("inf"),
    "zero": lambda y: y * np.float32(0),
    "rows swapped": lambda y: y[::-1],
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("op", OPS)
def test_each_op_is_named_when_it_is_wrong(op, spoil):
    with pytest.raises(Rejected) as caught:
        canary.check_canary(Spoiled(op, SPOILS[spoil]), reference_device())
    assert caught.value.outcome is Outcome.WRONG_RESULT
    assert f"reference computes wrong numbers: {op} gives [" in caught.value.reason
    assert op in caught.value.details["ops"]


@pytest.mark.parametrize("op", OPS)
def test_rounding_to_f16_is_not_an_error(op):
    canary.check_canary(Spoiled(op, lambda y: y.astype(np.float16).astype(np.float32)), reference_device())


def test_an_op_that_no_other_op_uses_is_named_alone():
    with pytest.raises(Rejected) as caught:
        canary.check_canary(Spoiled("linear", SPOILS["1 %"]), reference_device())
    assert caught.value.details["ops"] == ["linear"]
    assert "also wrong" not in caught.value.reason
