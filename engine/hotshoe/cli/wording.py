"""Write errors in the words of the command line: ``n_ctx=512`` becomes ``--ctx 512``."""

from __future__ import annotations

import re
from collections.abc import Container

__all__ = ["in_options"]

_OPTIONS = {
    "n_ctx": "--ctx",
    "n_threads": "--threads",
    "n_sequences": "--sequences",
    "n_gpu_layers": "--gpu-layers",
    "top_n": "--top",
    "tensor_types": "--tensor-type",
}
"""Arguments whose option has another name. Others differ only in the characters: ``top_k``, ``--top-k``."""

_PHRASES = (
    (re.compile(r"\b(?:block|allow|ggml)= (?:or|and) (?=HOTSHOE_)"), ""),
    (re.compile(r"\bload_all\(refresh=True\) (?=tests |searches )"), "`hotshoe devices` "),
)
"""What the loader says of its own arguments, for which the command line has environment variables or a command."""

_ARGUMENT = re.compile(
    r"(?<![\w./'\"=-])(?P<name>[a-z]+(?:_[a-z]+)*)\b(?P<value>='[^']*'|=\([^)]*\)|=[^\s:;,)]+)?(?![\w./(-])"
)
_SINGLE_WORDS = ("device", "temperature", "seed", "stop", "truncate", "overwrite", "grammar", "fallback")


def in_options(text: str, options: Container[str]) -> str:
    """Replace the names of Python arguments in an error by the names of options.

    options: the options of the command. Arguments without an option there keep their name.
    """
    for pattern, replacement in _PHRASES:
        text = pattern.sub(replacement, text)

    def option(match: re.Match[str]) -> str:
        name, value = match["name"], _given(match["value"] or "")
        if "_" not in name and not (name in _SINGLE_WORDS and (value or _is_subject(match))):
            return match[0]
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        if value == "False":
            option = f"--no{option[1:]}"
        elif name == "cpu_moe" and value != "True":
            option = "--n-cpu-moe"
        if option not in options:
            return match[0]
        return option if value in ("", "True", "False") else f"{option} {value}"

    return _ARGUMENT.sub(option, text)


def _given(value: str) -> str:
    """Return a value as the command line takes it: ``='cpu'`` as ``cpu``, ``=(3.0, 1.0)`` as ``3.0,1.0``."""
    return value[1:].strip("'") if value[1:2] != "(" else value[2:-1].replace(" ", "").rstrip(",")


def _is_subject(match: re.Match[str]) -> bool:
    """Whether the name begins a sentence about its value: ``temperature is -1; expected …``."""
    return match.start() == 0 and match.string.startswith((" is ", " holds "), match.end())
