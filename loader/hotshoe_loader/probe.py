"""Stage 3, probe: what a candidate is worth, by running it. Every step is guarded; a failure raises Rejected.

Runs in a child process (see trial and children): what crashes it does not crash the user's. Of what is in use,
import and hook run once more in the user's process (see activate).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hotshoe_core.device import Device, NativeLibraries, Provider
from hotshoe_core.errors import HotshoeError
from hotshoe_loader.binary import Binary, brings, unresolved
from hotshoe_loader.find import LibraryCandidate, PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

if TYPE_CHECKING:
    import pluggy

__all__ = [
    "Score",
    "adopts",
    "ask_providers",
    "import_plugin",
    "list_devices",
    "native_libraries",
    "new_manager",
    "open_core",
    "score_library",
]

T = TypeVar("T")


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
    # The message may be anything a plugin's exception makes of it, a second exception included.
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its message cannot be shown)"
    what = f"{doing} raised {type(error).__name__}" + (f": {text}" if text else "")
    reinstall = f"pip install --force-reinstall {plugin.distribution}" if plugin else None
    hint = error.hint if isinstance(error, HotshoeError) and error.hint else None
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing_module(error.name, doing, plugin)
    if isinstance(error, (ImportError, OSError)):
        missing = _missing_library(text)
        if missing is not None:
            return Rejected(
                Outcome.MISSING_DEPENDENCY,
                f"{doing} needs the library {missing}, which the system's linker does not find",
                hint
                or brings(missing)
                or f"install what brings {missing}" + (f", or {reinstall}" if reinstall else ""),
                missing=missing,
            )
        if "undefined symbol" in text or "Symbol not found" in text:
            return Rejected(Outcome.ABI_MISMATCH, what, hint or reinstall)
    if isinstance(error, ImportError):
        return Rejected(Outcome.IMPORT_ERROR, what, hint or reinstall)
    report = f"report it to the authors of {plugin.distribution}" if plugin else None
    return Rejected(otherwise, what, hint or report)


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

    from hotshoe_core.plugin import HookSpecs

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
        # pluggy gives a list with one answer for each implementation; here is one, as the other plugins are left out.
        hook, arguments = "hotshoe_providers", {}
        if adopted is not None:
            hook, arguments = "hotshoe_adopt", {"folder": adopted}
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
        providers: list[Any] = guarded(lambda: list(answer or ()), "listing its providers", plugin, Outcome.CRASHED)
        if not providers:
            raise Rejected(Outcome.NO_DEVICE, f"its hook {hook}() returned no provider")
    except Rejected:
        if manager.get_name(module) is not None:
            manager.unregister(module)
        raise
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
            "compare them with hotshoe_core.plugin.HookSpecs",
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
    return Rejected(Outcome.INCOMPATIBLE_API, reason, "see hotshoe_core.plugin for the hooks a plugin implements")


def native_libraries(provider: Provider, plugin: PluginCandidate) -> NativeLibraries | None:
    """Where the provider's native libraries lie; None for a pure Python provider."""
    native = guarded(provider.native, "its native()", plugin, Outcome.CRASHED)
    if native is not None and not isinstance(native, NativeLibraries):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its native() returned {type(native).__name__}; expected NativeLibraries or None",
            f"report it to the authors of {plugin.distribution}",
        )
    return native


def list_devices(provider: Provider, library: Path | None, plugin: PluginCandidate) -> list[Device]:
    """The devices a provider has here, at least one, all of them its own."""
    listed = guarded(lambda: list(provider.devices(library)), "its devices()", plugin, Outcome.CRASHED)
    for device in listed:
        if not isinstance(device, Device):
            wrong = f"{type(device).__name__} in place of a Device"
        elif not device.name or device.provider != provider.name or device.family != provider.family:
            wrong = (
                f"a device {device.name!r} of provider {device.provider!r}, family {device.family!r}; "
                f"expected provider {provider.name!r}, family {provider.family!r}"
            )
        else:
            continue
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its devices() listed {wrong}",
            f"report it to the authors of {plugin.distribution}",
        )
    if not listed:
        raise Rejected(
            Outcome.NO_DEVICE,
            "it works, and finds no device on this machine",
            "check that the hardware is there and its driver is installed",
        )
    return listed


