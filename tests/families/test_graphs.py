"""The graph of every row is the recorded one: a change to a shared block shows in each family that it reaches.

If the change is meant, record the graphs again: ``python -m tools.record_families ops [ROW …]``.
"""

from __future__ import annotations

from tests.families.made import Made
from tests.families.recorded import ops_of, read_record


def test_the_graph_is_the_recorded_one(made: Made) -> None:
    assert ops_of(made.run_once) == read_record(made.name).ops
