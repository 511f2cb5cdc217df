"""The life of a registry: open, unload, reload, fork, and another package's ggml in the process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from hotshoe_core.errors import BackendError, ClosedError, DeviceNotFoundError, ForkedProcessError
from hotshoe_loader import Outcome, load_all
from tests.support.fake_plugins import GOOD

GOOD_CODE = GOOD.replace("{arguments}", "")


def names(registry):
    return [device.name for device in registry.devices]


def test_nothing_is_imported_before_it_is_opened(site, probes):
    site.good("acme")
    registry = load_all()
    assert "acme" not in sys.modules
    assert registry.verdicts[0].outcome is Outcome.AVAILABLE
    with registry.open("npu:0"):
        assert "acme" in sys.modules
        assert registry.verdicts[0].outcome is Outcome.LOADED


def test_unload_refuses_while_a_backend_is_open(site):
    site.good("acme")
    registry = load_all()
    backend = registry.open()
    with pytest.raises(BackendError, match="1 open backend") as caught:
        registry.unload("acme")
    assert "force=True" in caught.value.hint
    backend.close()
    registry.unload("npu:0")
    assert names(registry) == ["reference"]
    assert registry.verdicts[0].outcome is Outcome.BLOCKED
    assert "unloaded" in registry.explain("acme")
    with pytest.raises(DeviceNotFoundError):
        registry.open("npu:0")
    with pytest.raises(BackendError, match="not in this registry"):
        registry.open(backend.devices[0])
    assert names(registry.reload()) == ["npu:0", "reference"]


def test_what_one_registry_unloads_another_keeps(site):
    """Registries whose options differ in ranking only share a survey, which does not change."""
    from hotshoe_loader import load

    site.good("acme")
    registry, other = load_all(), load_all(prefer="npu:0")
    (survey,) = load._surveys.values()
    before = repr(survey)
    registry.open("npu:0").close()
    registry.unload("npu:0")
    assert names(registry) == ["reference"]
    assert names(other) == ["npu:0", "reference"]
    other.open("npu:0").close()
    assert list(load._surveys.values()) == [survey]
    assert repr(survey) == before


def test_unload_by_force_closes(site):
    site.good("acme")
    registry = load_all()
    context = registry.open().new_context()
    registry.unload("acme", force=True)
    assert context.backend.closed
    with pytest.raises(ClosedError):
        context.backend._require_open()


def test_backends_are_not_kept_alive(site):
    site.good("acme")
    registry = load_all()
    backend = weakref.ref(registry.open())
    assert backend() is None
    registry.unload("acme")


def test_unload_an_unknown_name(site):
    with pytest.raises(DeviceNotFoundError):
        load_all().unload("cuda")


def test_reload_finds_what_was_installed_since_and_keeps_what_is_open(site):
    site.good("acme")
    registry = load_all()
    backend = registry.open()
    site.good("later", "'later', 'later', ('later:0',)")
    assert names(registry) == ["npu:0", "reference"]
    assert registry.reload() is registry
    assert names(registry) == ["later:0", "npu:0", "reference"]
    assert load_all() is registry
    assert not backend.closed
    assert registry.verdicts[0].outcome is Outcome.LOADED
    with registry.open("later:0") as other:
        assert other.devices[0].name == "later:0"


def test_reload_after_all_was_unloaded(site, caplog, monkeypatch):
    """The warning about an unmatched preference names the device that is used, which is usable again by then."""
    monkeypatch.setattr("hotshoe_loader.registry.backends_over", lambda provider: [])  # those of other tests
    site.good("acme")
    registry = load_all(prefer="nothing")
    registry.unload("npu:0")
    registry.unload("reference")
    assert names(registry.reload()) == ["npu:0", "reference"]
    assert "prefer='nothing' matches no device; using npu:0" in caplog.text


def test_reload_that_cannot_meet_a_requirement_changes_nothing(site):
    site.good("acme")
    registry = load_all(require="npu:0")
    (site.path / "acme.py").write_text("import nowhere")
    with pytest.raises(DeviceNotFoundError):
        registry.reload()
    assert names(registry) == ["npu:0", "reference"]


def test_an_upgrade_says_that_the_old_version_stays(site):
    site.good("acme")
    registry = load_all()
    registry.open().close()
    (site.path / "acme-1.0.dist-info").rename(site.path / "acme-1.1.dist-info")
    (site.path / "acme-1.1.dist-info" / "METADATA").write_text("Name: acme\nVersion: 1.1\n")
    assert "version 1.0 stays in this process" in registry.reload().verdicts[0].reason


def test_what_an_import_changes_is_given_back_and_reported(site, monkeypatch, caplog, capfd):
    monkeypatch.setenv("USERS", "1")
    monkeypatch.setenv("ALSO_USERS", "1")
    code = (
        "import os, signal, sys\nos.environ['USERS'] = '2'; del os.environ['ALSO_USERS']; os.environ['ACME'] = '3'\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.chdir('/')\nprint('hello'); print('oh', file=sys.stderr)\n"
    )
    site.install("acme", code + GOOD_CODE)
    before = signal.getsignal(signal.SIGTERM), os.getcwd()
    site.probe = lambda job, real=site.probe: _clean(real, job)  # the probe of these tests runs in this process
    registry = load_all()
    capfd.readouterr()
    with caplog.at_level(logging.INFO, "hotshoe"):
        registry.open().close()
    try:
        assert (os.environ["USERS"], os.environ["ALSO_USERS"]) == ("1", "1")
        assert os.environ.pop("ACME") == "3", "nobody else had set it, and the plugin may read it later"
        assert (signal.getsignal(signal.SIGTERM), os.getcwd()) == before
    finally:
        signal.signal(signal.SIGTERM, before[0])
        os.chdir(before[1])
    changes = registry.verdicts[0].details["changes"]
    assert "environment variable USERS changed" in changes
    assert "environment variable ALSO_USERS unset" in changes
    assert "environment variable ACME set" in changes
    assert "handler of SIGTERM changed" in changes
    assert "working directory changed" in changes
    printed = [record.getMessage() for record in caplog.records if record.name == "hotshoe.plugin"]
    assert printed == ["hello", "oh"]
    assert capfd.readouterr() == ("", "")


def _clean(probe, job):
    environ, handler, folder = dict(os.environ), signal.getsignal(signal.SIGTERM), os.getcwd()
    report = probe(job)
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGTERM, handler)
    os.chdir(folder)
    return report


def test_what_other_threads_print_passes(site, capsys):
    site.install("acme", "import time; time.sleep(0.2)\n" + GOOD_CODE)
    registry = load_all()
    thread = threading.Timer(0.1, print, ["mine"])
    thread.start()
    registry.open().close()
    thread.join()
    assert capsys.readouterr().out == "mine\n"


# -- fork ---------------------------------------------------------------------------------------------------


def forked(work) -> str:
    """The result of ``work`` in a forked child, within ten seconds."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            text = repr(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read().decode()
    assert os.waitpid(child, 0)[1] == 0, f"the child hung or died: {text}"
    return text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_backend_from_before_a_fork_says_so(site):
    from hotshoe_core import DType

    site.good("acme")
    backend = load_all().open()
    context = backend.new_context()
    x = context.input("x", (1,), DType.F32)
    context.forward(x + x)
    with backend.lock:  # as if another thread were computing
        text = forked(lambda: context.compute({x: [1.0]}))
        assert text.startswith(ForkedProcessError.__name__)
        assert "opened in process" in text
        assert "spawn" in text
        assert forked(lambda: (context.close(), backend.close())) == "(None, None)"
        assert forked(lambda: backend.load([])).startswith(ForkedProcessError.__name__)
    context.compute({x: [1.0]})


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_load_all_works_after_a_fork(site):
    from hotshoe_loader import activate, load

    site.good("acme")
    registry = load_all()
    held = [load._lock, activate._lock]
    for lock in held:
        threading.Thread(target=lock.acquire).start()  # as if another thread were at work, and died in the fork
    assert forked(lambda: names(load_all(refresh=True))) == "['npu:0', 'reference']"
    assert forked(lambda: registry.open("npu:0").name) == "'reference'"
    load._lock = threading.RLock()
    activate._lock = threading.RLock()


