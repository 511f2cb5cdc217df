"""What a plugin changes in the user's process when it is imported and opened is restored and reported."""

from __future__ import annotations

import builtins
import gc
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import hotshoe_core.eager.reference
import hotshoe_core.ops
from hotshoe_loader import load_all
from hotshoe_loader.process_changes import ProcessChanges
from tests.support.fake_plugins import GOOD

GOOD_CODE = GOOD.replace("{arguments}", "")
WORDS = {
    "sys.excepthook = print": "sys.excepthook changed",
    "sys.displayhook = print": "sys.displayhook changed",
    "sys.unraisablehook = print": "sys.unraisablehook changed",
    "threading.excepthook = print": "threading.excepthook changed",
    "builtins.open = print": "builtins.open changed",
    "del builtins.print": "builtins.print changed",
    "warnings.showwarning = print": "warnings.showwarning changed",
    "np.seterr(all='raise')": "NumPy's error handling (np.seterr) changed",
    "logging.basicConfig(level=10, force=True)": "root logger changed",
    "logging.disable(50)": "root logger changed",
    "logging.lastResort = None": "logging.lastResort changed",
    "sys.setrecursionlimit(5000)": "recursion limit changed",
    "sys.setswitchinterval(1)": "switch interval changed",
    "gc.disable()": "garbage collection changed",
    "sys.setprofile(lambda *a: None)": "profiling (sys.setprofile) changed",
    "sys.settrace(lambda *a: None)": "tracing (sys.settrace) changed",
    "sys.stdout = open(os.devnull, 'w')": "sys.stdout changed",
    "sys.path.insert(0, '/acme')": "sys.path changed",
    "sys.path.clear()": "sys.path changed",
    "os.environ['HOME'] = '/acme'": "environment variable HOME changed",
    "signal.signal(signal.SIGUSR1, signal.SIG_IGN)": "handler of SIGUSR1 changed",
    "os.chdir('/')": "working directory changed",
    "os.umask(0)": "umask changed",
    "signal.setitimer(signal.ITIMER_REAL, 3600)": "timer changed",
    "os.environ = {}": "os.environ changed",
    "sys.path = None": "sys.path changed",
    "sys.meta_path.clear()": "sys.meta_path changed",
    "sys.path_hooks = []": "sys.path_hooks changed",
    "del sys.excepthook": "sys.excepthook changed",
    "sys.breakpointhook = print": "sys.breakpointhook changed",
    "sys.dont_write_bytecode = 5": "sys.dont_write_bytecode changed",
    "sys.modules['json'] = None": "sys.modules['json'] changed",
    "del sys.modules['json']": "sys.modules['json'] changed",
    "warnings.filters.clear()": "warnings.filters changed",
    "warnings.simplefilter('once')": "warnings.filters changed",
    "logging.root.handlers = ()": "root logger changed",
    "np.set_printoptions(precision=2)": "NumPy's printing (np.set_printoptions) changed",
    "random.seed(0)": "random numbers (random) changed",
    "np.random.seed(0)": "random numbers (np.random) changed",
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})": "signal mask changed",
    "sys.setdlopenflags(sys.getdlopenflags() ^ 256)": "flags of dlopen changed",
    "socket.setdefaulttimeout(5)": "default timeout of sockets changed",
    "hotshoe_core.ops.mul = print": "hotshoe_core.ops.mul changed",
    "hotshoe_core.Tensor.__add__ = print": "hotshoe_core.tensors.tensor.Tensor.__add__ changed",
    "hotshoe_core.ops.mul.reference = print": "hotshoe_core.ops.elementwise.mul.reference changed",
    "hotshoe_core.tensors.tensor.TABLE['mul'] = print": "the op 'mul' of hotshoe_core changed",
    "hotshoe_core.eager.reference.open_reference.__code__ = (lambda params=None: 1).__code__": (
        "the code of hotshoe_core.eager.reference.open_reference changed"
    ),
}
LINUX = ("os.umask(0)",)  # elsewhere it cannot be read without being changed


def state():
    return (
        sys.excepthook,
        sys.displayhook,
        sys.unraisablehook,
        threading.excepthook,
        dict(vars(builtins)),
        warnings.showwarning,
        np.geterr(),
        (list(logging.root.handlers), logging.root.level, logging.root.manager.disable, logging.lastResort),
        (sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), sys.getprofile(), sys.gettrace()),
        (sys.stdin, sys.stdout, sys.stderr, list(sys.path)),
        (id(os.environ), id(sys.path), list(sys.meta_path), list(sys.path_hooks), list(warnings.filters)),
        (sys.breakpointhook, sys.dont_write_bytecode, sys.modules["json"], np.get_printoptions(), random.getstate()),
        (np.random.get_state()[1].tobytes(), signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        (sys.getdlopenflags(), socket.getdefaulttimeout()),
        (hotshoe_core.ops.mul, hotshoe_core.ops.mul.reference, hotshoe_core.Tensor.__add__),
        (hotshoe_core.tensors.tensor.TABLE["mul"], hotshoe_core.eager.reference.open_reference.__code__),
        (dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGUSR1), signal.getitimer(signal.ITIMER_REAL)[0]),
    )


