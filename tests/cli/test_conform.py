"""``hotshoe conform`` on a correct and an incorrect backend, in separate processes, because it runs pytest."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from hotshoe.cli import _kit, main
from hotshoe.cli._kit import Results, _cause, run_isolated
from hotshoe_core.errors import HotshoeError
from hotshoe_core.tensors.tensor import TABLE

ROOT = Path(__file__).parents[2]
WRONG = """
import sys
import numpy as np
import hotshoe_loader
from hotshoe.cli import main
from hotshoe_core.eager.reference import reference_device
from tests.core.mutants.patches import opened

class Registry:
    def open(self, device, params=None):
        return opened(rms_norm=lambda x, weight=None, *, eps: x if weight is None else x * weight)
    def select(self, device):
        return [reference_device()]

hotshoe_loader.load_all = lambda **options: Registry()
sys.exit(main(sys.argv[1:]))
"""


def conform(*arguments: str, script: str = "", folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = ["-c", script, "conform"] if script else ["-m", "hotshoe", "conform"]
    return subprocess.run(
        [sys.executable, *command, *arguments], capture_output=True, text=True, cwd=folder, timeout=300
    )


def test_a_right_backend_passes_and_its_matrix_is_printed():
    done = conform("reference", "-k", "rms_norm or test_every_op")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout[done.stdout.index("\n\n") :].strip("\n").splitlines()
    assert header.split()[:2] == ["F32", "F16"]
    row = next(line for line in rows if line.startswith("rms_norm "))
    assert row.split() == ["rms_norm", "d", "d", "d"]  # F32, F16, BF16; a composite
    assert not any(line.startswith("exp ") for line in rows)  # it was not asked for
    *_, ops, counts = done.stdout.splitlines()
    assert ops == "ops: 0 native, 1 decomposed, 0 refused"
    assert counts.startswith("reference (reference): ")
    assert ", 0 failed, " in counts
    assert not counts.startswith("reference (reference): 0 passed")


def test_conftest_files_of_the_current_folder_are_not_used(tmp_path):
    (tmp_path / "tests").mkdir()
    for folder in (tmp_path, tmp_path / "tests"):
        (folder / "conftest.py").write_text("import a_module_that_does_not_exist\n")
    done = conform("reference", "-k", "test_answer and rms_norm", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ImportError" not in done.stderr + done.stdout


def test_all_ops_and_types_are_readable_at_80_columns(monkeypatch, capsys):
    """If no op is tested by itself, the tables show all ops: first plain types, then quantized ones."""
    results = Results()
    results.add("test_every_op_has_a_case", "passed", "", "")
    monkeypatch.setattr("hotshoe.cli.conform.run_here", lambda *given, **options: results)  # which would take seconds
    assert main(["conform", "reference", "-k", "test_every_op"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    headers = [line for line in lines if line.split()[:1] in (["F32"], ["Q4_0"])]
    assert len(headers) == 2
    assert {line.split()[0] for line in lines if line.strip()} >= set(TABLE)
    rows = [line for line in lines if line.startswith("linear ")]  # in both tables
    for header, row in zip(headers, rows, strict=True):
        starts = {i for i, letter in enumerate(header) if letter != " " and header[i - 1] == " "}
        assert {i for i, letter in enumerate(row) if letter == "n" and row[i - 1] == " "} <= starts


def test_a_wrong_backend_fails_where_it_is_wrong():
    done = conform("reference", "-k", "rms_norm or geglu", script=WRONG)
    assert done.returncode == 1
    row = next(line for line in done.stdout.splitlines() if line.startswith("rms_norm "))
    assert "nX" in row.split()
    assert "X" not in next(line for line in done.stdout.splitlines() if line.startswith("geglu "))
    assert "FAILED test_answer[rms_norm" in done.stdout
    assert "error " in done.stdout  # how far it is off
    n_failed = int(done.stdout.splitlines()[-1].split(" failed")[0].split()[-1])
    assert n_failed > 20
    assert done.stdout.count("FAILED") == 1
    assert f"    the same cause in {n_failed - 1} more: test_" in done.stdout

    report = json.loads(conform("reference", "-k", "rms_norm", "--json", script=WRONG).stdout)
    assert report["ops"]["rms_norm"]["F32"] == ["native", "wrong"]
    assert report["failed"]
    assert all("rms_norm" in test for test in report["failed"])


def test_one_cause_is_printed_once():
    """An error that a library raises at one place, with other numbers each time, and an op that gives wrong numbers."""
    raises = WRONG.replace("rms_norm=", "tanh=no_kernel, rms_norm=").replace(
        "class Registry", "def no_kernel(x):\n    raise RuntimeError(f'no kernel for {x.shape}')\n\nclass Registry"
    )
    report = json.loads(conform("reference", "-k", "tanh or rms_norm", "--json", script=raises).stdout)
    ops = [{test.partition("[")[2].split()[0] for test in cause} for cause in report["causes"]]
    assert {"rms_norm"} in ops
    assert sum(len(cause) for cause in report["causes"]) == len(report["failed"])
    shown = conform("reference", "-k", "tanh or rms_norm", script=raises).stdout
    assert shown.count("RuntimeError: no kernel for (") == 1
    assert shown.count("FAILED") == len(ops) == 2


def test_a_failure_of_the_kit_without_a_case_has_a_cause() -> None:
    crash = types.SimpleNamespace(path="a/kit.py", lineno=1, message="AssertionError")
    report = types.SimpleNamespace(longrepr=types.SimpleNamespace(reprcrash=crash))
    assert _cause("test_closing", report) == "test_closing"
    assert _cause("test_answer[exp F32]", report) == "exp"


def test_what_cannot_be_run(capsys):
    assert main(["conform", "gpu:7"]) == 2
    out, err = capsys.readouterr()
    assert ("gpu:7" in err, "E" in out) == (True, False)  # pytest would print an E for each of its tests
    done = conform("reference", "-k", "nothing_is_called_so")
    assert done.returncode == 2
    assert "matches no test" in done.stderr


ABORTING = """
import os, sys, time
from hotshoe_core.contract.device import API_VERSION, Device, DeviceType
from hotshoe_core.contract.plugin import hookimpl

