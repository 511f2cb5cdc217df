"""Adds the loader: in a checkout a folder next to this one, in a source distribution a folder in it."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LoaderHook(BuildHookInterface[Any]):
    """Called by hatchling before it writes a wheel or a source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":  # which only names the folders: dev-mode-dirs
            folders = (os.path.join(self.root, *parts, "hotshoe_loader") for parts in (("..", "loader"), ()))
            build_data["force_include"][next(filter(os.path.isdir, folders))] = "hotshoe_loader"
