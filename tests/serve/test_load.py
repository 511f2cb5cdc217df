"""benchmarks/serve.py, for a second: nothing is lost, and every answer is that of a single client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.serve.conftest import ROOT, VERSE

pytest.importorskip("httpx")


@pytest.mark.parametrize("options", [("--clients", "1,12", "--seconds", "1", "--check"), ("--long", "150")])
def test_the_load_test_runs(options: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), str(VERSE), "--ctx", "512", "--threads", "1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if options[0] == "--long":
        assert lines[0]["long_prompt_tokens"] >= 150
        assert lines[0]["short_first_longest"] > 0
    else:
        assert [line["clients"] for line in lines] == [1, 12]
        assert all((line["lost"], line["differ"]) == (0, 0) and line["requests"] for line in lines)


def test_answers_that_part_at_a_near_tie() -> None:
    from benchmarks.serve import parts_at_near_tie

    tokens = ["a", " b", "c", "\n", "1", ":", "2"]
    tops = [{token: -0.5, f"{token}x": -3.0} for token in tokens]
    tops[3] |= {"\n\n": -0.52}  # in the middle of a word
    logprobs = {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": tops}
    assert parts_at_near_tie(logprobs, "a bc\n\n2")
    assert not parts_at_near_tie(logprobs, "a bcx")
    assert not parts_at_near_tie(logprobs, "a bc\n1:3")  # the near tie came before
