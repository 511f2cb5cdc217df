"""The files of a batch: lines of requests, and lines of answers, in OpenAI's batch format.

The number of a request's line is part of the ``id`` of its answer. So a run that goes on needs a few bytes of memory
for each line, whatever the lines hold. Source of the format: OpenAI's guide to its Batch API.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from hotshoe.atomic_file import lock_file
from hotshoe_core.errors import OptionError

__all__ = ["BadLine", "Input", "Output", "Reply", "Request", "URLS"]

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The endpoints that a line can name."""
_MAX_LINE = 32 << 20  # bytes, as in a request to the server
_ID = re.compile(r"batch_req_(\d{1,18})")
_BEGINNING = b'{"id":"batch_req_'
"""Of a line of the output: what ``Output.write`` writes first."""


@dataclass(frozen=True)
class Request:
    """A line of the input."""

    number: int
    """Counted from 1."""
    custom_id: str
    url: str
    body: bytes
    """The JSON object to send."""


@dataclass(frozen=True)
class BadLine:
    """A line of the input that is not a request."""

    number: int
    custom_id: str | None
    why: str


@dataclass(frozen=True)
class Reply:
    """What a server answered, or why there is no answer."""

    status: int
    """The status of HTTP; 0: there is no answer, and ``code`` and ``error`` say why."""
    body: bytes = b""
    code: str = ""
    error: str = ""
    retry_after: float | None = None
    """Seconds to wait before the next request, if the server said so."""


