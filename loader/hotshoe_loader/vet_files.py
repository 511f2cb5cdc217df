"""Stage 2, vet, by files: platform, hashes, headers, versions. Runs nothing of a plugin. A check raises Rejected."""

from __future__ import annotations

import base64
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotshoe_core.device import API_VERSION
from hotshoe_loader.binary import BadLibrary, Binary, read_binary
from hotshoe_loader.find import LibraryCandidate, PluginCandidate
from hotshoe_loader.manifest import FILE, Abi, Manifest, abi_of_core, abi_of_library, core_in
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet import Policy

__all__ = [
    "damaged_files",
    "untrusted",
    "vet_abi",
    "vet_adoption",
    "vet_library",
    "vet_manifest",
    "vet_provider",
    "vet_tags",
]


def vet_tags(plugin: PluginCandidate) -> None:
    """Refuses a wheel made for another platform or Python: copied here, or installed with ``--platform``."""
    tags = [line.partition(":")[2].strip() for line in _lines(plugin, "WHEEL") if line.startswith("Tag:")]
    if tags and not any(_runs_here(*tag.split("-", 2)) for tag in tags if tag.count("-") == 2):
        this = f"cp{sys.version_info[0]}{sys.version_info[1]}, {sys.platform} {platform.machine()}"
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"its wheel is made for {', '.join(tags)}; this is {this}",
            f"pip install --force-reinstall {plugin.distribution}",
        )


def _runs_here(python: str, abi: str, where: str) -> bool:
    if abi not in ("none", "abi3") and f"cp{sys.version_info[0]}{sys.version_info[1]}" not in python.split("."):
        return False
    machine = platform.machine().lower()
    starts = {"linux": ("linux_", "manylinux", "musllinux"), "darwin": ("macosx_",), "win32": ("win",)}
    for part in where.split("."):
        if part == "any" or sys.platform not in starts:
            return True
        same = part.endswith((machine, "universal2")) or (machine in ("amd64", "x86_64") and part == "win_amd64")
        if part.startswith(starts[sys.platform]) and same:
            return True
    return False


def vet_manifest(manifest: Manifest | None, plugin: PluginCandidate) -> None:
    """Refuses a plugin written for versions of the contract that do not include ours."""
    if manifest is None or manifest.api is None or manifest.api[0] <= API_VERSION <= manifest.api[1]:
        return
    first, last = manifest.api
    span = f"version {first}" if first == last else f"versions {first} to {last}"
    raise _other_api(span, last < API_VERSION, plugin, last)


def _other_api(span: str, older: bool, plugin: PluginCandidate, version: int) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"it is written for {span} of the plugin contract; this hotshoe has {API_VERSION}",
        f"pip install --upgrade {plugin.distribution if older else 'hotshoe'}",
        api_version=version,
    )


def damaged_files(plugin: PluginCandidate) -> dict[str, str]:
    """Native files of the distribution that are not what pip installed, by real path, each with what is wrong.

    By size and sha256 of the wheel's RECORD. Raises Rejected for one that is no backend library: a Python
    extension, say, which the import below would open.
    """
    damaged: dict[str, str] = {}
    for line in _lines(plugin, "RECORD"):
        name, _, rest = line.rpartition(",sha256=")
        digest, _, size = rest.partition(",")
        stem = os.path.basename(name).partition(".")[0]
        if not name or not _is_native(name):
            continue
        path = os.path.join(plugin.location, name.strip('"'))
        problem = _differs(path, digest, int(size) if size.isdigit() else None)
        if problem is None:
            continue
        damaged[os.path.realpath(path)] = problem
        if not stem.startswith(("libggml-", "ggml-")):
            raise untrusted(path, problem, f"pip install --force-reinstall {plugin.distribution}")
    return damaged


def untrusted(path: str | Path, problem: str, hint: str) -> Rejected:
    return Rejected(Outcome.UNTRUSTED, f"{path} is not the file that pip installed: {problem}", hint)


def _is_native(name: str) -> bool:
    base = os.path.basename(name)
    return base.endswith((".so", ".dylib", ".dll", ".pyd")) or ".so." in base


def _differs(path: str, digest: str, size: int | None) -> str | None:
    import hashlib  # not at every start: what was found good is remembered

    try:
        found = os.stat(path).st_size
        if size is not None and found != size:
            return f"it has {found} bytes, and had {size}"
        with open(path, "rb") as file:
            sha = hashlib.sha256()
            while chunk := file.read(1 << 20):
                sha.update(chunk)
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    same = base64.urlsafe_b64encode(sha.digest()).rstrip(b"=").decode() == digest.rstrip("=")
    return None if same else "its sha256 is not that of the wheel's RECORD"


