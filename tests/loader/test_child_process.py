"""Probes in child processes: a crash, an exit or a hang becomes a verdict, and no process, thread or file is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hotshoe_loader import Outcome, child_process, load_all
from tests.support.fake_plugins import GOOD, PROVIDER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

GOOD_CODE = GOOD.replace("{arguments}", "")


def children_of_this_process() -> set[str]:
    """The process ids of this process's children. Linux only."""
    return {n for listed in Path("/proc/self/task").glob("*/children") for n in listed.read_text().split()}


@pytest.fixture(autouse=True)
def nothing_stays(probes, tmp_path):
    """No child, no thread, no file, no change of this process."""
    before, children = state(), children_of_this_process()
    files = set(os.listdir(tmp_path))
    yield
    assert not [each for each in threading.enumerate() if each.name == "hotshoe-probe"]
    assert children_of_this_process() <= children  # those of other tests, such as what renders templates
    assert set(os.listdir(tmp_path)) - files <= {"cache", "lib"}
    assert state() == before


def state():
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return environ, signal.getsignal(signal.SIGTERM), os.getcwd()


def verdict(registry, name="bad"):
    return next(each for each in registry.verdicts if each.candidate == name)


SEGFAULT = "import ctypes; ctypes.string_at(0)"
FATAL = [
    ("segfault", SEGFAULT, "crashed", "was killed by SIGSEGV while importing 'bad'"),
    ("illegal", "import os, signal; os.kill(os.getpid(), signal.SIGILL)", "crashed", "was killed by SIGILL"),
    ("exit", "import os; os._exit(7)", "crashed", "ended with exit code 7 while importing 'bad'"),
    ("words", "import os; print('no licence', flush=True); os._exit(1)", "crashed", "its last line: no licence"),
    ("interrupt", "raise KeyboardInterrupt", "crashed", "KeyboardInterrupt"),
    ("sys-exit", "import sys; sys.exit(3)", "import-error", "raised SystemExit: 3"),
    ("recursive", "import hotshoe_loader; hotshoe_loader.load_all()", "import-error", "load_all() was called by"),
    (
        "closes-all",
        "import os, time; os.closerange(0, 99); time.sleep(60)",
        "crashed",
        "closed the probe's pipe while importing",
    ),
    (
        "hook",
        GOOD_CODE.replace("    return [Prov", f"    {SEGFAULT}\n    return [Prov"),
        "crashed",
        "calling its hook hotshoe_prov",
    ),
]


@pytest.mark.parametrize(("code", "outcome", "reason"), [each[1:] for each in FATAL], ids=[each[0] for each in FATAL])
def test_the_end_of_a_child_is_a_verdict(site, code, outcome, reason):
    site.install("bad", code)
    site.good("good")
    registry = load_all()
    assert verdict(registry).outcome is Outcome(outcome), verdict(registry)
    assert reason in verdict(registry).reason
    assert [device.name for device in registry.devices] == ["npu:0", "reference"]


def test_a_crash_is_shown_with_its_frame(site):
    site.install("bad", SEGFAULT)
    output = verdict(load_all()).details["output"]
    assert any("bad.py" in line for line in output)
    assert verdict(load_all()).details["signal"] == signal.SIGSEGV


class SlowToDie(subprocess.Popen):
    """A child whose exit status comes 0.3 s after the end of its pipe; normally the kernel takes 0.3 ms."""

    died = None

    def poll(self):
        code = super().poll()
        if code is None:
            return None
        self.died = self.died or time.monotonic()
        return code if time.monotonic() - self.died > 0.3 else None


def test_a_crash_has_its_signal_although_the_pipe_ends_first(site, monkeypatch):
    """The crash comes more than a second after the last step was announced, as it does in a long computation."""
    monkeypatch.setattr(subprocess, "Popen", SlowToDie)
    site.install("bad", "import os, time; time.sleep(1.3); os.kill(os.getpid(), 11)")
    found = verdict(load_all())
    assert found.outcome is Outcome.CRASHED
    assert "was killed by SIGSEGV while importing 'bad'" in found.reason
    assert found.details["signal"] == signal.SIGSEGV


