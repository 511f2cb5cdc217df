"""Stage 3, probe: what a candidate is worth, by running it. Every step is guarded; a failure raises Rejected.

Runs in a child process (see trial and children): what crashes it does not crash the user's. Of what is in use,
import and hook run once more in the user's process (see activate).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hotshoe_core.contract.device import Device, Provider
from hotshoe_core.errors import DeviceNotFoundError, HotshoeError, PluginError
from hotshoe_core.errors.text import shown
from hotshoe_loader.binary import install_hint
from hotshoe_loader.contract import MOST_DEVICES, checked_devices
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

if TYPE_CHECKING:
    import pluggy

__all__ = [
    "adopts",
    "ask_driver",
    "ask_providers",
    "drives",
    "guarded",
    "import_plugin",
    "list_devices",
    "native_libraries",
    "new_manager",
]

T = TypeVar("T")

_MOST_PROVIDERS = 64


def guarded(call: Callable[[], T], doing: str, plugin: PluginCandidate | None, otherwise: Outcome) -> T:
    """``call()``, with whatever it raises turned into Rejected, SystemExit too: a plugin may not end the process.

    KeyboardInterrupt passes: it is the user's. ``otherwise`` is the outcome for what is no import problem.
    """
    try:
        return call()
    except (KeyboardInterrupt, Rejected):
        raise
    except BaseException as error:
        raise _rejection(error, doing, plugin, otherwise) from error


def _rejection(error: BaseException, doing: str, plugin: PluginCandidate | None, otherwise: Outcome) -> Rejected:
    rejected = _judged(error, doing, plugin, otherwise)
    rejected.details["traceback"] = _traceback(error)
    return rejected


def _judged(error: BaseException, doing: str, plugin: PluginCandidate | None, otherwise: Outcome) -> Rejected:
    # The message may be anything a plugin's exception makes of it, a second exception included.
    try:
        text = " ".join((error.message if isinstance(error, HotshoeError) else str(error)).split())
    except Exception:
        text = "(its message cannot be shown)"
    what = f"{doing} raised {type(error).__name__}" + (f": {text}" if text else "")
    reinstall = f"pip install --force-reinstall {plugin.distribution}" if plugin else None
    report = f"report it to the authors of {plugin.distribution}" if plugin else None
    # The plugin's own words for the next step come before any guess of ours.
    own = (str(error.hint) if isinstance(error, HotshoeError) and error.hint else None) or _own_hint(text)
    if isinstance(error, ModuleNotFoundError) and error.name:
        rejected = _missing_module(error.name, doing, plugin)
        rejected.hint = own or rejected.hint
        return rejected
    if isinstance(error, DeviceNotFoundError):  # a provider that knows why there is none
        return Rejected(Outcome.NO_DEVICE, error.message, own)
    if isinstance(error, PluginError) and otherwise is not Outcome.IMPORT_ERROR:
        return Rejected(Outcome.INCOMPATIBLE_API, what, own or report)
    if isinstance(error, (ImportError, OSError)):
        missing = _missing_library(text)
        if missing is not None:
            return Rejected(
                Outcome.MISSING_DEPENDENCY,
                f"{doing} needs the library {missing}, which the system's linker does not find",
                own
                or install_hint(missing)
                or f"install what brings {missing}" + (f", or {reinstall}" if reinstall else ""),
                missing=missing,
            )
        if "undefined symbol" in text or "Symbol not found" in text:
            return Rejected(Outcome.ABI_MISMATCH, what, own or reinstall)
    if isinstance(error, ImportError):
        # One that names no module was raised by hand: what is missing is in its words, and no damage to the files.
        return Rejected(Outcome.IMPORT_ERROR, what, own or (reinstall if error.name or error.path else report))
    return Rejected(otherwise, what, own or report)


_COMMAND = re.compile(
    r"\b(?:sudo )?(?:(?:python3? -m )?pip3?|apt|apt-get|dnf|yum|apk|brew|conda|mamba|pacman|zypper|winget|choco|snap"
    r"|uv)"
    r"(?: -\S+| pip)* (?:install|add|-S) \S.*"
)


def _own_hint(text: str) -> str | None:
    """The command that a message ends in, where it names one: "apt install libacme3"."""
    match = _COMMAND.search(text)
    return match[0].strip(" .`'\")") if match else None


_NOT_THE_PLUGINS = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
    "<frozen importlib",
)
_MOST_LINES = 40


def _traceback(error: BaseException) -> list[str]:
    """The lines of an exception's traceback from the first frame that is the plugin's, at most 40 of them."""
    import traceback  # only where something failed

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_NOT_THE_PLUGINS):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # its __str__, or that of a cause
        text = "".join(traceback.format_tb(frames)) + type(error).__name__
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _MOST_LINES else [*lines[:3], "  …", *lines[4 - _MOST_LINES :]]


def _missing_module(name: str, doing: str, plugin: PluginCandidate | None) -> Rejected:
    own = plugin.module if plugin else ""
    if plugin and (own == name or own.startswith(f"{name}.")):
        return Rejected(
            Outcome.IMPORT_ERROR,
            f"its entry point names the module {own!r}, and there is no {name!r}: the installation is damaged",
            f"pip install --force-reinstall {plugin.distribution}",
        )
    top = name.partition(".")[0]
    again = f" (or reinstall {plugin.distribution}, which should have brought it)" if plugin else ""
    return Rejected(
        Outcome.MISSING_DEPENDENCY,
        f"{doing} needs the module {name!r}, which is not installed",
        f"pip install {_DISTRIBUTIONS.get(top, top)}{again}",
        missing=name,
    )


# Modules whose distribution has another name, of those a compute plugin may want.
_DISTRIBUTIONS = {"yaml": "PyYAML", "PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn"}

_MISSING_LIBRARY = (
    re.compile(r"([^\s:'\"]+): cannot open shared object file: No such file"),  # glibc
    re.compile(r"Error loading shared library ([^\s:]+):"),  # musl
    re.compile(r"Library not loaded: ([^\s']+)"),  # macOS
)


def _missing_library(text: str) -> str | None:
    for pattern in _MISSING_LIBRARY:
        match = pattern.search(text)
        if match:
            return match[1]
    return None


# -- plugins ----------------------------------------------------------------------------------------------


def new_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows hotshoe's hooks and no plugin."""
    import pluggy

    from hotshoe_core.contract.plugin import HookSpecs

    manager = pluggy.PluginManager("hotshoe")
    manager.add_hookspecs(HookSpecs)
    return manager


