"""Random chat templates, harmless and hostile: rendered as by Jinja2, or refused, in bounded time and memory."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hotshoe.chat import ChatTemplate, _process
from hotshoe.chat._child import MEMORY
from hotshoe_core.errors import ChatTemplateError
from tests.fuzz.fault import Fault

__all__ = ["SEEDS", "SHARE", "run"]

SEEDS = (1000176,)  # two halves of a character came back as one
SHARE = 60

WALL = 15.0  # seconds: more than the limit on the wall, less than the driver's
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "a\nb <b>é</b> \ud83e\udd99", "n": 3},
    {"role": "assistant", "content": "Ho", "parts": [{"type": "text", "text": "one"}, 2.5, None, True]},
    {"role": "user", "content": "{{ not }}"},
]
ORDINARY = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"


def _each(listed: str) -> list[str]:
    return " ".join(listed.split()).split("; ")


FILTERS = _each("""
abs; attr('x'); attr('__class__'); batch({n}); batch({n}, 'x'); capitalize; center({n}); count; default('x');
dictsort; e; escape; filesizeformat; first; float; forceescape; format({n}, {n}); groupby('role'); indent({n});
indent({n}, true); int; int(0, {n}); items; join; join({s}); last; length; list; lower; map('upper');
map(attribute='role'); map('center', {n}); max; min; pprint; random; reject('none'); rejectattr('x'); replace({s},
{s}); replace('', {s}); reverse; round; round({n}); safe; select('string'); selectattr('role'); slice({n}); sort;
string; striptags; sum; sum(start=[]); title; tojson; tojson(indent={n}); trim; truncate({n}); unique; upper;
urlencode; urlize; wordcount; wordwrap({n}); xmlattr; map('batch', {n}); map('join', {s})
""")
HARMLESS_FILTERS = _each("""
trim; upper; lower; title; capitalize; length; first; last; list; string; e; reverse | list; join('-');
replace('a', 'bb'); default('x'); wordcount; tojson
""")
METHODS = _each("""
center({n}); ljust({n}); rjust({n}, 'x'); zfill({n}); expandtabs({n}); join({v}); replace('', {s}); split({s});
split(''); splitlines(); strip(); format({n}, {v}); encode('utf-16'); count(''); translate({v}); upper(); items();
keys(); get('role'); append(1); bit_length(); to_bytes({n}, 'big'); __class__; __init__.__globals__;
format_map({v}); index(1); copy(); startswith({s})
""")
CALLS = _each("""
range({n}); range({n}) | list; lipsum({n}); lipsum(n={n}, min={n}); dict(a={v}); f({n}); cycler({s}, {s}).next();
joiner({s})(); namespace(a={v}).a; strftime_now('%{n}d %Y'); strftime_now({s}); raise_exception({s});
raise_exception('\\x1b[2J' * 99); {v}[{n}:{n}:{n}]; ({s} % {n}); ('%' ~ {n} ~ 'd') % 1; ('{:' ~ {n} ~
'}').format(1); self; caller(); super(); n.a
""")
NUMBERS = ("0", "1", "-1", "7", "99999", "-99999", "999999999", "10 ** 10", "2 ** 63", "1e308", "x")
GROWTH = ("n.a ~ n.a", "[n.a, n.a]", "n.a * 2", "(n.a, n.a) | string", "n.a + 1")
TESTS = ("defined", "string", "mapping", "iterable", "number", "none", "sameas({v})", "divisibleby({n})", "in {v}")
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "in", "and", "or", "not in")
DEFINED = "{% set n = namespace(a='q') %}{% set x = 'ab' %}{% macro f(n) %}{{ n }}{{ caller }}{% endmacro %}"


class Writer:
    """Writes one template. ``hostile``: with numbers, operators and filters that may take for ever."""

    def __init__(self, rng: random.Random, hostile: bool) -> None:
        self.rng = rng
        self.hostile = hostile
        self.depth = 0

    def number(self) -> str:
        if not self.hostile:
            return str(self.rng.randint(0, 3))
        return self.rng.choice(NUMBERS)

    def text(self) -> str:
        return self.rng.choice(("'a'", "''", "' b\\n'", "'%s %s'", "messages[0].content", "x", "'é' * 3"))

    def _filled(self, pattern: str) -> str:
        return pattern.replace("{n}", self.number()).replace("{s}", self.text()).replace("{v}", "messages")

    def value(self) -> str:
        self.depth += 1
        try:
            return self._value() if self.depth < 5 else self.rng.choice(("x", "messages", self.text(), self.number()))
        finally:
            self.depth -= 1

    def _value(self) -> str:
        rng, kind = self.rng, self.rng.randrange(12)
        if kind < 2:
            return rng.choice(("messages", "messages[1].content", "messages[1]", "x", "add_generation_prompt"))
        if kind == 2:
            return self.text()
        if kind == 3:
            return f"{self.value()} | " + (
                self._filled(rng.choice(FILTERS)) if self.hostile else rng.choice(HARMLESS_FILTERS)
            )
        if kind == 4:
            operators = OPERATORS if self.hostile else ("~", "==", "and", "or")
            return f"({self.value()} {rng.choice(operators)} {self.value()})"
        if kind == 5:
            return f"({self.value()} if {self.condition()} else {self.value()})"
        if kind == 6:
            return f"[{self.value()}, {self.value()}]"
        if kind == 7:
            return f"{{'k': {self.value()}, 'role': {self.text()}}}"
        if not self.hostile:
            return rng.choice(("range(3)", "messages[1:]", "messages[::-1]", "messages | length", "loop.index"))
        if kind < 10:
            return f"{self.value()}.{self._filled(rng.choice(METHODS))}"
        return self._filled(rng.choice(CALLS))

    def condition(self) -> str:
        if self.rng.random() < 0.6:
            return f"{self.value()} is {self._filled(self.rng.choice(TESTS if self.hostile else TESTS[:6]))}"
        return self.value()

    def statements(self, n: int) -> str:
        return "".join(self.statement() for _ in range(n))

    def statement(self) -> str:
        rng, kind = self.rng, self.rng.randrange(12)
        self.depth += 1
        inner = self.statements(rng.randint(1, 2)) if self.depth < 4 else "-"
        self.depth -= 1
        if kind < 4:
            return f"{{{{ {self.value()} }}}}"
        if kind == 4:
            return f"\n  {{%- if {self.condition()} %}}{inner}{{% else -%}} no {{% endif %}}\n"
        if kind == 5:
            over = self.value() if self.hostile else rng.choice(("messages", "range(4)", "'abc'", "messages[1:]"))
            return f"{{% for m in {over} %}}{inner}{{% if loop.last %}}.{{% endif %}}{{% endfor %}}"
        if kind == 6:
            return f"{{% set x = {self.value()} %}}"
        if kind == 7:
            return f"{{% set x %}}{inner}{{% endset %}}"
        if kind == 8:
            return f"{{% filter {rng.choice(('upper', 'trim', 'title'))} %}}{inner}{{% endfilter %}}"
        if not self.hostile:
            return "plain text é\n"
        if kind == 9:
            return (
                f"{{% macro f(n) %}}{inner}{{{{ f({rng.choice(('n', 'n - 1', 'n ~ n', '[n, n]'))}) }}}}{{% endmacro %}}"
            )
        if kind == 10:
            return (
                f"{{% set n = namespace(a={self.value()}) %}}{{% for i in range({rng.choice((3, 40, 99999))}) %}}"
                f"{{% set n.a = {rng.choice(GROWTH)} %}}"
                f"{inner}{{% endfor %}}"
            )
        return rng.choice(("{% break %}", "{% call f(3) %}x{% endcall %}", "{% include 'x' %}", "{{"))


def run(seed: int) -> str:
    rng = random.Random(seed)
    hostile = rng.random() < 0.7
    source = Writer(rng, hostile).statements(rng.randint(1, 2 if hostile else 5))
    if hostile and rng.random() < 0.8:
        source = DEFINED + source
    if hostile and rng.random() < 0.05:
        source = rng.choice(("{{ " + "(" * 3000, "{{ " + "-" * 3000 + "1 }}", "{% if 1 %}" * 2000, source * 500))
    began = time.monotonic()
    try:
        text: str | None = ChatTemplate(source, "<s>").render(MESSAGES)
    except ChatTemplateError as error:
        text, outcome = None, _refused(error)
    else:
        outcome = "answered"
    seconds = time.monotonic() - began
    if seconds > WALL:
        raise Fault("slow", f"{seconds:.0f} s for {source!r}")
    if _held() > MEMORY + (64 << 20):
        raise Fault("large", f"{_held():,} bytes stay for {source!r}")
    if not hostile:
        expected = _jinja(source)
        if text != expected:
            raise Fault("different", f"{source!r} gives {text!r}; Jinja2 gives {expected!r}")
        outcome = "same"
    if ChatTemplate(ORDINARY).render(MESSAGES[:1]) != "system: Be brief.\n":
        raise Fault("different", f"after {source!r} another template is rendered otherwise")
    return outcome


def _refused(error: ChatTemplateError) -> str:
    lines = str(error).split("\n")
    if not all(line.isprintable() for line in lines):
        raise Fault("escape", f"control characters in {str(error)!r}")
    if len(str(error)) > 5000:
        raise Fault("large", f"a message of {len(str(error)):,} characters")
    if "ended the process" in str(error):
        raise Fault("crash", str(error))
    return "refused"


def _jinja(source: str) -> str | None:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # as transformers' is
    try:
        return environment.from_string(source).render(messages=MESSAGES, add_generation_prompt=True, bos_token="<s>")
    except Exception:
        return None


def _held() -> int:
    """Bytes in memory of the process that renders; 0 where the system does not say."""
    process = _process._renderer._process
    try:
        pid = 0 if process is None else process._child.pid
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0
