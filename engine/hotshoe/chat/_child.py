"""What renders chat templates: a process of its own, with a limit of time and memory. Its other side is `_process.py`.

A template is somebody else's code. The sandbox keeps it from everything but its data; what it does to its data cannot
be bounded from inside. ``'%9999999999d' % 1``, ``x | center(10 ** 10)``, ``a == b`` of lists that each hold another
twice, forty levels deep: one operation of C may take hours or all memory, and no other thread of its process runs
meanwhile. Checking the arguments of every operator, filter and method, while the next release of Python or Jinja2 adds
one, is a race; some of it happens when the template is compiled, as Jinja2 computes what is constant. A process can be
ended whatever it does.

- Time: the kernel ends this process when a request has taken ``SECONDS`` of the processor; signals that no handler
  waits for need no interpreter. The other side has a clock on the wall besides, which is all there is on Windows.
- Memory: on Linux the address space may grow by ``MEMORY`` from what an idle process has. What is refused then is a
  MemoryError, which ends the request, and this process after it. Elsewhere the time bounds it, badly.
- What a template writes: ``MAX_TEXT`` characters.

A request is a dict in the marshal format: quick, exact for all of JSON's types, and safe where the sender is trusted.
A reply is JSON, because this side is not. Either has its length before it, in 8 bytes.
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
    import jinja2.sandbox  # noqa: F401  (before memory is limited by what there is)

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
    data = json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")  # halves of characters stay halves
    replies.write(LENGTH.pack(len(data)) + data)
    replies.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One request: ``source`` and, to render it, ``variables`` and ``now``; without them: what the template names.

    The reply has "text", or "names", "literals" and "attributes"; or "error", one of "syntax" (with "line"), "refused",
    "security", "undefined", "depth", "length", "memory" and "failed", with "message".
    """
    import jinja2
    from jinja2.exceptions import SecurityError, UndefinedError

    from hotshoe.chat._environment import RefusedError

    try:
        if "variables" not in request:
            return _facts(request["source"])
        return _rendered(request)
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
    except Exception as e:  # whatever somebody else's code does
        with contextlib.suppress(Exception):
            return _error("failed", f"{type(e).__name__}: {e}")
        return _error("failed", type(e).__name__)


def _error(kind: str, message: str | None) -> dict[str, Any]:
    return {"error": kind, "message": (message or "")[:_MAX_MESSAGE]}


def _rendered(request: dict[str, Any]) -> dict[str, Any]:
    environment, template = _compiled(request["source"])
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

    environment, _ = _compiled(source)
    tree = environment.parse(source)
    return {
        "names": sorted({n.name for n in tree.find_all(nodes.Name) if n.ctx == "load"}),
        "literals": sorted({n.value for n in tree.find_all(nodes.Const) if isinstance(n.value, str)}),
        "attributes": sorted({n.attr for n in tree.find_all(nodes.Getattr)}),
    }


@functools.lru_cache(_KEPT)
def _compiled(source: str) -> tuple[Any, Any]:
    """The environment, one for each template, and the template."""
    from hotshoe.chat._environment import ChatEnvironment

    environment = ChatEnvironment()
    return environment, environment.from_string(source)


def _moment(given: tuple[Any, ...] | None) -> datetime:
    """The time as ``_process.py`` sends it: year to microsecond, seconds from UTC, the zone's name."""
    if given is None:
        return datetime.min
    fields, offset, name = given
    moment = datetime(*fields)
    return moment if offset is None else moment.replace(tzinfo=timezone(timedelta(seconds=offset), name or ""))


def _limit_memory() -> None:
    if sys.platform.startswith("linux"):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = held + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit if most < 0 else min(limit, most), most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time(seconds: float) -> None:
    """End this process when it has computed for so long; 0 for never."""
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # whoever started us may have ignored or blocked it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGPROF,))
        signal.setitimer(signal.ITIMER_PROF, seconds)