def import_plugin(plugin: PluginCandidate) -> object:
    """What the entry point names: a module, or an object in one."""
    name = plugin.module
    if not name:
        raise Rejected(
            Outcome.IMPORT_ERROR,
            f"reading the entry point {plugin.value!r} failed: it is not 'module' or 'module:object'",
            f"report it to the authors of {plugin.distribution}",
        )
    found: object = guarded(lambda: importlib.import_module(name), f"importing {name!r}", plugin, Outcome.IMPORT_ERROR)
    for attribute in filter(None, plugin.attribute.split(".")):
        if not hasattr(found, attribute):
            raise Rejected(
                Outcome.IMPORT_ERROR,
                f"its entry point names {plugin.value!r}, and there is no {attribute!r} in it",
                f"pip install --upgrade {plugin.distribution}, or report it to its authors",
            )
        found = getattr(found, attribute)
    return found


def adopts(module: object) -> bool:
    """Whether a plugin can drive native libraries that it did not bring."""
    return callable(getattr(module, "hotshoe_adopt", None))


def drives(module: object) -> bool:
    """Whether a plugin can drive native libraries that no plugin brings."""
    return callable(getattr(module, "hotshoe_drive", None))


def ask_driver(manager: pluggy.PluginManager, plugin: PluginCandidate, module: object, backend: str) -> list[Any]:
    """The providers that a plugin, which ``ask_providers`` has registered, has for libraries no plugin brings."""
    return _ask(manager, plugin, module, "hotshoe_drive", {"backend": backend})


def ask_providers(
    manager: pluggy.PluginManager, plugin: PluginCandidate, module: object, adopted: Path | None = None
) -> list[Any]:
    """The providers a plugin's hook returns, not yet vetted. The plugin stays registered if all went well.

    ``adopted``: the folder of a foreign set of libraries, for a plugin that adopts it in place of its own.
    """
    if isinstance(module, type):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its entry point {plugin.value!r} names a class; expected a module or an instance with hooks",
            f"report it to the authors of {plugin.distribution}",
        )
    others = [other for _, other in manager.list_name_plugin()]
    if any(module is other for other in others):
        raise Rejected(
            Outcome.SHADOWED,
            f"it is the same object as that of the entry point {manager.get_name(module)!r}",
            "remove one of the two entry points",
        )
    try:
        implemented = guarded(
            lambda: _register(manager, plugin, module), "registering its hooks", plugin, Outcome.CRASHED
        )
        if "hotshoe_providers" not in implemented:
            raise _no_hook(module, plugin, implemented)
        if adopted is not None:
            return _ask(manager, plugin, module, "hotshoe_adopt", {"folder": adopted})
        return _ask(manager, plugin, module, "hotshoe_providers", {})
    except Rejected:
        if manager.get_name(module) is not None:
            manager.unregister(module)
        raise