class _Line(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    stream: Any = None


class _Named(msgspec.Struct):
    custom_id: str | None = None


class _Status(msgspec.Struct):
    status_code: int


class _Answer(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Status | None
    error: Any


class Input:
    """The requests. Call ``scan`` before anything else."""

    def __init__(self, path: Path) -> None:
        """Raises OptionError unless it is a regular file: a batch reads it twice."""
        self.path = path
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise OptionError(f"{path} {what}", hint="expected a file with one JSON object on each line")
        self._prints = array("Q")
        """A fingerprint of each line's custom_id; 0: it has none, or the line is empty."""
        self._is_empty = bytearray()
        self._is_done = bytearray()
        self._repeated: dict[int, dict[str, int]] = {}
        """For fingerprints that occur more than once: the first line of each custom_id."""

    @property
    def n_lines(self) -> int:
        """The lines with a request or with something that is not one."""
        return len(self._prints) - sum(self._is_empty)

    @property
    def n_done(self) -> int:
        """The lines that are answered already."""
        return sum(self._is_done)

    def scan(self) -> None:
        """Read the custom_id of each line, to find those that occur twice."""
        for number, raw in self._raw():
            self._prints.append(_fingerprint(_read(number, raw).custom_id) if raw else 0)
            self._is_empty.append(not raw)
        self._is_done = bytearray(len(self._prints))
        self._repeated = {print_: {} for print_ in _repeats(self._prints) if print_}

    def mark(self, number: int, custom_id: str | None, where: Path) -> None:
        """Note that a line is answered. Raises OptionError if the line is another one, so that ``where`` is of another
        input."""
        known = 0 < number <= len(self._prints) and not self._is_empty[number - 1]
        if not known or self._prints[number - 1] != _fingerprint(custom_id):
            raise OptionError(
                f"{where} has an answer for line {number} with custom_id {custom_id!r:.80}; {self.path} has "
                + ("another request there" if known else "no such line"),
                hint="the file belongs to another input: choose another name for the output",
            )
        self._is_done[number - 1] = 1

    def __iter__(self) -> Iterator[Request | BadLine]:
        """The lines that are not answered yet, in their order."""
        for number, raw in self._raw():
            if number > len(self._prints):  # the file grew meanwhile
                return
            if not raw:
                continue
            line = _read(number, raw)
            first = self._first(line)
            if self._is_done[number - 1]:
                continue
            if first != number and isinstance(line, Request):
                line = BadLine(number, line.custom_id, f"the custom_id is that of line {first} too")
            yield line

    def _first(self, line: Request | BadLine) -> int:
        """The first line with the same custom_id."""
        seen = self._repeated.get(self._prints[line.number - 1])
        if seen is None or line.custom_id is None:
            return line.number
        return seen.setdefault(line.custom_id, line.number)

    def _raw(self) -> Iterator[tuple[int, bytes | None]]:
        """The lines with their numbers; None for an empty one. Of a line that is too long, only the beginning."""
        with open(self.path, "rb") as file:
            number = 0
            while raw := file.readline(_MAX_LINE + 1):
                number += 1
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                rest = raw
                while len(rest) > _MAX_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(_MAX_LINE + 1)
                yield number, raw.strip() or None


def _repeats(prints: array[int]) -> list[int]:
    """The fingerprints that occur more than once."""
    if len(prints) < 2:
        return []
    ordered = np.sort(np.frombuffer(prints, np.uint64))
    return [int(print_) for print_ in np.unique(ordered[1:][ordered[1:] == ordered[:-1]])]


def _fingerprint(custom_id: str | None) -> int:
    if custom_id is None:
        return 0
    return int.from_bytes(hashlib.blake2b(custom_id.encode(), digest_size=8).digest(), "little") or 1


def _read(number: int, raw: bytes) -> Request | BadLine:
    """A line as a request, or what is wrong with it."""
    if len(raw) > _MAX_LINE:
        return BadLine(number, None, f"the line is longer than {_MAX_LINE >> 20} MiB")
    try:
        line = msgspec.json.decode(raw, type=_Line)
        body = bytes(line.body)
        streams = msgspec.json.decode(body, type=_Body).stream
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return BadLine(number, _custom_id(raw), f"the line is not a request: {error}")
    if line.method != "POST":
        return BadLine(number, line.custom_id, f"method is {line.method!r:.40}; expected POST")
    if line.url not in URLS:
        return BadLine(number, line.custom_id, f"url is {line.url!r:.80}; expected one of {', '.join(URLS)}")
    if streams:
        return BadLine(number, line.custom_id, "stream is set; a batch has no streams")
    return Request(number, line.custom_id, line.url, body)


def _custom_id(raw: bytes) -> str | None:
    """The custom_id of a line that is not a request, if it has one."""
    try:
        return msgspec.json.decode(raw, type=_Named).custom_id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


class Output:
    """The answers, one line each, in the order in which they come. It is a context manager."""

    def __init__(self, path: Path, source: Path) -> None:
        """Open the file, and make it if it is missing. Raises OptionError if it is ``source``, is not a regular file,
        has no folder, or if another run writes it."""
        if not path.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.parent}", hint="make it, or choose another name")
        if path.exists() and (not path.is_file() or path.samefile(source)):
            what = "the input itself" if path.is_file() else "not a regular file"
            raise OptionError(f"{path} is {what}; expected a name for the answers")
        self.path = path
        self._file: BinaryIO = os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b"
        )
        try:
            lock_file(self._file)
        except OSError:
            self._file.close()
            raise OptionError(f"another run writes {path} now", hint="wait until it has ended") from None
        self.n_wrong = 0
        """The answers that have no status 200."""

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def resume(self, requests: Input) -> None:
        """Mark the requests that have an answer, and remove a half-written line at the end.

        Raises OptionError for a line that is not an answer.
        """
        end = 0
        for number, raw in enumerate(self._file, 1):
            if not raw.endswith(b"\n") and raw[: len(_BEGINNING)] == _BEGINNING[: len(raw)]:
                break  # a file of something else is not cut
            end += len(raw)
            try:
                answer = msgspec.json.decode(raw, type=_Answer)
                found = _ID.fullmatch(answer.id)
                if found is None:
                    raise ValueError(f"its id is {answer.id!r:.40}")
            except (ValueError, RecursionError) as error:  # MsgspecError is a ValueError
                raise OptionError(
                    f"{self.path}: line {number} is not an answer of a batch: {error}",
                    hint="choose another name for the output",
                ) from None
            requests.mark(int(found[1]), answer.custom_id, self.path)
            self.n_wrong += answer.response is None or answer.response.status_code != 200
        self._file.truncate(end)
        self._file.seek(end)

    def write(self, line: Request | BadLine, reply: Reply) -> None:
        """Add the answer of a line. It is in the file when this returns."""
        response = error = None
        if reply.status:
            try:
                body = msgspec.json.decode(reply.body)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                error = {"code": "invalid_response", "message": f"status {reply.status}, and the body is not JSON"}
            else:
                response = {"status_code": reply.status, "request_id": f"req_{line.number}", "body": body}
        else:
            error = {"code": reply.code, "message": f"line {line.number}: {reply.error}"}
        record = {"id": f"batch_req_{line.number}", "custom_id": line.custom_id, "response": response, "error": error}
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        self.n_wrong += reply.status != 200 or response is None
