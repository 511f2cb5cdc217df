"""Passes ggml's messages to the logger `hotshoe.ggml`. Nothing is printed.

ggml calls back from any thread, also while the interpreter shuts down. So the Python callback never raises, and a C
function that drops the text replaces it before the interpreter ends. Messages below the logger's level never reach
Python: a C function drops them.
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
_filter = ffi.new("struct hotshoe_log *")


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


def follow_level() -> None:
    """Let ggml's messages through that the logger's present level allows. `logging` does not tell when it changes."""
    least = max(logger.getEffectiveLevel(), logger.manager.disable + 1)
    if least <= logging.DEBUG:
        _filter.least = 0
    else:
        _filter.least = 2 if least <= logging.INFO else 3 if least <= logging.WARNING else 4


def install(base: Any, kernels: Any) -> None:
    """Connect ggml's log to `logging`. base: libggml-base. kernels: libhotshoe_kernels."""
    on_log = ffi.callback("ggml_log_callback", _on_log, onerror=_on_log_raised)
    on_abort = ffi.callback("ggml_abort_callback_t", _on_abort)
    _callbacks.extend((on_log, on_abort))
    _filter.callback = on_log
    follow_level()
    base.ggml_log_set(ffi.addressof(kernels, "hotshoe_log_filter"), _filter)
    base.ggml_set_abort_callback(on_abort)

    def detach() -> None:
        base.ggml_log_set(ffi.addressof(kernels, "hotshoe_log_discard"), ffi.NULL)
        base.ggml_set_abort_callback(ffi.NULL)

    atexit.register(detach)
