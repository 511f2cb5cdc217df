"""Stage 2, vet by files: platform, hashes, contract version. Each check raises Rejected. Runs no plugin code.

These checks run in the probe's child process (see child_steps), before the plugin is imported. Only ``vet_provider``
runs after the import, and again in the user's process when a backend is opened.
"""

from __future__ import annotations

import base64
import os
import platform
import sys
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import API_VERSION, name_problem
from hotshoe_core.errors.install import pip_install
from hotshoe_core.errors.text import printable, shown
from hotshoe_loader.files import NotRegularError, open_regular, read_text
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.ggml.file_names import is_backend
from hotshoe_loader.manifest import Manifest
from hotshoe_loader.policy import Policy
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["damaged_files", "untrusted", "vet_manifest", "vet_provider", "vet_tags"]

_MAX_RECORD = 64 << 20  # bytes of a RECORD, which has one line for each file of a wheel


def vet_tags(plugin: EntryPoint) -> None:
    """Raise Rejected for a wheel of another platform or Python: it was copied, or installed with ``--platform``."""
    tags = [line.partition(":")[2].strip() for line in _lines(plugin, "WHEEL") if line.startswith("Tag:")]
    if tags and not any(_runs_here(*tag.split("-", 2)) for tag in tags if tag.count("-") == 2):
        this = f"cp{sys.version_info[0]}{sys.version_info[1]}, {sys.platform} {platform.machine()}"
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"its wheel is for {', '.join(tags)}; this is {this}",
            plugin.pip_install("--force-reinstall"),
        )


def _runs_here(python: str, abi: str, platforms: str) -> bool:
    """Whether a wheel with this tag (``python-abi-platforms``) runs on this Python and platform."""
    if abi not in ("none", "abi3") and f"cp{sys.version_info[0]}{sys.version_info[1]}" not in python.split("."):
        return False
    machine = platform.machine().lower()
    starts = {"linux": ("linux_", "manylinux", "musllinux"), "darwin": ("macosx_",), "win32": ("win",)}
    for name in platforms.split("."):
        if name == "any" or sys.platform not in starts:
            return True
        same = name.endswith((machine, "universal2")) or (machine in ("amd64", "x86_64") and name == "win_amd64")
        if name.startswith(starts[sys.platform]) and same:
            return True
    return False


def vet_manifest(manifest: Manifest | None, plugin: EntryPoint) -> None:
    """Raise Rejected if the manifest's versions of the contract do not include ours."""
    if manifest is None or manifest.api is None or manifest.api[0] <= API_VERSION <= manifest.api[1]:
        return
    first, last = manifest.api
    span = f"version {first}" if first == last else f"versions {first} to {last}"
    raise _other_api(span, last < API_VERSION, plugin, last)


def _other_api(span: str, older: bool, plugin: EntryPoint, version: int) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"it needs {span} of the plugin contract; this hotshoe has version {API_VERSION}",
        plugin.pip_install("--upgrade") if older else pip_install("hotshoe", "--upgrade"),
        api_version=version,
    )


def damaged_files(plugin: EntryPoint) -> dict[str, str]:
    """The native files that differ from what pip installed, by real path, each with what is wrong.

    They are compared with size and sha256 in the wheel's RECORD. Raises Rejected if such a file is not a backend
    library but, for example, a Python extension, which importing the plugin would open.
    """
    damaged: dict[str, str] = {}
    for line in _lines(plugin, "RECORD"):
        name, _, rest = line.rpartition(",sha256=")
        digest, _, size = rest.partition(",")
        if not name or not _is_native(name):
            continue
        path = os.path.join(plugin.location, name.strip('"'))
        problem = _difference(path, digest, int(size) if size.isdecimal() and len(size) < 20 else None)
        if problem is None:
            continue
        if "\0" in path or not is_backend(os.path.basename(name)):
            raise untrusted(path, problem, plugin.pip_install("--force-reinstall"))
        damaged[os.path.realpath(path)] = problem
    return damaged


def untrusted(path: str | Path, problem: str, hint: str) -> Rejected:
    """The rejection for a file that is not the one that pip installed."""
    return Rejected(Outcome.UNTRUSTED, f"{path} is not the file that pip installed: {problem}", hint, damaged=True)


def _is_native(name: str) -> bool:
    base = os.path.basename(name)
    return base.endswith((".so", ".dylib", ".dll", ".pyd")) or ".so." in base


def _difference(path: str, digest: str, size: int | None) -> str | None:
    """How a file differs from the size and sha256 in RECORD, in words; None if it is the same."""
    import hashlib  # not needed at every start, because good results are cached

    try:
        descriptor, length = open_regular(path)
        with os.fdopen(descriptor, "rb") as file:
            if size is not None and length != size:
                return f"it has {length} bytes, expected {size}"
            sha = hashlib.sha256()
            while chunk := file.read(1 << 20):
                sha.update(chunk)
    except FileNotFoundError:
        return "it is missing"
    except NotRegularError:
        return "it is not a regular file"
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        return f"it cannot be read: {getattr(error, 'strerror', None) or error}"
    same = base64.urlsafe_b64encode(sha.digest()).rstrip(b"=").decode() == digest.rstrip("=")
    return None if same else "its sha256 differs from the wheel's RECORD"


def _lines(plugin: EntryPoint, name: str) -> list[str]:
    """The lines of a file in the plugin's ….dist-info; [] if it cannot be read."""
    if not plugin.info:
        return []
    try:
        return read_text(Path(plugin.info, name), _MAX_RECORD).splitlines()
    except (OSError, ValueError):
        return []


def vet_provider(provider: Any, plugin: EntryPoint, policy: Policy) -> None:
    """Check an object that a hook returned against the Provider contract, before any method is called."""
    if isinstance(provider, type):
        name = printable(provider.__name__, 80)
        raise _not_a_provider(f"an instance of {name}, as in [{name}()]", "it is the class itself", plugin)
    kind = printable(type(provider).__name__, 80)
    for attribute in ("name", "family"):
        value = getattr(provider, attribute, None)
        problem = "it is missing" if value is None else name_problem(value)
        if problem is not None:
            raise _not_a_provider(f"{kind}.{attribute}: a valid name (str)", problem, plugin)
    version = getattr(provider, "api_version", None)
    if not isinstance(version, int) or isinstance(version, bool):
        found = "it is missing" if version is None else f"it is {shown(version)}"
        raise _not_a_provider(f"{kind}.api_version: an int", found, plugin)
    if version != API_VERSION:
        raise _other_api(f"version {version}", version < API_VERSION, plugin, version)
    for method in ("native", "devices", "open"):
        if not callable(getattr(provider, method, None)):
            raise _not_a_provider(f"a method {kind}.{method}()", "it is missing", plugin)
    policy.refuse_blocked(provider.name, provider.family)


def _not_a_provider(expected: str, found: str, plugin: EntryPoint) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"its hook did not return a Provider; expected {expected}; {found}",
        f"report it to the authors of {plugin.distribution}; the contract is hotshoe_core.contract.device.Provider",
    )
