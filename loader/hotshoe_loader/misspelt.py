"""Notes on names and variables that match nothing: they are probably misspelt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hotshoe_core.contract.device import DeviceType
from hotshoe_core.errors import did_you_mean
from hotshoe_core.errors.text import printable
from hotshoe_loader.catalog import CATALOG, owner_of_provider
from hotshoe_loader.options import normalise
from hotshoe_loader.verdict import Verdict

__all__ = ["VARIABLES", "unknown_names", "unknown_variables"]

VARIABLES = frozenset(
    f"HOTSHOE_{name}"
    for name in (
        *("PREFER", "REQUIRE", "BLOCK", "ALLOW", "PATH", "SYSTEM", "GGML", "PROBE_TIMEOUT", "PROBE", "CACHE_DIR"),
        *("RPC", "RPC_TIMEOUT", "TRACE", "DEBUG", "DATA_DIR", "API_KEY", "SANITIZE"),
        *("GGML_PREFETCH", "GGML_SOURCE", "GGML_VARIANTS", "CUDA_ARCHITECTURES"),
    )
)
"""The environment variables that hotshoe, its plugins and their builds read. Its tests have a prefix of their own."""

_PREFIXES = ("HOTSHOE_TEST_",)


def unknown_names(unmatched: Iterable[tuple[str, str]], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A note on each name of ``block`` or ``allow`` that matched nothing.

    The names of this project's plugins and of device types are known, whatever is installed: one variable may serve
    several machines.
    """
    types = {kind.value for kind in DeviceType}
    for option, name in unmatched:
        if owner_of_provider(name) is None and name not in types:
            known = {"gpu", *(entry.name for entry in CATALOG)}
            for verdict in verdicts:
                known |= {verdict.candidate, *map(str, verdict.details.get("devices", ()))}
                known |= {str(verdict.details[key]) for key in ("plugin", "distribution") if key in verdict.details}
            hint = did_you_mean(name, map(normalise, known))
            yield f"{name!r} in {option}= or HOTSHOE_{option.upper()} matches nothing; {hint}"


def unknown_variables(prefixes: Iterable[str], environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A note on each variable HOTSHOE_… that nothing reads. ``prefixes``: those that plugins name in manifests."""
    starts = (*_PREFIXES, *prefixes)
    for name in sorted(environ):
        if name.startswith("HOTSHOE_") and name not in VARIABLES and not name.startswith(starts):
            from difflib import get_close_matches  # 2 ms, only after a mistake

            known = {other.removeprefix("HOTSHOE_"): other for other in VARIABLES - {"HOTSHOE_PROBE"}}
            near = get_close_matches(name.removeprefix("HOTSHOE_"), known, n=1)
            hint = (
                f"did you mean {known[near[0]]!r}?"
                if near
                else "unset it, or correct its name: docs/loader.md lists the variables"
            )
            yield f"the environment variable {printable(name, 100)} has no effect; {hint}"