def _lines(plugin: PluginCandidate, name: str) -> list[str]:
    if not plugin.info:
        return []
    try:
        return Path(plugin.info, name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return []


def vet_provider(provider: Any, plugin: PluginCandidate, policy: Policy) -> None:
    """Checks what a hook returned against the Provider contract, before any of its methods is called."""
    kind = type(provider).__name__
    for attribute, wanted in (("name", str), ("family", str), ("api_version", int)):
        value = getattr(provider, attribute, None)
        if not isinstance(value, wanted) or value == "":
            raise _no_provider(
                f"{kind}.{attribute} must be a {wanted.__name__}" + (", and not empty" if wanted is str else ""),
                "it is missing" if value is None else f"it is {value!r}",
                plugin,
            )
    version = provider.api_version
    if version != API_VERSION:
        raise _other_api(f"version {version}", version < API_VERSION, plugin, version)
    for method in ("native", "devices", "open"):
        if not callable(getattr(provider, method, None)):
            raise _no_provider(f"{kind} must have a method {method}()", "it has none", plugin)
    policy.refuse(provider.name, provider.family)


def _no_provider(expected: str, found: str, plugin: PluginCandidate) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"it returned something that is no Provider: {expected}; {found}",
        f"report it to the authors of {plugin.distribution}; the contract is hotshoe_core.device.Provider",
    )


# -- native libraries -------------------------------------------------------------------------------------


def vet_library(library: LibraryCandidate, policy: Policy, damaged: Mapping[str, str]) -> Binary:
    """Checks a native library by its name, its hash and its header."""
    policy.refuse(library.name, f"{library.backend}-{library.variant}", library.path.name, str(library.path))
    problem = damaged.get(os.path.realpath(library.path))
    again = "remove it, or reinstall what brought it"
    try:
        binary = read_binary(library.path)
    except BadLibrary as error:
        raise Rejected(Outcome.IMPORT_ERROR, str(error), again) from error
    except OSError as error:
        raise Rejected(
            Outcome.IMPORT_ERROR,
            f"{library.path} cannot be read: {error.strerror}",
            f"check its permissions: {library.path}",
        ) from error
    if not binary.fits:
        raise Rejected(Outcome.ABI_MISMATCH, f"it is {binary.misfit}", "install the build for this platform")
    if problem is not None:
        raise untrusted(library.path, problem, again)
    return binary


def vet_adoption(folder: Path, manifest: Manifest | None, plugin: PluginCandidate) -> None:
    """Refuses a foreign set of ggml libraries that this plugin's bindings were not tested with."""
    core = core_in(folder)
    if core is None:
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"ggml={str(folder)!r} names a folder without a libggml-base, so it is no whole set",
            "name the folder in which libggml-base and libggml-cpu… lie together",
        )
    abi = abi_of_core(core)
    ours = manifest.ggml if manifest else None
    if manifest is None or manifest.adopts is None or ours is None:
        reason = f"it does not say which versions of ggml it can adopt; {core} is {abi or 'of no known version'}"
        raise Rejected(Outcome.ABI_MISMATCH, reason, f"pip install --upgrade {plugin.distribution}")
    if abi is None or not (abi.matches(ours) or _between(abi.version, *manifest.adopts)):
        first, last = manifest.adopts
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"{core} is ggml {abi or 'of no known version'}; this plugin is built from {ours} and was tested with "
            f"{first} to {last}",
            f"leave ggml= out to use the plugin's own, or pip install --upgrade {plugin.distribution}",
        )


def _between(version: str, first: str, last: str) -> bool:
    try:
        number, low, high = (tuple(map(int, each.split("."))) for each in (version, first, last))
    except ValueError:
        return False
    return low <= number <= high


def vet_abi(library: LibraryCandidate, core: Path, abi: Abi | None) -> None:
    """Refuses a library of another ggml than ``core``, which is of ``abi``; None where nothing says what it is."""
    if abi is None:
        return
    other = abi_of_library(library.path, core)
    if other is None:
        raise Rejected(
            Outcome.UNTRUSTED,
            f"nothing says which ggml it was built from; {core} is ggml {abi}, and a library of another one crashes",
            f"put the libggml-base it was built with beside it, or a {FILE} that says its version: "
            f'{{"format": 1, "ggml": {{"version": "{abi.version}"}}}}',
        )
    if not other.matches(abi):
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"it was built from ggml {other}; {core} is ggml {abi}",
            f"install its build for ggml {abi.version}",
            ggml=str(other),
            core=str(abi),
        )
