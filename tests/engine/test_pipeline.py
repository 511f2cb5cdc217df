"""What a step leaves to the device, with a fake model: rows that are prepared meanwhile, errors, and other work."""

from __future__ import annotations

import numpy as np
import pytest

from hotshoe_core.errors import SamplingError
from tests.support.engine_rig import PROMPT, Rig, Work, expected


@pytest.mark.parametrize("uniform", [False, True])
def test_the_device_computes_while_a_token_is_read(uniform: bool) -> None:
    rig = Rig(asynchronous=True, uniform=uniform)
    generation = rig.generation([1, 2, 3])
    read = []
    for i in range(5):
        token = rig.engine.next(generation)
        assert token is not None
        read.append(token.sampled.id)
        assert (rig.forward.running is not None) == (i < 4)
    assert read == expected([1, 2, 3])
    assert rig.engine.next(generation) is None
    assert sum(rig.forward.graphs) == 7
    assert rig.cache.length(0) == 7  # the last token is not computed


def test_the_next_part_of_a_prompt_is_prepared_while_the_device_computes() -> None:
    rig = Rig(asynchronous=True, n_batch=64)
    assert rig.read(rig.generation(PROMPT, n=1)) == expected(PROMPT, 1)
    assert rig.forward.graphs == [32] * 16
    during = " ".join(rig.forward.calls).split("start")[1:]  # what came after each start, until the next
    assert [calls.split("finish")[0].count("compile") for calls in during] == [1] * 15 + [0]


@pytest.mark.parametrize("uniform", [False, True])
def test_a_row_that_was_prepared_for_nothing_leaves_no_trace(uniform: bool) -> None:
    """A text ends by a token that nobody could foresee. Its state goes on serving others."""
    rig = Rig(asynchronous=True, uniform=uniform)
    tokens = expected([1, 2, 3], 6)
    other = rig.generation([9, 8], n=9)
    rig.engine.add(other)
    generation = rig.generation([1, 2, 3], n=9, stop=tokens[4])
    assert rig.read(generation) == tokens[:4]
    assert rig.read(other) == expected([9, 8], 9)
    rig.engine.remove(generation)
    n = sum(rig.forward.graphs)
    assert rig.read(rig.generation([1, 2, 3, *tokens[:4], 7])) == expected([1, 2, 3, *tokens[:4], 7])
    assert sum(rig.forward.graphs) - n == 5  # its rows were found


@pytest.mark.parametrize("action", ["shift", "close", "turn"])
def test_other_work_waits_for_the_device(action: str) -> None:
    rig = Rig(asynchronous=True)
    generation, other = rig.generation([1, 2, 3]), rig.sequence([4, 5, 6])
    rig.engine.next(generation), rig.engine.next(generation)
    assert rig.forward.running is not None
    done: list[object] = []
    if action == "shift":
        other.shift(0, 1)
    elif action == "close":
        rig.engine.close(lambda: done.append(rig.forward.running))
    else:
        rig.engine.in_turn(lambda: done.append(rig.forward.running))
    assert rig.forward.running is None
    assert done == ([] if action == "shift" else [None])
    assert [token.sampled.id for token in generation.ready_results] == expected([1, 2, 3])[2:3]
    if action != "close":
        assert rig.read(generation) == expected([1, 2, 3])[2:]


def test_a_device_that_fails_after_a_step() -> None:
    """The reader gets the error once, and may go on. If another thread met it, the text has ended."""
    rig = Rig(asynchronous=True)
    generation = rig.generation([1, 2, 3], n=9)
    read = [rig.engine.next(generation), rig.engine.next(generation)]
    rig.forward.failure = RuntimeError("the device burns")
    with pytest.raises(RuntimeError, match="burns"):
        rig.engine.next(generation)
    assert rig.cache.length(0) == 4  # the row that failed is gone
    read += [rig.engine.next(generation), rig.engine.next(generation)]
    assert [token.sampled.id for token in read if token is not None] == expected([1, 2, 3], 4)
    rig.forward.failure = RuntimeError("the device burns")
    rig.engine.in_turn(lambda: None)
    with pytest.raises(RuntimeError, match="burns"):
        rig.engine.next(generation)
    assert generation.ended
    rig.engine.remove(generation)
    assert rig.read(rig.generation([1, 2, 3])) == expected([1, 2, 3])
    assert not any(slot.busy for slot in rig.slots._slots)


def test_damage_that_is_seen_when_the_next_row_is_prepared() -> None:
    rig = Rig(asynchronous=True)
    damaged, other = rig.generation([1, 2, 3], n=9), rig.generation([4, 5], n=9)
    rig.engine.add(other)
    rig.engine.next(damaged), rig.engine.next(damaged)
    compute = rig.forward._compute

    def nan(work: Work) -> list[np.ndarray]:
        outputs = compute(work)
        outputs[-1][[len(rows) == 5 for rows in work.requested]] = np.nan  # the row of one of them
        return outputs

    rig.forward._compute = nan  # type: ignore[method-assign]
    with pytest.raises(SamplingError, match="NaN"):
        rig.engine.next(damaged)
    rig.forward._compute = compute  # type: ignore[method-assign]
    rig.engine.remove(damaged)
    assert rig.read(other) == expected([4, 5], 9)
    assert not any(slot.busy for slot in rig.slots._slots)