def _ask(
    manager: pluggy.PluginManager, plugin: PluginCandidate, module: object, hook: str, arguments: dict[str, Any]
) -> list[Any]:
    """The providers that one hook of a registered plugin returns, not yet vetted."""
    others = [other for _, other in manager.list_name_plugin() if other is not module]
    # pluggy gives a list with one answer for each implementation; here is one, as the other plugins are left out.
    answers: list[Any] = guarded(
        lambda: manager.subset_hook_caller(hook, others)(**arguments), f"its hook {hook}()", plugin, Outcome.CRASHED
    )
    answer = answers[0] if answers else None
    if answer is not None and (isinstance(answer, (str, bytes)) or not isinstance(answer, Sequence)):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its hook {hook}() returned {type(answer).__name__}; expected a list of providers",
            f"report it to the authors of {plugin.distribution}",
        )
    providers: list[Any] = guarded(
        lambda: list(islice(answer or (), _MOST_PROVIDERS + 1)), "listing its providers", plugin, Outcome.CRASHED
    )
    if len(providers) > _MOST_PROVIDERS:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its hook {hook}() returned more than {_MOST_PROVIDERS} providers",
            f"report it to the authors of {plugin.distribution}",
        )
    if not providers:
        raise Rejected(Outcome.NO_DEVICE, f"its hook {hook}() returned no provider")
    return providers


def _register(manager: pluggy.PluginManager, plugin: PluginCandidate, module: object) -> list[str]:
    """Registers a plugin; returns the names of its hooks."""
    import pluggy

    hash(module)  # pluggy keeps plugins in sets, and an unhashable one would break every call after it
    try:
        manager.register(module, name=f"{plugin.name} = {plugin.value} ({plugin.origin})")
    except pluggy.PluginValidationError as error:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its hooks do not fit the contract: {' '.join(str(error).split())}",
            "compare them with hotshoe_core.contract.plugin.HookSpecs",
        ) from error
    return [caller.name for caller in manager.get_hookcallers(module) or ()]


def _no_hook(module: object, plugin: PluginCandidate, implemented: Sequence[str]) -> Rejected:
    if callable(getattr(module, "hotshoe_providers", None)):
        reason = "its hotshoe_providers() is not marked with @hookimpl"
    elif implemented:
        reason = (
            f"it has the hooks {', '.join(implemented)}, which this hotshoe does not know, and no hotshoe_providers()"
        )
    else:
        reason = f"{plugin.value!r} has no hook hotshoe_providers()"
    return Rejected(Outcome.INCOMPATIBLE_API, reason, "see hotshoe_core.contract.plugin for a plugin's hooks")


def native_libraries(provider: Provider, plugin: PluginCandidate) -> tuple[str, object] | None:
    """Kind and description of the provider's native libraries; None for a pure Python provider."""
    native = guarded(provider.native, "its native()", plugin, Outcome.CRASHED)
    if native is None:
        return None
    kind = native.get("kind") if isinstance(native, Mapping) else None
    if isinstance(kind, str) and kind in _KINDS:
        return kind, native
    returned = f"libraries of kind {shown(kind)}" if isinstance(native, Mapping) else type(native).__name__
    raise Rejected(
        Outcome.INCOMPATIBLE_API,
        f'its native() returned {returned}; expected None, or a mapping whose "kind" is {" or ".join(_KINDS)}',
        f"report it to the authors of {plugin.distribution}, or pip install --upgrade hotshoe",
    )


_KINDS = ("ggml",)
"""The kinds of native libraries that the loader has a room for."""


def list_devices(provider: Provider, library: Path | None, plugin: PluginCandidate) -> list[Device]:
    """The devices a provider has here, at least one, all of them its own."""

    def checked(answer: Any) -> list[Device]:
        try:
            return checked_devices(answer, provider.name, provider.family, library)
        except PluginError as error:
            hint = error.hint or f"report it to the authors of {plugin.distribution}"
            raise Rejected(Outcome.INCOMPATIBLE_API, error.message, hint) from error

    # What it lists may be of its own classes: their methods run where they are looked at.
    listed = guarded(lambda: checked(_whole(provider.devices(library))), "its devices()", plugin, Outcome.CRASHED)
    if not listed:
        raise Rejected(
            Outcome.NO_DEVICE,
            "it works, and finds no device on this machine",
            "check that the hardware is there and its driver is installed",
        )
    return listed


def _whole(answer: Any) -> Any:
    """A list of what a plugin's generator yields: it may raise until its end, and have none."""
    return (
        list(islice(answer, MOST_DEVICES + 1))
        if isinstance(answer, Iterable) and not isinstance(answer, (str, bytes))
        else answer
    )
