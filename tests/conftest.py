"""Fixtures for tests outside the folders; the end of a run: skipped tests, one line for each reason."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support.fixtures import ctrl_c_raises, minilm_folder, minilm_gguf

__all__ = ["ctrl_c_raises", "minilm_folder", "minilm_gguf", "pytest_addoption", "pytest_terminal_summary"]

_SHOWN, _WIDTH = 15, 130


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hotshoe")
    group.addoption(
        "--device",
        action="append",
        help="compute the models of tests/families and tests/towers on this device, in place of reference, cpu and "
        "mlx:cpu; may be repeated",
    )
    group.addoption(
        "--bound",
        type=float,
        default=0.0,
        help="the error that is allowed there in any case, as a part of the largest value; for devices that round to "
        "TF32 or F16",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Group the skipped tests by the first clause of their reason. Say nothing if ``-rs`` lists every test anyway."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped or "s" in config.option.reportchars:
        return
    groups: dict[str, list[str]] = defaultdict(list)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        groups[reason.partition(": ")[0]].append(reason)
    terminalreporter.section(f"{len(skipped)} skipped, by reason", sep="-")
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    for clause, reasons in ordered[:_SHOWN]:
        text = reasons[0] if len(set(reasons)) == 1 else f"{clause}: …"
        text = " ".join(text.split())
        text = text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
        terminalreporter.write_line(f"{len(reasons):5}  {text}")
    if len(ordered) > _SHOWN:
        rest = sum(len(reasons) for _, reasons in ordered[_SHOWN:])
        terminalreporter.write_line(f"{rest:5}  for {len(ordered) - _SHOWN} other reasons")
    terminalreporter.write_line("The list of all of them: make test ARGS=-rs")
