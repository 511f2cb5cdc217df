"""Calls into a plugin: import it, call its hooks, list its devices. Whatever it raises becomes Rejected.

A probe makes all of these calls in a child process (see child_steps). When a backend is opened, the import and the
hooks run again in the user's process (see activate).
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
from hotshoe_core.errors import DeviceNotFoundError, HotshoeError, OptionError, PluginError
from hotshoe_core.errors.install import pip_install
from hotshoe_core.errors.text import shown
from hotshoe_loader.binary import install_hint
from hotshoe_loader.contract_checks import MAX_DEVICES, checked_devices
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.verdict import Outcome, Rejected

if TYPE_CHECKING:
    import pluggy

__all__ = [
    "ask_driver",
    "ask_providers",
    "can_adopt",
    "can_drive",
    "guarded",
    "import_plugin",
    "list_devices",
    "native_libraries",
    "new_manager",
]

T = TypeVar("T")

_MAX_PROVIDERS = 64


def guarded(call: Callable[[], T], doing: str, plugin: EntryPoint | None, otherwise: Outcome) -> T:
    """Return ``call()``. Turn any exception into Rejected, also SystemExit, because a plugin may not end the process.

    Args:
        doing: what the call does, for the reason: "importing 'acme'".
        otherwise: the outcome for an exception that is not an import problem.

    Raises KeyboardInterrupt, which comes from the user, unchanged.
    """
    try:
        return call()
    except (KeyboardInterrupt, Rejected):
        raise
    except BaseException as error:
        rejected = _rejection(error, doing, plugin, otherwise)
        rejected.details["traceback"] = _traceback(error)
        raise rejected from error


def _rejection(error: BaseException, doing: str, plugin: EntryPoint | None, otherwise: Outcome) -> Rejected:
    # Reading a plugin's message may raise a second exception.
    try:
        text = " ".join((error.message if isinstance(error, HotshoeError) else str(error)).split())
    except (Exception, SystemExit):
        text = "(its message cannot be shown)"
    what = f"{doing} raised {type(error).__name__}" + (f": {text}" if text else "")
    reinstall = plugin.pip_install("--force-reinstall") if plugin else None
    report = f"report it to the authors of {plugin.distribution}" if plugin else None
    # A next step that the plugin's message names is better than our guess.
    given = (str(error.hint) if isinstance(error, HotshoeError) and error.hint else None) or _command_in(text)
    if isinstance(error, ModuleNotFoundError) and error.name:
        rejected = _missing_module(error.name, doing, plugin)
        rejected.hint = given or rejected.hint
        return rejected
    if isinstance(error, DeviceNotFoundError):  # the provider knows why it has no device
        return Rejected(Outcome.NO_DEVICE, error.message, given)
    if isinstance(error, OptionError):
        return Rejected(Outcome.INVALID_OPTION, error.message, given)
    if isinstance(error, PluginError) and otherwise is not Outcome.IMPORT_ERROR:
        return Rejected(Outcome.INCOMPATIBLE_API, what, given or report)
    if isinstance(error, (ImportError, OSError)):
        missing = _missing_library(text)
        if missing is not None:
            return Rejected(
                Outcome.MISSING_DEPENDENCY,
                f"{doing} needs the library {missing}, which the system's linker cannot find",
                given
                or install_hint(missing)
                or f"install the package that contains {missing}" + (f", or {reinstall}" if reinstall else ""),
                missing=missing,
            )
        if "undefined symbol" in text or "Symbol not found" in text:
            return Rejected(Outcome.ABI_MISMATCH, what, given or reinstall)
    if isinstance(error, ImportError):
        # Without a module name the plugin raised it itself: its files are not damaged, and a reinstall does not help.
        return Rejected(Outcome.IMPORT_ERROR, what, given or (reinstall if error.name or error.path else report))
    return Rejected(otherwise, what, given or report)


_COMMAND = re.compile(
    r"\b(?:sudo )?(?:(?:python3? -m )?pip3?|apt|apt-get|dnf|yum|apk|brew|conda|mamba|pacman|zypper|winget|choco|snap"
    r"|uv)"
    r"(?: -\S+| pip)* (?:install|add|-S) \S.*"
)


def _command_in(text: str) -> str | None:
    """The install command in a message, such as "apt install libacme3"; None if there is no such command."""
    match = _COMMAND.search(text)
    return match[0].strip(" .`'\")") if match else None


_OTHER_FILES = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(importlib.__file__) + os.sep,
    "<frozen importlib",
)
_MAX_LINES = 40


def _traceback(error: BaseException) -> list[str]:
    """The traceback of an exception, from the plugin's first frame on: at most 40 lines."""
    import traceback  # needed for failures only

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OTHER_FILES):
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except (Exception, SystemExit):  # raised by its __str__, or by that of its cause
        text = "".join(traceback.format_tb(frames)) + type(error).__name__
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _MAX_LINES else [*lines[:3], "  …", *lines[4 - _MAX_LINES :]]