# -- native libraries -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """What a library says of itself on this machine: 0 cannot run here, None where it exports no score."""

    library: LibraryCandidate
    value: int | None


def open_core(native: NativeLibraries, plugin: PluginCandidate) -> None:
    """Opens the ``libggml-base`` that the provider's libraries bind to.

    RTLD_LOCAL is enough: a backend names the base as its dependency, and the linker takes the one already open
    by its SONAME. Global, its symbols would capture the calls of any other ggml loaded after it.
    """
    if not native.core.is_file():
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"its core library {native.core} is missing: the installation is damaged",
            f"pip install --force-reinstall {plugin.distribution}",
        )
    guarded(lambda: _open(native.core), f"opening {native.core.name}", plugin, Outcome.MISSING_DEPENDENCY)


def score_library(library: LibraryCandidate, binary: Binary) -> Score:
    """Opens a library that vet let pass, and asks for its score. It stays open: a closed ggml crashes later."""
    try:
        handle = guarded(lambda: _open(library.path), "opening it", None, Outcome.IMPORT_ERROR)
    except Rejected as rejected:
        # The linker names the first one only. Its own search is the last word on each of the others.
        missing = unresolved(binary) if rejected.outcome is Outcome.MISSING_DEPENDENCY else []
        missing = [name for name in missing if not _loads(name)]
        if missing:
            hints = dict.fromkeys(brings(name) or f"install what brings {name}" for name in missing)
            rejected.reason = f"it needs {', '.join(missing)}, which the system's linker does not find"
            rejected.hint = "; ".join(hints)
            rejected.details["missing"] = missing
        if rejected.hint is None:
            rejected.hint = f"reinstall what brought {library.path}"
        raise
    if not hasattr(handle, "ggml_backend_init"):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            "it is no dynamic ggml backend: it does not export ggml_backend_init",
            "it must be built with GGML_BACKEND_DL=ON",
        )
    if not hasattr(handle, "ggml_backend_score"):
        return Score(library, None)
    function = handle.ggml_backend_score
    function.restype, function.argtypes = ctypes.c_int, []
    value = int(function())
    if value <= 0:
        raise Rejected(
            Outcome.NO_DEVICE,
            f"it scores {value}: this machine lacks something it was built for",
            score=value,
        )
    disabled = _disabled(value) if library.backend == "cpu" else []
    if disabled:
        raise Rejected(
            Outcome.NO_DEVICE,
            f"it scores {value}, for the processor has {', '.join(disabled)}; the operating system does not enable it",
            "another variant is used; a virtual machine may have to be configured to pass it on",
            score=value,
        )
    return Score(library, value)


# Bits of ggml's score on x86, less 1, of the features that need the operating system to save larger registers. ggml
# asks the processor only; where the system does not play along, the first such instruction ends the process.
_X86_STATES = {4: "avx", 5: "avx2", 7: "avx512f", 11: "amx_int8"}


def _disabled(score: int) -> list[str]:
    flags = _processor_flags()
    return [flag for bit, flag in _X86_STATES.items() if (score - 1) >> bit & 1 and flags and flag not in flags]


def _processor_flags() -> frozenset[str]:
    """Features of an x86 processor that Linux lets programs use; empty where that is not known."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = file.read(8192).splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _open(path: Path) -> ctypes.CDLL:
    if sys.platform == "win32":
        # LOAD_WITH_ALTERED_SEARCH_PATH: dependencies come from the library's own folder, not from the current one.
        return ctypes.CDLL(str(path), winmode=0x8)
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
