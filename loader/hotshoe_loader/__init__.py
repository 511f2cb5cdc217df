"""hotshoe's loader: finds compute backends, tests each one, ranks their devices, and opens backends.

    load_all(prefer=, require=, block=, allow=, paths=, system=, ggml=, timeout=, refresh=)  ->  Registry

Names are imported on first use: ``import hotshoe_loader`` imports nothing else and searches nothing.

Public modules, which the engine may import:

    find           what is installed: the entry points of every distribution
    options        the options of load_all, and how names are compared
    cache          the folder where reports of probes are kept; its parent is hotshoe's cache folder
    catalog        the plugins of this project, with the command that installs each
    child_process  whether this program can start child processes of its own interpreter
    verdict        Verdict and Outcome: the result for one candidate
    doctor         what is wrong on this machine, and what to do next
    machine        the facts about this machine that the doctor reads

How load_all works. Each stage returns what passed and the verdicts on the rest; survey joins them:

    load      one registry for each set of options
    survey      runs the stages in this order:
    find          1. what is there, by metadata and file names only
    vet           2. what may be used, by its names
    probe         3. a test of each plugin in a child process (child_process → child_main → child_steps), or the report
                     that an earlier start kept (cache). The child process first vets the plugin's files (vet_files)
    admit         4. what this process can use: unique names (names), one ggml
    rank          5. the order of the devices
    registry  Registry: the devices and verdicts; select, open, unload, reload
    activate    imports a plugin into this process when a backend of it is opened
    wanted      which plugins a device's name asks for: load_all(device=...) tests only these
    used        what a probe used; its report is valid while this is unchanged
    misspelt    names and variables that match nothing
    texts       texts about devices and verdicts, for people

    ggml/     what the loader knows about ggml's native libraries. It knows ggml by name, because every ggml calls its
              base library libggml-base.so.0: a process can load one only, and only the loader sees all plugins
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe_loader.load import load_all
    from hotshoe_loader.registry import Registry
    from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["Outcome", "Registry", "Verdict", "load_all"]

_MODULE = {"load_all": "load", "Registry": "registry", "Outcome": "verdict", "Verdict": "verdict"}


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f"hotshoe_loader.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
