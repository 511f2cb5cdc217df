"""The hooks that a plugin implements, as pluggy specifications.

A distribution names a module (or object) under the entry point group ``hotshoe.backends``. The loader
imports it only when it is needed, and calls the hooks that it implements:

    from hotshoe_core import hookimpl

    @hookimpl
    def hotshoe_providers():
        return [MyProvider()]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pluggy

from hotshoe_core.contract.device import Provider

__all__ = ["ENTRY_POINT_GROUP", "HookSpecs", "hookimpl", "hookspec"]

ENTRY_POINT_GROUP = "hotshoe.backends"

hookspec = pluggy.HookspecMarker("hotshoe")
hookimpl = pluggy.HookimplMarker("hotshoe")


class HookSpecs:
    """Every hook that a plugin may implement."""

    @hookspec
    def hotshoe_providers(self) -> Sequence[Provider]:
        """The providers of this plugin."""
        raise NotImplementedError

    @hookspec
    def hotshoe_adopt(self, folder: Path) -> Sequence[Provider]:
        """Optional: the providers over a folder of native libraries that the user names.

        Called instead of ``hotshoe_providers``, once in a process, before any other library of the plugin's engine is
        open. The loader has checked the versions.
        """
        raise NotImplementedError

    @hookspec
    def hotshoe_drive(self, backend: str) -> Sequence[Provider]:
        """Optional: a provider over native libraries of the plugin's engine that do not belong to any plugin.

        backend: the name in their file names, such as "opencl" in ``libggml-opencl.so``, and of their devices. The
        loader has found the libraries; it passes the one to use to ``devices``.
        """
        raise NotImplementedError
