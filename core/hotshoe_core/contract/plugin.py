"""The plugin contract, as pluggy hook specifications.

A distribution names a module (or object) under the entry point group ``hotshoe.backends``. The loader
imports it only when it is wanted, and calls the hooks it implements:

    from hotshoe_core.contract.plugin import hookimpl

    @hookimpl
    def hotshoe_providers():
        return [MyProvider()]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pluggy

from hotshoe_core.contract.device import API_VERSION, Provider

__all__ = ["API_VERSION", "ENTRY_POINT_GROUP", "HookSpecs", "hookimpl", "hookspec"]

ENTRY_POINT_GROUP = "hotshoe.backends"

hookspec = pluggy.HookspecMarker("hotshoe")
hookimpl = pluggy.HookimplMarker("hotshoe")


class HookSpecs:
    """Every hook a plugin may implement."""

    @hookspec
    def hotshoe_providers(self) -> Sequence[Provider]:
        """The providers this plugin brings."""
        raise NotImplementedError

    @hookspec
    def hotshoe_adopt(self, folder: Path) -> Sequence[Provider]:
        """Optional: the providers over a set of native libraries that this plugin did not bring.

        Called in place of ``hotshoe_providers`` where a user names the folder of such a set, once in a process and
        before any other library of the plugin's engine is open; the loader has compared versions.
        """
        raise NotImplementedError

    @hookspec
    def hotshoe_drive(self, backend: str) -> Sequence[Provider]:
        """Optional: a provider over native libraries of the plugin's engine that no plugin brings.

        ``backend``: the name in their files' names, as "opencl" in ``libggml-opencl.so``, and of their devices. The
        loader has found them; it gives ``devices`` the one to use.
        """
        raise NotImplementedError