HANGS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code])
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
time.sleep(60)
"""


def test_a_plugin_that_hangs_is_ended_with_all_its_processes(site):
    for name in ("bad", "worse"):
        site.install(name, HANGS)
    site.good("good")
    registry = load_all(timeout=0.8)
    assert verdict(registry).outcome is verdict(registry, "worse").outcome is Outcome.TIMED_OUT
    assert "while importing 'bad'" in verdict(registry).reason
    assert "HOTSHOE_PROBE_TIMEOUT" in verdict(registry).hint
    assert verdict(registry, "acme").outcome is Outcome.AVAILABLE
    assert not sleeping()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_is_stopped_would_not_need_more_time(site):
    site.install("bad", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    found = verdict(load_all(timeout=0.5))
    assert found.outcome is Outcome.CRASHED
    assert "its process was stopped (SIGSTOP) while importing 'bad'" in found.reason
    assert "timeout" not in found.hint


def sleeping() -> list[int]:
    """The ids of processes that a plugin above started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"signal.SIG_IGN); time.sleep(60)" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_memory_is_limited(site, monkeypatch):
    monkeypatch.setattr(child_process, "_MAX_MEMORY", 200 << 20)
    site.install("bad", "held = []\nwhile True: held.append(bytearray(1 << 20))")
    registry = load_all()
    assert verdict(registry).outcome is Outcome.CRASHED
    assert "used more than 0.2 GiB of memory while importing" in verdict(registry).reason


def test_the_output_of_a_plugin_does_not_matter(site, capfd):
    noise = (
        "import os\nfor fd in (1, 2):\n  for _ in range(64): os.write(fd, b'{\"report\": 3}\\n' * 1000)\nprint('x')\n"
    )
    site.install("noisy", noise + GOOD_CODE)
    registry = load_all()
    assert verdict(registry, "acme").outcome is Outcome.AVAILABLE
    assert capfd.readouterr() == ("", "")


def test_a_plugin_that_writes_to_the_pipe_of_its_probe_does_no_harm(site):
    lines = [
        b"[" * 200_000,
        b'{"report": {"providers": [{"devices": 3}]}}',
        b'{"step": []}',
        b"\xff\xfe",
        b"null",
        b'"report"',
    ]
    noise = f"import os\nfor fd in range(3, 30):\n  for line in {lines!r}:\n    try: os.write(fd, line + b'\\n')\n"
    site.install("noisy", noise + "    except OSError: pass\n" + GOOD_CODE)
    assert verdict(load_all(), "acme").outcome is Outcome.AVAILABLE


def test_stdin_is_empty_and_the_folder_is_not_the_users(site):
    site.install("bad", "import os, sys; raise RuntimeError(f'{sys.stdin.read()!r} {os.getcwd()}')")
    words, _, folder = verdict(load_all()).reason.rpartition(" ")
    assert words.endswith("RuntimeError: ''")
    assert folder.rpartition("/")[2].startswith("hotshoe-probe-")
    assert not os.path.exists(folder), "and it is gone with the child"


def test_changes_are_reported(site):
    code = "import os, signal\nos.environ['ACME'] = '1'\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    site.install("a", code + GOOD_CODE)
    changes = verdict(load_all(), "acme").details["changes"]
    assert changes == ["environment variable ACME set", "handler of SIGTERM changed"]


def test_a_provider_that_crashes_leaves_its_neighbour(site):
    code = PROVIDER + (
        "from hotshoe_core.contract.plugin import hookimpl\n"
        "class Bad(Provider):\n"
        f"    def devices(self, library): {SEGFAULT}\n"
        "@hookimpl\ndef hotshoe_providers(): return [Bad('bad', devices=('b',)), Provider('fine')]\n"
    )
    site.install("two", code)
    registry = load_all()
    assert verdict(registry).outcome is Outcome.CRASHED
    assert "while calling its devices()" in verdict(registry).reason
    assert verdict(registry, "fine").outcome is Outcome.AVAILABLE


