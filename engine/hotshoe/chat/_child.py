"""The child process that renders chat templates, with limits of time and memory. The parent's side is `_process.py`.

A template is untrusted code. The sandbox restricts it to its data, but cannot limit what it does with the data.
``'%9999999999d' % 1``, ``x | center(10 ** 10)``, or ``a == b`` for lists that contain another list twice, forty levels
deep: one such operation in C may take hours or all memory, and no other thread of the process runs meanwhile. It is not
practical to check the arguments of every operator, filter and method: new releases of Python and Jinja2 add more, and
some run when the template is compiled, because Jinja2 evaluates constants. But a process can always be killed.

- Time: the kernel kills this process after ``SECONDS`` of CPU time for one request. The signal has no handler, so it
  works while the interpreter is busy. The parent also limits the elapsed time; on Windows this is the only limit.
- Memory: on Linux, the address space may grow by ``MEMORY`` from that of the idle process. Then allocation fails with a
  MemoryError, which ends the request and afterwards this process. On other systems only the time limits the memory.
- Output: a template may write ``MAX_TEXT`` characters.

A request is a dict in the marshal format: it is fast, exact for all of JSON's types, and safe because the parent is
trusted. A reply is JSON, because this process is not trusted. Each has its length before it, in 8 bytes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import marshal
import os
import signal
import struct
import sys
from datetime import datetime, timedelta, timezone
from typing import Any, BinaryIO

__all__ = ["LENGTH", "MAX_TEXT", "MEMORY", "SECONDS", "answer", "main"]

SECONDS = 2.0
MEMORY = 256 << 20
MAX_TEXT = 1 << 24
LENGTH = struct.Struct("<Q")
_MAX_MESSAGE = 1000
_KEPT = 16  # compiled templates


def main() -> None:
    """Answer requests from standard input until it ends."""
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    import jinja2.sandbox  # noqa: F401  (before the memory limit, which starts from the current size)

    _limit_memory()
    _send(replies, {})
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        request = marshal.loads(requests.read(*LENGTH.unpack(head)))
        _limit_time(SECONDS)
        reply = answer(request)
        _send(replies, reply)
        _limit_time(0)
        if reply.get("error") == "memory":
            return


def _send(replies: BinaryIO, reply: dict[str, Any]) -> None:
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")  # keeps lone surrogates
    replies.write(LENGTH.pack(len(data)) + data)
    replies.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request.

    A request with ``source``, ``variables`` and ``now`` renders the template; the reply has "text". A request with
    ``source`` only analyses it; the reply has "names", "literals" and "attributes". If anything fails, the reply has
    "message" and "error": "syntax" (with "line"), "refused", "security", "undefined", "depth", "length", "memory" or
    "failed".
    """
    import jinja2
    from jinja2.exceptions import SecurityError, UndefinedError

    from hotshoe.chat._environment import RefusedError

    try:
        if "variables" not in request:
            return _facts(request["source"])
        return _render(request)
    except jinja2.TemplateSyntaxError as e:
        return _error("syntax", e.message) | {"line": e.lineno}
    except RefusedError as e:
        return _error("refused", e.message)
    except SecurityError as e:
        return _error("security", e.message)
    except UndefinedError as e:
        return _error("undefined", e.message)
    except RecursionError:
        return _error("depth", "")
    except MemoryError:
        return _error("memory", "")
    except Exception as e:  # any other error of the template
        with contextlib.suppress(Exception):
            return _error("failed", f"{type(e).__name__}: {e}")
        return _error("failed", type(e).__name__)


def _error(kind: str, message: str | None) -> dict[str, Any]:
    return {"error": kind, "message": (message or "")[:_MAX_MESSAGE]}


def _render(request: dict[str, Any]) -> dict[str, Any]:
    environment, template = _compile(request["source"])
    environment.now = _moment(request["now"])
    out: list[str] = []
    size = 0
    for piece in template.generate(request["variables"]):
        out.append(piece)
        size += len(piece)
        if size > MAX_TEXT:
            return _error("length", "")
    return {"text": "".join(out)}


def _facts(source: str) -> dict[str, Any]:
    from jinja2 import nodes

    environment, _ = _compile(source)
    tree = environment.parse(source)
    return {
        "names": sorted({n.name for n in tree.find_all(nodes.Name) if n.ctx == "load"}),
        "literals": sorted({n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)}),
        "attributes": sorted({n.attr for n in tree.find_all(nodes.Getattr)}),
    }


@functools.lru_cache(_KEPT)
def _compile(source: str) -> tuple[Any, Any]:
    """The compiled template, and its own environment."""
    from hotshoe.chat._environment import ChatEnvironment

    environment = ChatEnvironment()
    return environment, environment.from_string(source)


def _moment(given: tuple[Any, ...] | None) -> datetime:
    """The time that ``_template.py`` sends: year to microsecond, seconds from UTC, and the name of the time zone."""
    if given is None:
        return datetime.min
    fields, offset, name = given
    moment = datetime(*fields)
    return moment if offset is None else moment.replace(tzinfo=timezone(timedelta(seconds=offset), name or ""))


def _limit_memory() -> None:
    if sys.platform.startswith("linux"):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        limit = used + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard_limit < 0 else min(limit, hard_limit), hard_limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time(seconds: float) -> None:
    """Have the kernel kill this process after ``seconds`` of CPU time; 0 for no limit."""
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have ignored or blocked the signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF,))
        signal.setitimer(signal.ITIMER_PROF, seconds)
