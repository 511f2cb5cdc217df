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
    (re.compile(r"\b\w+=\S* \((--[^)]+)\)"), r"\1"),  # "device='cuda:0' (--device cuda:0)"
    (re.compile(r"\b\w+=True, (--\w+)"), r"\1"),  # "(overwrite=True, --overwrite)"
    (re.compile(r", or task='\w+'"), ""),
    (re.compile(r"\bload the model with a larger "), "use a larger "),
    (re.compile(r"\bmax_tokens=None sets no limit"), "leave it out, or give -1, for no limit"),
    (re.compile(r"\b(?:block|allow|ggml)= (?:or|and) (?=HOTSHOE_)"), ""),
    (re.compile(r"\bload_all\(refresh=True\) (?=tests |searches )"), "`hotshoe devices` "),
    (re.compile(r"\bcpu_moe(?:=| (?=is ))(?=\d|is )"), "--n-cpu-moe "),
    (re.compile(r"\b(kv_offload|fallback)=False"), lambda match: f"--no-{match[1].replace('_', '-')}"),
)
_ARGUMENT = re.compile(r"(?<![\w./'\"=-])(?P<name>[a-z]+(?:_[a-z]+)*)\b(?P<value>='[^']*'|=[^\s:;,)]+)?(?![\w./(-])")
_SINGLE_WORDS = ("device", "temperature", "seed", "stop", "truncate", "overwrite", "grammar")


def in_options(text: str, options: Container[str] | None = None) -> str:
    """Replace the names of Python arguments in an error by the names of options.

    options: the options of the command. Arguments without an option there keep their name. None: replace all names.
    """
    for pattern, replacement in _PHRASES:
        text = pattern.sub(replacement, text)

    def option(match: re.Match[str]) -> str:
        name, value = match["name"], (match["value"] or "")[1:].strip("'")
        if "_" not in name and not (name in _SINGLE_WORDS and (value or _is_subject(match))):
            return match[0]
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        if options is not None and option not in options:
            return match[0]
        return option if value in ("", "True") else f"{option} {value}"

    return _ARGUMENT.sub(option, text)


def _is_subject(match: re.Match[str]) -> bool:
    """Whether the name begins a sentence about its value: ``temperature is -1; expected …``."""
    return match.start() == 0 and match.string.startswith((" is ", " holds "), match.end())
