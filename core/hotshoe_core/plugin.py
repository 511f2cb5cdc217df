"""The plugin contract, as pluggy hook specifications.

A distribution names a module (or object) under the entry point group ``hotshoe.backends``. The loader
imports it only when it is wanted, and calls the hooks it implements:

    from hotshoe_core.plugin import hookimpl

    @hookimpl
    def hotshoe_providers():
        return [MyProvider()]
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from hotshoe_core.device import API_VERSION, Provider

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