def floor(x):
    if x.shape == (2, 4):
        sys.stderr.write("floor.cu:7: fatal error\\n")
        sys.stderr.flush()
        os.abort()
    return x  # wrong, but it does not end the process

class Provider:
    name, family, api_version = "fragile", "fragile", API_VERSION
    def native(self):
        return None
    def devices(self, library):
        return [Device("fragile", DeviceType.ACCEL, self.name, self.family)]
    def open(self, devices, params):
        from tests.core.mutants.patches import opened
        backend = opened(params, floor=floor)
        backend.devices = tuple(devices)
        return backend

@hookimpl
def hotshoe_providers():
    return [Provider()]
"""


@pytest.fixture
def fragile(tmp_path, monkeypatch):
    """A device whose kernel of one op ends the process for some shapes, as a plugin that is installed."""
    (tmp_path / "fragile.py").write_text(ABORTING)
    info = tmp_path / "fragile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hotshoe.backends]\nfragile = fragile\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_test_that_ends_its_process_is_a_row_and_the_rest_goes_on(fragile):
    done = conform("fragile", "--isolate", "-k", "test_answer and (floor or rms_norm)", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["aborted"]
    assert all("[floor" in name for name in report["failed"])
    assert set(report["aborted"]) < set(report["failed"]), "others are wrong"
    reason = report["failed"][report["aborted"][0]]
    assert reason.startswith("aborted: its process was killed by SIGABRT; its last line: ")
    whole = conform("reference", "-k", "test_answer and (floor or rms_norm)", "--json")
    expected = json.loads(whole.stdout)["passed"]
    assert report["passed"] + len(report["failed"]) == expected, "each test once"
    shown = conform("fragile", "--isolate", "-k", "test_answer and floor").stdout
    assert "ABORTED test_answer[floor" in shown
    assert next(line for line in shown.splitlines() if line.startswith("floor ")).split()[1] == "nX"


def test_isolated_tests_give_the_same_report(fragile):
    alone, isolated = (
        json.loads(conform("reference", *options, "-k", "rms_norm", "--json").stdout) for options in ([], ["--isolate"])
    )
    assert alone == isolated
    assert conform("reference", "--isolate", "-k", "nothing_is_called_so").returncode == 2


CHILD = """
import json, os, sys, time
job = json.load(sys.stdin)
def send(*values):
    print(json.dumps(values), flush=True)
def test(name, outcome):
    if name not in job["done"]:
        send("start", name)
        send("add", name, outcome, "", name)
"""


def isolated(monkeypatch, program: str, *, first: bool = False, limit: float = 300) -> Results:
    """Run this program in place of each of two children."""
    monkeypatch.setattr(_kit, "_MAX_CHILDREN", 2)
    monkeypatch.setattr(_kit.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(_kit, "_START", CHILD + program)
    return run_isolated("reference", None, first=first, limit=limit)


def test_the_first_failure_stops_all_shares(monkeypatch):
    ends = "test('a', 'failed') if job['share'] else send('start', 'b')\ntime.sleep(300)"
    results = isolated(monkeypatch, ends, first=True)
    assert (list(results.failed), results.aborted, results.n_passed) == (["a"], [], 0)


def test_a_process_that_ends_badly_after_its_last_test_is_a_row(monkeypatch):
    results = isolated(monkeypatch, "test(f'a{job[\"share\"]}', 'passed')\nsend('end')\nif job['share']: os.abort()")
    assert (results.n_passed, results.aborted) == (2, ["the end of the process"])
    assert results.failed["the end of the process"].startswith("aborted: its process ")


def test_a_child_that_cannot_be_started_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(HotshoeError, match=r"a share of the tests was not run: .*missing"):
        isolated(monkeypatch, "")


def test_a_test_that_takes_longer_than_the_limit_is_ended(monkeypatch):
    slow = "if 'slow' not in job['done'] and job['share']: send('start', 'slow'); time.sleep(300)\nsend('end')"
    results = isolated(monkeypatch, slow, limit=3)
    assert results.failed == {"slow": "aborted: its process took more than 3 s and was ended"}
