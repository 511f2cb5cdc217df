"""What hostile plugins and files are made of: mutators of JSON, bytes and ELF, odd files, and code that lies."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "ELF_SOURCE",
    "mutated_bytes",
    "mutated_elf",
    "mutated_json",
    "put_odd_file",
    "random_expression",
    "wild_code",
]

ELF_SOURCE = 'extern double cos(double); double small(double x) { return cos(x); } const char version[] = "0.20.2";\n'

_TEXTS = ("", " ", "\x1b[2J", "\x9b31m", "\u202eabc", "\ud800", "\0", "a\0b", "x" * 5000, "../..", "/dev/zero", "auto")
_NUMBERS = (0, 1, -1, True, 7, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 10**400, 0.5, -0.0, 1e308)
_WORDS = (
    "crashed",
    "loaded",
    "available",
    "cpu",
    "gpu",
    "good",
    "good:0",
    "cpu:0",
    "ggml-cpu",
    "reference",
    "nan",
    "1",
)
_NONE = (None, float("nan"), float("inf"), -float("inf"))


def _random_value(rng: random.Random) -> Any:
    choice = rng.random()
    if choice < 0.3:
        return rng.choice(_TEXTS)
    if choice < 0.5:
        return rng.choice(_NUMBERS)
    if choice < 0.65:
        return rng.choice(_WORDS)
    if choice < 0.75:
        return rng.choice(_NONE)
    if choice < 0.8:
        nested: Any = "x"
        for _ in range(rng.choice([3, 50, 400])):
            nested = [nested] if rng.random() < 0.9 else {"a": nested}
        return nested
    if choice < 0.9:
        return [_random_value(rng) for _ in range(rng.choice([0, 1, 2, 3]))]
    return {str(_random_value(rng))[:20]: _random_value(rng) for _ in range(rng.choice([0, 1, 2]))}


def mutated_json(rng: random.Random, data: Any) -> str:
    """``data`` with a few values replaced, removed, doubled or added anywhere in it, as text."""
    data = json.loads(json.dumps(data))
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        places: list[tuple[Any, Any]] = []

        def walk(node: Any, depth: int = 0) -> None:
            if depth > 30:
                return
            pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            for key, value in pairs:
                places.append((node, key))  # noqa: B023
                walk(value, depth + 1)

        walk(data)
        if not places:
            return json.dumps(_random_value(rng))
        # Most of the places are deep inside of what is compared and not read: the report's own come first.
        node, key = rng.choice(places[-40:] if rng.random() < 0.7 else places)
        how = rng.random()
        if how < 0.7:
            node[key] = _random_value(rng)
        elif how < 0.8:
            del node[key]
        elif isinstance(node, dict):
            node[str(_random_value(rng))[:30]] = _random_value(rng)
        else:
            node.append(rng.choice(node))
    return json.dumps(data)


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flipped, cut, doubled, spliced; or something else entirely."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(9)
        if how == 0 and data:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif how == 1:
            data = data[:at]
        elif how == 2:
            data = (
                data[:at]
                + rng.choice([b"\xff", b"\0", b"\x1b[2J", b"\r", b"\n", b"\xe2\x80\xa8", b"=", b"["])
                + data[at:]
            )
        elif how == 3:
            data = data[:at] + data[rng.randrange(len(data) + 1) :]
        elif how == 4:
            data = data * rng.choice([2, 50])
        elif how == 5:
            data = data[:at] + bytes(rng.randrange(256) for _ in range(rng.choice([1, 8, 200]))) + data[at:]
        elif how == 6:
            data = data[:at] + rng.choice([b"x", b"[", b'{"a":', b"9"]) * rng.choice([100, 10_000]) + data[at:]
        elif how == 7:
            data = rng.choice([b"\xef\xbb\xbf", b"\xff\xfe"]) + data
        elif how == 8:
            data = data.replace(
                rng.choice([b"1", b"a", b"\n", b"bad", b","]), rng.choice([b"", b"\x00", b"-9", b"\xc3"])
            )
    return data


def mutated_elf(rng: random.Random, data: bytes) -> bytes:
    """Numbers of the header, the segments and the dynamic section replaced; or cut, or flipped anywhere."""
    buffer = bytearray(data)
    table, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    segments = [struct.unpack_from("<IIQQQQQQ", data, table + 56 * i) for i in range(count)]
    dynamic = next(each for each in segments if each[0] == 2)
    numbers = [0, 1, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, len(data), len(data) - 1, dynamic[2]]
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        how, number = rng.random(), rng.choice([*numbers, rng.randrange(1 << 16)])
        if how < 0.2:
            struct.pack_into("<H", buffer, rng.choice([16, 18, 52, 54, 56, 58, 60, 62]), number & 0xFFFF)
        elif how < 0.3:
            struct.pack_into("<Q", buffer, rng.choice([24, 32, 40]), number & 0xFFFFFFFFFFFFFFFF)
        elif how < 0.5:
            at = table + 56 * rng.randrange(count) + rng.choice([0, 8, 16, 24, 32, 40, 48])
            struct.pack_into("<Q", buffer, at, number & 0xFFFFFFFFFFFFFFFF)
        elif how < 0.75:
            at = dynamic[2] + 16 * rng.randrange(dynamic[5] // 16)
            tag = rng.choice([1, 5, 10, 14, 15, 29, rng.randrange(64)])
            struct.pack_into("<Q", buffer, at + rng.choice([0, 8]), tag if rng.random() < 0.5 else number)
        elif how < 0.85:
            buffer[rng.randrange(64)] = rng.randrange(256)
        elif how < 0.95:
            buffer[rng.randrange(len(buffer))] = rng.randrange(256)
        else:
            return bytes(buffer[: rng.randrange(len(buffer))])
    return bytes(buffer)


def put_odd_file(rng: random.Random, path: Path) -> None:
    """A FIFO, a device, a loop of links, a folder, or a file of a gigabyte that is not there, in place of ``path``."""
    odd: list[Callable[[], object]] = [
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path),
        lambda: path.symlink_to("/proc/self/mem"),
        lambda: path.symlink_to("."),
        path.mkdir,
        lambda: _sparse(path),
    ]
    rng.choice(odd)()


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 30)


# Python source of values; Evil is a str whose repr raises SystemExit.
_EXPRESSIONS = (
    *("None", "True", "0", "-1", "5", "1 << 63", "10**5000", "float('nan')", "float('inf')", "b'x'", "object()"),
    *("''", "'auto'", "'good:0'", "'bad:1'", "'cpu'", "'\\x1b[2J'", "'\\ud800'", "'x' * 10_000", "'a\\0b'", "'a b'"),
    *("Evil('bad:0')", "[Evil('x')]", "[]", "[None]", "[[]] * 3", "{}", "{'a': 1}", "{'a': [1]}", "{1: 2}"),
    *("{'\\x1b': 'x'}", "{'a': 10**5000}", "{'a': 'x' * 10**6}", "{str(i): i for i in range(10_000)}", "{'a': {}}"),
    *("DeviceType", "DeviceType.CPU", "Device", "lambda *a: 1 / 0", "type('\\x1b', (), {})()", "type('E', (), {})"),
    *("__import__('pathlib').Path('/x')", "__import__('pathlib').Path('\\x1b')", "range(10**9)", "iter('ab')"),
    "(lambda: (yield))()",
)


def random_expression(rng: random.Random) -> str:
    return rng.choice(_EXPRESSIONS)


_REPORT = (
    '{"report": {"rejected": null, "providers": [], "matched": [], "changes": [], "folders": [], "environment": [], '
    '"missing": [], "mapped": [], "modules": {}, "can_drive": false, '
)
_WILD = (
    "import os; os._exit({n})",
    "import os; os.kill(os.getpid(), {n})",
    "raise BaseException('\\x1b[2J' * 1000)",
    "raise type('\\x1b', (BaseException,), {'__str__': lambda self: 1 / 0})",
    "import os\nfor fd in range(3, 30):\n    try: os.write(fd, {junk!r})\n    except OSError: pass",
    "import os\nfor fd in range(3, 30):\n    try: os.write(fd, {junk!r})\n    except OSError: pass\nos._exit(0)",
    "import os\nfor fd in range(0, 30):\n    try: os.close(fd)\n    except OSError: pass",
    "import sys; sys.stdout.write('\\x1b' * 10**7); sys.stderr.write('\\x1b[2J\\n' * 10**6)",
    "import sys; sys.setrecursionlimit(60)",
    "import json, builtins; json.dumps = builtins.repr = None",
    "import sys; sys.modules.clear()",
    "import sys; sys.path = None; sys.stdout = sys.stderr = None",
    "import time; time.perf_counter = None; time.sleep({n} % 5)",
    "import os; os.environ = None",
    "import os; os.environ.clear(); os.chdir('/'); os.setsid if False else None",
    "def f(): f()\nf()",
    "import ctypes; ctypes.string_at({n})",
    "x = []\nwhile len(x) < 5000: x.append(bytearray(1 << 20))",
    "import threading, os; threading.Timer(0.2, os._exit, (0,)).start()",
    "import sys; sys.excepthook = sys.unraisablehook = sys.settrace = None\ndel sys.displayhook",
)


def wild_code(rng: random.Random, code: str) -> str:
    """A plugin's code with something wild before it, or within what it is asked."""
    messages = [
        _REPORT + '"elapsed": 0}}',
        _REPORT + f'"elapsed": {rng.choice(["NaN", "-1", "1e999", "[]"])}' + "}}",
        mutated_json(rng, {"report": json.loads(_REPORT.removeprefix('{"report": ') + '"elapsed": 0}')}),
        '{"step": 5, "doing": "\\u001b[2J"}',
        '{"step": "provider:good", "doing": "x"}',
        "[" * 100_000,
        "null",
        "\x1b[2J",
    ]
    junk = ("\n".join(rng.sample(messages, 3)) + "\n").encode("utf-8", "surrogatepass")
    wild = rng.choice(_WILD).replace("{junk!r}", repr(junk)).replace("{n}", str(rng.choice([0, 1, 6, 9, 11, 14, 255])))
    if rng.random() < 0.6:
        return f"{wild}\n{code}"
    body = "\n".join(f"        {line}" for line in wild.splitlines())
    where = rng.choice(["        backend = open_reference(params)\n", "        return [\n"])
    return code.replace(where, f"{body}\n{where}", 1)