# -- another ggml -------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(natives, tmp_path):
    """Another package's libggml-base, which stays in the process: each test has its own path."""
    path = natives.library("libggml-base.so.0", "int other;", folder=tmp_path / "llama_cpp" / "lib")
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); "
    return path, code


def in_a_process(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout


REPORT = (
    "import sys; from hotshoe_loader import load_all, find\n"
    "find._search_path = lambda: [sys.argv[2]]\nsys.path.insert(0, sys.argv[2])\n"
    "for v in load_all().verdicts: print(v.candidate, v.outcome.value, v.reason, v.hint)\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_another_ggml_that_came_first_is_named(site, native_plugin, natives, foreign):
    natives.variant("cpu-x64", 1)
    native_plugin()
    path, before = foreign
    out = in_a_process(before + "pass\n" + REPORT, path, site.path)
    line = next(line for line in out.splitlines() if line.startswith("ggml-cpu "))
    assert line.startswith("ggml-cpu abi-mismatch another ggml is already in this process")
    assert str(path) in line
    assert "separate processes" in line
    assert "reference available" in out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_another_ggml_that_comes_later_leaves_ours_in_use(site, native_plugin, natives, foreign):
    natives.variant("cpu-x64", 1)
    native_plugin()
    path, _ = foreign
    code = REPORT.replace(
        "for v in", "r = load_all(); r.open('cpu')\nimport ctypes; ctypes.CDLL(sys.argv[1])\nfor v in"
    )
    code = code.replace("in load_all().verdicts", "in r.reload().verdicts")
    out = in_a_process(code, path, site.path)
    assert "ggml-cpu loaded" in out
