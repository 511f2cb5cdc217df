"""No option is ignored silently: stderr shows one warning, with and without a logging configuration."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe_core.contract.device import BackendParams
from hotshoe_core.errors import PluginError
from hotshoe_loader import Outcome, load_all
from tests.support.fake_plugins import GOOD

GOOD_CODE = GOOD.replace("{arguments}", "")


def in_a_process(code: str, site) -> subprocess.CompletedProcess[str]:
    """A program without a logging configuration that sees only the plugins of ``site``."""
    head = (
        "import sys; from hotshoe_core import BackendParams; from hotshoe_loader import load_all, find\n"
        f"sys.path.insert(0, {str(site.path)!r}); find._search_path = lambda: [{str(site.path)!r}]\n"
    )
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, check=True)


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_each_option_without_effect_is_named_once(site, caplog):
    registry = load_all()
    caplog.clear()
    params = BackendParams(n_threads=2, mmap=False, repack=False, flash_attention="on", matmul_precision="bf16")
    registry.open("reference", params).close()
    assert warnings(caplog) == [
        "reference ignores n_threads=2",
        "reference ignores mmap=False",
        "reference ignores repack=False",
        "reference ignores flash_attention='on'",
        "reference ignores matmul_precision='bf16'",
    ]
    assert {record.name for record in caplog.records} == {"hotshoe.loader"}


def test_defaults_and_used_options_cause_no_warning(site, caplog):
    registry = load_all()
    caplog.clear()
    registry.open("reference").close()
    registry.open("reference", BackendParams(allocate=False)).close()
    assert warnings(caplog) == []


def test_a_plugin_says_what_it_honours(site, caplog):
    site.install("acme", GOOD_CODE.replace("backend.opened_by", "backend.honours = {'n_threads'}; backend.opened_by"))
    registry = load_all()
    registry.open("npu:0", BackendParams(n_threads=2, mmap=False)).close()
    assert warnings(caplog) == ["reference ignores mmap=False"]


@pytest.mark.parametrize("honours", ["'n_threads'", "None", "{1}", "['n_threads']"])
def test_honours_that_is_not_a_set_of_names_breaks_the_contract(site, honours):
    site.install("acme", GOOD_CODE.replace("backend.opened_by", f"backend.honours = {honours}; backend.opened_by"))
    verdict = load_all().verdicts[0]
    assert verdict.outcome is Outcome.INCOMPATIBLE_API
    assert "whose honours is" in verdict.reason


def test_a_user_who_has_not_set_up_logging_reads_it(site):
    code = "load_all().open('reference', BackendParams(n_threads=2, flash_attention='on'))\nprint('opened')"
    done = in_a_process(code, site)
    assert done.stdout == "opened\n"
    lines = [line for line in done.stderr.splitlines() if "no plugin offers a device" not in line]
    assert lines == [
        "reference ignores n_threads=2",
        "reference ignores flash_attention='on'",
    ]


def test_a_user_who_has_set_up_logging_reads_it_there(site):
    code = (
        "import logging; heard = []; handler = logging.Handler(); handler.emit = heard.append\n"
        "logging.getLogger().addHandler(handler)\n"
        "load_all().open('reference', BackendParams(n_threads=2))\n"
        "print([r.getMessage() for r in heard if r.levelno >= 30 and 'ignores' in r.getMessage()])"
    )
    done = in_a_process(code, site)
    assert done.stdout == "['reference ignores n_threads=2']\n"
    assert done.stderr == ""


OPENS = GOOD_CODE.replace("        backend = open_ref", "        {code}\n        backend = open_ref")


@pytest.mark.parametrize("where", ["importing", "opening"])
def test_a_plugins_own_warnings_reach_the_user(site, where):
    """What the plugin prints is not shown."""
    says = (
        "import logging, sys; logging.getLogger('acme').warning('old driver'); print('a'); print('b', file=sys.stderr)"
    )
    site.install("acme", f"{says}\n{GOOD_CODE}" if where == "importing" else OPENS.replace("{code}", says))
    done = in_a_process("load_all().open('npu:0'); load_all().open('npu:0')", site)
    assert done.stdout == ""
    assert set(done.stderr.splitlines()) == {"old driver"}


def test_info_messages_of_a_plugin_are_not_shown(site):
    site.install("acme", "import logging; logging.getLogger('acme').info('ready')\n" + GOOD_CODE)
    assert in_a_process("load_all().open('npu:0')", site).stderr == ""


def test_pythons_last_resort_is_the_same_afterwards(site):
    last = logging.lastResort
    site.good("acme")
    load_all().open("npu:0").close()
    assert logging.lastResort is last


def test_streams_are_put_back_when_threads_take_turns(site, capsys):
    """Two plugins that are opened at the same time replace and restore the same streams."""
    import threading

    for name in ("one", "two"):
        site.install(
            name, "import time; time.sleep(0.1)\n" + GOOD.replace("{arguments}", f"{name!r}, devices=({name!r},)")
        )
    registry, before = load_all(), (sys.stdout, sys.stderr)
    threads = [threading.Thread(target=lambda name=name: registry.open(name).close()) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.stdout, sys.stderr) == before


def test_a_result_that_is_not_a_backend_names_the_provider(site, monkeypatch):
    failing = 'if __import__("os").environ.get("FAIL"): return 7'
    site.install("acme", OPENS.replace("{code}", failing))
    registry = load_all()
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(PluginError, match=r"open\(\) of provider 'acme' returned int; expected a hotshoe_core Backend"):
        registry.open("npu:0")


# -- as a user types it -------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]
RUN = [
    "run",
    str(ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"),
    "a",
    "--max-tokens",
    "1",
    "--flash-attention",
    "on",
]
EMBED = ["embed", str(ROOT / "tests" / "data" / "bert-tiny-llamacpp.gguf"), "a"]


@pytest.mark.parametrize(
    ("arguments", "names"), [(RUN, ["--threads 2", "--flash-attention on"]), (EMBED, ["--threads 2"])]
)
def test_the_command_line_says_it_once(arguments, names):
    command = [sys.executable, "-m", "hotshoe", *arguments, "--device", "reference", "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [f"reference ignores {name}" for name in names]