@pytest.mark.parametrize("change", [each for each in WORDS if sys.platform == "linux" or each not in LINUX])
def test_each_change_is_named_and_put_back(change, monkeypatch, tmp_path):
    if "settrace" in change and sys.gettrace() is not None:
        pytest.skip("coverage is tracing")
    monkeypatch.chdir(tmp_path)
    before = state()
    process = ProcessChanges()
    exec(
        "import builtins, gc, hotshoe_core, logging, os, random, signal, socket, sys, threading, warnings\n"
        f"import numpy as np\n{change}"
    )
    opened = sys.stdout
    found = process.put_back()
    if opened is not sys.stdout:
        opened.close()
    assert found == [WORDS[change]]
    after = state()
    if change.startswith("sys.path.insert"):
        assert sys.path.pop() == "/acme", "what was added stays, behind what was there"
    if change.startswith("warnings.simplefilter"):
        assert warnings.filters.pop()[0] == "once"
    if change.startswith(("sys.path.insert", "warnings.simplefilter")):
        after = state()
    assert after == before
    assert process.put_back() == []


def test_a_plugin_that_replaces_an_op_of_ours_is_a_warning(site, caplog, monkeypatch):
    """Otherwise the reference would compute with it, and nothing would say so."""
    evil = (
        "if 'FAIL' in __import__('os').environ: __import__('hotshoe_core').ops.mul.reference = lambda x, y: x * y + 1"
    )
    site.install("acme", GOOD_CODE.replace("        backend = open_ref", f"        {evil}\n        backend = open_ref"))
    registry = load_all()
    monkeypatch.setenv("FAIL", "1")
    caplog.clear()
    registry.open("npu:0").close()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "plugin acme changed this process" in record.getMessage()
    assert "hotshoe_core.ops.elementwise.mul.reference changed" in record.getMessage()
    assert hotshoe_core.ops.mul.reference(2, 3) == 6


def test_another_change_is_no_warning_whatever_its_name(site, caplog, monkeypatch):
    evil = "import os; os.environ['FOR_hotshoe_core'] = '1'"
    site.install("acme", GOOD_CODE.replace("        backend = open_ref", f"        {evil}\n        backend = open_ref"))
    registry = load_all()
    monkeypatch.delenv("FOR_hotshoe_core", raising=False)
    with caplog.at_level("INFO", "hotshoe.loader"):
        registry.open("npu:0").close()
    monkeypatch.delenv("FOR_hotshoe_core", raising=False)
    changed = [record for record in caplog.records if "FOR_hotshoe_core set" in record.getMessage()]
    assert [record.levelname for record in changed] == ["INFO"]


def test_what_is_added_stays_and_is_named(monkeypatch):
    process = ProcessChanges()
    monkeypatch.setenv("ACME", "1")
    monkeypatch.setattr(builtins, "acme", 1, raising=False)
    assert process.put_back() == ["builtins.acme added", "environment variable ACME set"]
    assert os.environ["ACME"] == "1"
    assert builtins.acme == 1  # type: ignore[attr-defined]


def test_names_of_variables_are_printable(monkeypatch):
    process = ProcessChanges()
    monkeypatch.setenv("A\x1b[2J", "1")
    assert process.put_back() == [r"environment variable A\x1b[2J set"]


CODE = """
import sys
from hotshoe_loader import load_all, find
sys.path.insert(0, sys.argv[1]); find._search_path = lambda: [sys.argv[1]]
import builtins, numpy as np
before = sys.excepthook, builtins.input, np.geterr()
registry = load_all()
backend = registry.open("npu:0")
print((sys.excepthook, builtins.input, np.geterr()) == before)
print(*registry.verdicts[0].details["changes"], sep="\\n")
"""


@pytest.mark.parametrize("where", ["import", "open", "devices"])
def test_what_a_plugin_changes_is_put_back_whenever_it_does(site, where):
    """In a separate program: at its import, when it lists its devices, when it is opened."""
    evil = "import sys, builtins, numpy; sys.excepthook = builtins.input = print; numpy.seterr(all='raise')"
    code = {
        "import": f"{evil}\n{GOOD_CODE}",
        "open": GOOD_CODE.replace("        backend = open_ref", f"        {evil}\n        backend = open_ref"),
        "devices": GOOD_CODE.replace("        return [\n", f"        {evil}\n        return [\n"),
    }[where]
    site.install("acme", code)
    done = subprocess.run([sys.executable, "-c", CODE, str(site.path)], capture_output=True, text=True, check=True)
    restored, *changes = done.stdout.splitlines()
    assert restored == "True"
    assert changes == ["builtins.input changed", "sys.excepthook changed", "NumPy's error handling (np.seterr) changed"]


def test_what_changes_when_it_is_opened_again_is_added(site, monkeypatch):
    code = "__import__('os').environ['ACME_' + str(len(__import__('os').environ))] = ''"
    site.install("acme", GOOD_CODE.replace("        backend = open_ref", f"        {code}\n        backend = open_ref"))
    before = dict(os.environ)
    registry = load_all()
    registry.open("npu:0").close()
    first = registry.verdicts[0].details["changes"]
    registry.open("npu:0").close()
    second = registry.verdicts[0].details["changes"]
    os.environ.clear()
    os.environ.update(before)
    assert len(first) == 1
    assert second[:1] == first
    assert len(second) == 2