def test_a_variant_that_crashes_leaves_the_others(native_plugin, natives):
    natives.variant("cpu-x64", 1)
    natives.library(
        "libggml-cpu-zen4.so", "int ggml_backend_score(void) { return *(int *)0; } void ggml_backend_init(){}"
    )
    natives.library("libggml-cpu-trap.so", "__attribute__((constructor)) void f(void) { __builtin_trap(); }")
    natives.library("libggml-cpu-loop.so", '__attribute__((constructor)) void f(void) { for (;;) __asm__(""); }')
    native_plugin()
    registry = load_all(timeout=4)
    found = {each.candidate: each.outcome.value for each in registry.verdicts if each.kind == "library"}
    assert found == {
        "ggml-cpu-loop": "timed-out",
        "ggml-cpu-trap": "crashed",
        "ggml-cpu-x64": "available",
        "ggml-cpu-zen4": "crashed",
    }
    assert "SIGSEGV while opening libggml-cpu-zen4.so" in verdict(registry, "ggml-cpu-zen4").reason
    assert registry.devices[0].library == natives.folder / "libggml-cpu-x64.so"


def test_a_library_whose_devices_crash_gives_way_to_the_next_best(site, natives):
    natives.variant("cpu-x64", 1)
    natives.variant("cpu-zen4", 2)
    code = PROVIDER + (
        "from pathlib import Path\n"
        "class Native(Provider):\n"
        f"    def native(self): return dict(kind='ggml', name='cpu', directories=[Path({str(natives.folder)!r})], "
        f"core=Path({str(natives.folder / 'libggml-base.so')!r}))\n"
        "    def devices(self, library):\n"
        f"        if 'zen4' in str(library): {SEGFAULT}\n"
        "        return super().devices(library)\n"
        "@hookimpl\ndef hotshoe_providers(): return [Native('n')]\n"
    )
    site.install("two", code)
    registry = load_all()
    assert verdict(registry, "ggml-cpu-zen4").outcome is Outcome.CRASHED
    assert registry.devices[0].library == natives.folder / "libggml-cpu-x64.so"


def test_the_child_sees_what_the_parent_imports(site, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "helper_of_acme.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    site.install("a", "import helper_of_acme\n" + GOOD_CODE)
    assert verdict(load_all(), "acme").outcome is Outcome.AVAILABLE
    shutil.rmtree(tmp_path / "elsewhere")  # bytecode may be next to the module


def test_without_children_probes_run_here(site, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    site.good("good")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert verdict(load_all(), "acme").outcome is Outcome.AVAILABLE
    sys.modules.pop("good")


def test_an_interpreter_that_does_not_start_is_not_the_plugins_fault(site, monkeypatch, caplog):
    monkeypatch.setattr(child_process, "_START", "import sys; sys.exit('no such home')")
    site.good("good")
    assert verdict(load_all(), "acme").outcome is Outcome.AVAILABLE
    assert "plugins are tested in this process" in caplog.text
    assert "no such home" in caplog.text
    sys.modules.pop("good")


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_ends_the_children(site):
    site.install("bad", HANGS)
    threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        load_all(timeout=30)
    assert not sleeping()
    (site.path / "bad.py").write_text(GOOD_CODE)
    assert load_all().devices[0].name == "npu:0"


def test_a_lost_exit_status_is_reported_as_unknown(site):
    """If the program ignores SIGCHLD, the exit status of a child is lost."""
    site.install("bad", "import os; os._exit(7)")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = verdict(load_all())
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found.outcome is Outcome.CRASHED
    assert "this program handles SIGCHLD" in found.reason


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_limit_of_processes(site, monkeypatch, caplog, allowed):
    """Fewer processes in parallel. If none can be started, plugins are tested in this process."""
    for name in ("one", "two", "three"):
        site.good(name, f"{name!r}, devices=({name!r},)")
    start = subprocess.Popen
    alive: list[subprocess.Popen[bytes]] = []

    def limited(*args, **options):
        if sum(child.poll() is None for child in alive) >= allowed:
            raise OSError(11, "Resource temporarily unavailable")
        alive.append(start(*args, **options))
        return alive[-1]

    monkeypatch.setattr(subprocess, "Popen", limited)
    assert [device.name for device in load_all().devices] == ["one", "three", "two", "reference"]
    assert len(alive) == 3 * allowed
    assert ("plugins are tested in this process" in caplog.text) == (not allowed)
    for name in ("one", "two", "three"):
        sys.modules.pop(name, None)
