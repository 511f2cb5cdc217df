"""benchmarks/serve.py, for a second: nothing is lost, and every answer is that of a single client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.serve.conftest import ROOT, VERSE

pytest.importorskip("httpx")


@pytest.mark.parametrize(
    "options", [("--clients", "1,12", "--seconds", "1", "--check"), ("--long", "150"), ("--swap", "150")]
)
def test_the_load_test_runs(options: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), str(VERSE), "--ctx", "512", "--threads", "1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if options[0] == "--long":
        assert lines[0]["long_prompt_tokens"] >= 150
        assert lines[0]["short_first_longest"] > 0
    elif options[0] == "--swap":
        assert lines[0]["prompt_tokens"][1] > lines[0]["prompt_tokens"][0] >= 150
        assert lines[0]["second_turn"] > 0
    else:
        assert [line["clients"] for line in lines] == [1, 12]
        assert all((line["lost"], line["differ"]) == (0, 0) and line["requests"] for line in lines)


def test_the_ratios_to_other_servers() -> None:
    from benchmarks.serve import Load, ratios

    def loads(ours: float, *others: float) -> list[Load]:
        named = [("hotshoe", ours), *((f"other {i}", speed) for i, speed in enumerate(others))]
        return [Load(name, 8, tokens_per_second=v, first_p95=1 / v, gap_p95=0.1) for name, v in named]

    (line,) = ratios([loads(30, 10, 20), loads(40, 10, 10), loads(40, 20, 10)])
    assert line == {
        "clients": 8,
        "tokens_per_second": [2.0, 1.5, 4.0],
        "first_p95": [2.0, 1.5, 4.0],
        "gap_p95": [1.0, 1.0, 1.0],
    }


def test_answers_that_part_at_a_near_tie() -> None:
    from benchmarks.serve import parts_at_near_tie

    tokens = ["a", " b", "c", "\n", "1", ":", "2"]
    tops = [{token: -0.5, f"{token}x": -3.0} for token in tokens]
    tops[3] |= {"\n\n": -0.52}  # in the middle of a word
    logprobs = {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": tops}
    assert parts_at_near_tie(logprobs, "a bc\n\n2", 0.5)
    assert not parts_at_near_tie(logprobs, "a bcx", 0.5)
    assert not parts_at_near_tie(logprobs, "a bc\n1:3", 0.5)  # the near tie came before