def _missing_module(name: str, doing: str, plugin: EntryPoint | None) -> Rejected:
    module = plugin.module if plugin else ""
    if plugin and (module == name or module.startswith(f"{name}.")):
        return Rejected(
            Outcome.IMPORT_ERROR,
            f"its entry point names the module {module!r}, but {name!r} does not exist: the installation is damaged",
            plugin.pip_install("--force-reinstall"),
        )
    top, _, inner = name.rpartition(".")
    if plugin and top and module.partition(".")[0] == top.partition(".")[0]:
        return Rejected(
            Outcome.IMPORT_ERROR,
            f"{doing} failed: {top!r} has no module {inner!r}",
            f"correct the import, or {plugin.pip_install('--force-reinstall')} if the file is missing",
        )
    top = name.partition(".")[0]
    again = f" (or reinstall {plugin.distribution}, which should have brought it)" if plugin else ""
    return Rejected(
        Outcome.MISSING_DEPENDENCY,
        f"{doing} needs the module {name!r}, which is not installed",
        pip_install(_DISTRIBUTIONS.get(top, top)) + again,
        missing=name,
    )


# Modules that a compute plugin may need and whose distribution has another name.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "hotshoe_ggml": "hotshoe-ggml-cpu",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}

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
    """A pluggy manager with hotshoe's hooks and no plugin."""
    import pluggy

    from hotshoe_core.contract.plugin import HookSpecs

    manager = pluggy.PluginManager("hotshoe")
    manager.add_hookspecs(HookSpecs)
    return manager


def import_plugin(plugin: EntryPoint) -> object:
    """Import the module or object that the entry point names. Raise Rejected if it cannot be imported."""
    name = plugin.module
    if not name:
        raise Rejected(
            Outcome.IMPORT_ERROR,
            f"reading the entry point {plugin.value!r} failed: it is not 'module' or 'module:object'",
            f"report it to the authors of {plugin.distribution}",
        )

    def load() -> object:
        found: object = importlib.import_module(name)
        for attribute in filter(None, plugin.attribute.split(".")):
            if not hasattr(found, attribute):
                raise Rejected(
                    Outcome.IMPORT_ERROR,
                    f"its entry point names {plugin.value!r}, but {attribute!r} does not exist in it",
                    f"{plugin.pip_install('--upgrade')}, or report it to its authors",
                )
            found = getattr(found, attribute)  # a module's __getattr__ may import more
        return found

    return guarded(load, f"importing {name!r}", plugin, Outcome.IMPORT_ERROR)


def can_adopt(module: object) -> bool:
    """Whether a plugin can use a foreign set of libraries in place of its own: it has the hook hotshoe_adopt()."""
    return callable(getattr(module, "hotshoe_adopt", None))


def can_drive(module: object) -> bool:
    """Whether a plugin can drive libraries without a plugin: it has the hook hotshoe_drive()."""
    return callable(getattr(module, "hotshoe_drive", None))


def ask_driver(manager: pluggy.PluginManager, plugin: EntryPoint, module: object, backend: str) -> list[Any]:
    """The providers that drive libraries without a plugin. Call ``ask_providers`` first: it registers the plugin."""
    return _ask(manager, plugin, module, "hotshoe_drive", {"backend": backend})


