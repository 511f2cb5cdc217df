"""The share of the fuzzing that runs in `make test`: the seeds that once found something, and a few more."""

import pytest

from tests.fuzz.targets import TARGETS, load, outcome_of

FIRST = 7_000


@pytest.mark.parametrize("name", TARGETS)
def test_a_share_of_the_seeds_finds_no_fault(name):
    target = load(name)
    seeds = (*target.SEEDS, *range(FIRST, FIRST + target.SHARE))
    outcomes = {seed: outcome_of(target, seed) for seed in seeds}
    faults = {s: o for s, o in outcomes.items() if o not in ("same", "refused", "answered")}
    assert not faults, faults
    assert len(outcomes) > 5  # a target without cases finds nothing
