"""The process that renders templates: its limits, its end, and what it may not do."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hotshoe.atomic_file import check_target
from hotshoe.chat import ChatTemplate, _process
from hotshoe_core.errors import ChatTemplateError, ConversionError


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses the conversation: roles must alternate"),
        ("{{ messages[5].content }}", "uses an undefined value"),
        ("{{ messages[0].content + 1 }}", "failed: TypeError"),
        ("{{ ''.__class__.__mro__ }}", "does something that is forbidden"),
        ("{{ messages.append(1) }}", "does something that is forbidden"),
        ("{{ raise_exception.__globals__.x }}", "does something that is forbidden"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "begins with an underscore"),
        ("{{ namespace(_x=1) }}", "begins with an underscore"),
        ("{{ dict.__globals__.x }}", "does something that is forbidden"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself endlessly"),
        ("{% include 'x' %}", "failed: TypeError"),
        ("{{ range(999999999) | list }}", "failed: OverflowError"),
        ("{% set x = 'y' * 999999 %}{% for i in range(99999) %}{{ x }}{% endfor %}", "writes more than"),
        ("{{ raise_exception('\x1b[2J\u202e' ~ 'x' * 9999) }}", r"conversation: \\x1b\[2J\\u202exxx.{,1000}$"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deeply"),
        ("{{ " + "[" * 99999, "nested too deeply"),
    ],
)
def test_what_a_template_may_not_do(source: str, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        ChatTemplate(source).render([U | {"content": "x"}])


U = {"role": "user"}
NESTED = """{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}
{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited on Linux only")
@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 999999999 }}",  # computed when it is compiled
        "{{ messages[0].content * 999999999 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(messages | length) }}",
        "{{ '{:999999999}'.format(messages | length) }}",
        "{{ messages[0].content | center(999999999) }}",
        "{{ messages[0].content.ljust(999999999) }}",
        "{{ '\t'.expandtabs(999999999) }}",
        "{{ [messages] | tojson(indent=999999999) }}",
        "{{ messages | slice(999999999) | list }}",
        "{{ messages | batch(999999999, 'x') | list }}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set x %}{% for i in range(9999) %}{{ 'y' * 99999 }}{% endfor %}{% endset %}",
        NESTED + "{{ n.a }}",
    ],
)
def test_memory_is_bounded(source: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"takes more than (256\.0 MiB of memory|2 s)"):
        ChatTemplate(source).render([U | {"content": "x"}])
    assert ChatTemplate("{{ messages[0].content }}").render([U | {"content": "still here"}]) == "still here"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{% set x = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{{ f(90) }}",
        "{{ 9 ** (9 ** 9) }}",  # computed when it is compiled, in one operation that lets no other thread run
        NESTED + "{{ n.a == n.b }}",
    ],
)
def test_a_template_without_end_is_stopped(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="takes more than 2 seconds, so it may never end"):
        ChatTemplate(source).render([])
    assert ChatTemplate("{{ messages[0].content }}").render([U | {"content": "still here"}]) == "still here"


def test_a_process_that_died_is_replaced() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    before = _process._renderer._process
    assert before is not None
    before._child.kill()
    before._child.wait()
    assert template.render([U | {"content": "a"}]) == "a"
    after = _process._renderer._process
    assert after is not before
    for odd in ("\ud800 é", "\ud83e\udd99", "\0\x1b"):  # halves of characters, also two that would make one
        assert template.render([U | {"content": odd}]) == odd
    assert _process._renderer._process is after


def test_an_interrupted_request_is_not_answered_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    read = _process._read

    def interrupted(*args: Any) -> bytes:
        monkeypatch.setattr(_process, "_read", read)
        raise KeyboardInterrupt

    monkeypatch.setattr(_process, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        template.render([U | {"content": "a"}])
    assert template.render([U | {"content": "b"}]) == "b"


def test_a_process_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    _process._renderer.end()
    monkeypatch.setattr(sys, "executable", sys.executable + "-that-is-not-there")
    with pytest.raises(ChatTemplateError, match=r"process that renders .* could not be started: .*No such file"):
        template.render([U | {"content": "a"}])


def test_a_frozen_program_renders_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(_process._renderer, "ask", None)
    assert template.render([U | {"content": "a"}]) == "a"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove the folder of a process")
def test_in_a_folder_that_was_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", ["", None, *sys.path])
    (tmp_path / "gone").rmdir()
    _process._renderer.end()
    assert ChatTemplate("{{ messages[0].content }}").render([U | {"content": "a"}]) == "a"
    with pytest.raises(ConversionError, match=r"cannot write new\.gguf: No such file or directory"):
        check_target("new.gguf", overwrite=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX only")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_its_own_renderer() -> None:
    """Also while another thread of the parent waits for an answer, and holds the lock."""
    template = ChatTemplate("{{ messages[0].content }}")
    with _process._renderer._lock:
        pid = os.fork()
        if pid == 0:  # nothing but os._exit may end the child
            signal.alarm(60)
            code = 1
            try:
                assert template.render([U | {"content": "child"}]) == "child"
                _process._renderer.end()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert template.render([U | {"content": "parent"}]) == "parent"


def test_threads_get_their_own_answers() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    texts = [str(i) * i for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: template.render([U | {"content": text}]), texts)) == texts