def ask_providers(
    manager: pluggy.PluginManager, plugin: EntryPoint, module: object, adopted: Path | None = None
) -> list[Any]:
    """Register a plugin and return the providers of its hook, not yet vetted. Raise Rejected if that fails.

    adopted: the folder of a foreign set of libraries, if the plugin uses it in place of its own.
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
            f"its entry point names the same object as {manager.get_name(module)!r}",
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
    manager: pluggy.PluginManager, plugin: EntryPoint, module: object, hook: str, arguments: dict[str, Any]
) -> list[Any]:
    """The providers that one hook of a registered plugin returns, not yet vetted."""
    others = [other for _, other in manager.list_name_plugin() if other is not module]
    # pluggy returns one answer for each implementation. The other plugins are left out, so there is one answer.
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
        lambda: list(islice(answer or (), _MAX_PROVIDERS + 1)), "listing its providers", plugin, Outcome.CRASHED
    )
    if len(providers) > _MAX_PROVIDERS:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its hook {hook}() returned more than {_MAX_PROVIDERS} providers",
            f"report it to the authors of {plugin.distribution}",
        )
    if not providers:
        raise Rejected(Outcome.NO_DEVICE, f"its hook {hook}() returned no provider")
    return providers


def _register(manager: pluggy.PluginManager, plugin: EntryPoint, module: object) -> list[str]:
    """Register a plugin, and return the names of its hooks."""
    import pluggy

    hash(module)  # pluggy keeps plugins in sets: an unhashable plugin would break every later call
    try:
        manager.register(module, name=f"{plugin.name} = {plugin.value} ({plugin.origin})")
    except pluggy.PluginValidationError as error:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its hooks do not fit the contract: {' '.join(str(error).split())}",
            "compare them with hotshoe_core.contract.plugin.HookSpecs",
        ) from error
    return [caller.name for caller in manager.get_hookcallers(module) or ()]


def _no_hook(module: object, plugin: EntryPoint, implemented: Sequence[str]) -> Rejected:
    if callable(getattr(module, "hotshoe_providers", None)):
        reason = "its hotshoe_providers() is not marked with @hookimpl"
    elif implemented:
        reason = (
            f"it has the hooks {', '.join(implemented)}, which this hotshoe does not know, but not hotshoe_providers()"
        )
    else:
        reason = f"{plugin.value!r} has no hook hotshoe_providers()"
    return Rejected(Outcome.INCOMPATIBLE_API, reason, "see hotshoe_core.contract.plugin for a plugin's hooks")


def native_libraries(provider: Provider, plugin: EntryPoint) -> tuple[str, object] | None:
    """The kind and the description of a provider's native libraries; None for a provider without libraries."""
    native = guarded(provider.native, "calling its native()", plugin, Outcome.CRASHED)
    if native is None:
        return None
    kind = native.get("kind") if isinstance(native, Mapping) else None
    if isinstance(kind, str) and kind in _KINDS:
        return kind, native
    returned = f"libraries of kind {shown(kind)}" if isinstance(native, Mapping) else type(native).__name__
    raise Rejected(
        Outcome.INCOMPATIBLE_API,
        f'its native() returned {returned}; expected None, or a mapping whose "kind" is {" or ".join(_KINDS)}',
        f"report it to the authors of {plugin.distribution}, or {pip_install('hotshoe', '--upgrade')}",
    )


_KINDS = ("ggml",)
"""The kinds of native libraries that the loader knows."""


def list_devices(provider: Provider, library: Path | None, plugin: EntryPoint) -> list[Device]:
    """The provider's devices on this machine. Raise Rejected if it has none, or if one is not a valid Device."""

    def checked(answer: Any) -> list[Device]:
        try:
            return checked_devices(answer, provider.name, provider.family, library)
        except PluginError as error:
            hint = error.hint or f"report it to the authors of {plugin.distribution}"
            raise Rejected(Outcome.INCOMPATIBLE_API, error.message, hint) from error

    # The checks are guarded too: the list may hold objects of the plugin, whose methods run in them.
    listed = guarded(
        lambda: checked(_as_list(provider.devices(library))), "calling its devices()", plugin, Outcome.CRASHED
    )
    if not listed:
        raise Rejected(
            Outcome.NO_DEVICE,
            "it works, but finds no device on this machine",
            "check that the device is connected and its driver is installed: hotshoe doctor",
        )
    return listed


def _as_list(answer: Any) -> Any:
    """The first items of any iterable: a plugin's generator may be endless, or raise at any item."""
    return (
        list(islice(answer, MAX_DEVICES + 1))
        if isinstance(answer, Iterable) and not isinstance(answer, (str, bytes))
        else answer
    )
