"""Passes ggml's messages to the logger `hotshoe.ggml`. Nothing is printed.

ggml calls back from any thread, also while the interpreter shuts down. So the Python callback never raises, and a C
function that drops the text replaces it before the interpreter ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from typing import Any

from hotshoe_ggml._gen_ffi import ffi

logger = logging.getLogger("hotshoe.ggml")

_LEVELS = {
    0: logging.DEBUG,  # GGML_LOG_LEVEL_NONE: raw text, such as a dump
    1: logging.DEBUG,
    2: logging.INFO,
    3: logging.WARNING,
    4: logging.ERROR,
}
_CONTINUED = 5  # GGML_LOG_LEVEL_CONT: continues the previous line
_pending = threading.local()
_callbacks: list[Any] = []  # cffi frees a callback without references, while C still has its address


def _emit(level: int, text: str) -> None:
    """Log whole lines. A part of a line waits for its end, in each thread."""
    if level != _CONTINUED:
        _flush()
        _pending.level = _LEVELS.get(level, logging.INFO)
    _pending.text = getattr(_pending, "text", "") + text
    if text.endswith("\n"):
        _flush()


def _flush() -> None:
    text = getattr(_pending, "text", "").strip()
    _pending.text = ""
    if text:
        logger.log(getattr(_pending, "level", logging.INFO), "%s", text)


def _on_log(level: int, text: Any, _user_data: Any) -> None:
    _emit(level, ffi.string(text).decode("utf-8", "replace"))


def _on_log_raised(_type: type[BaseException], error: BaseException, _traceback: Any) -> None:
    """Called by cffi, which would otherwise print the error to stderr.

    It gets what a ``try`` in ``_on_log`` would miss: after Ctrl-C Python raises at the first instruction of a function.
    """
    if not isinstance(error, Exception):
        _pending.raised = error


def raise_pending() -> None:
    """Raise the KeyboardInterrupt that came while this thread logged a message: a callback of C cannot raise it."""
    error, _pending.raised = getattr(_pending, "raised", None), None
    if error is not None:
        raise error


def _on_abort(message: Any) -> None:
    with contextlib.suppress(Exception):
        _flush()
        # ggml ends the process when this returns: it has no other way to report a broken invariant
        logger.critical("ggml aborts the process: %s", ffi.string(message).decode("utf-8", "replace").strip())
        for handler in logging.getLogger().handlers:
            handler.flush()


def install(base: Any, discard: Any) -> None:
    """Connect ggml's log to `logging`.

    base: libggml-base. discard: a C function with the signature of `ggml_log_callback` that does nothing.
    """
    on_log = ffi.callback("ggml_log_callback", _on_log, onerror=_on_log_raised)
    on_abort = ffi.callback("ggml_abort_callback_t", _on_abort)
    _callbacks.extend((on_log, on_abort))
    base.ggml_log_set(on_log, ffi.NULL)
    base.ggml_set_abort_callback(on_abort)

    def detach() -> None:
        base.ggml_log_set(discard, ffi.NULL)
        base.ggml_set_abort_callback(ffi.NULL)

    atexit.register(detach)
