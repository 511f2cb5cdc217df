"""Opens ggml's native libraries: the base once in each process, backends by path.

ggml's own registry (`libggml`) is not used: it searches the interpreter's directory and the current one. A backend
library exports `ggml_backend_init` and perhaps `ggml_backend_score`; these two and the base are sufficient. Libraries
are never closed: a ggml backend that was closed crashes later.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe_core.contract.device import Device
from hotshoe_core.contract.host_memory import host_memory
from hotshoe_core.contract.mapped_libraries import is_same_file, mapped_libraries
from hotshoe_core.errors import NativeError
from hotshoe_core.errors.install import pip_build, pip_install
from hotshoe_ggml._gen_ffi import ffi
from hotshoe_ggml.native import log

__all__ = [
    "LIBRARY_DIR",
    "PACKAGE_DIR",
    "BackendLibrary",
    "BuildInfo",
    "DeviceFacts",
    "NativeLibraryError",
    "NothingToRunOnError",
    "Variant",
    "adopt",
    "base_path",
    "best_variant",
    "build_info",
    "device_facts",
    "ffi",
    "ggml_functions",
    "is_connected",
    "kernels",
    "lib",
    "library_of",
    "load_backend",
    "load_cpu",
    "score",
    "server",
    "variants",
]

PACKAGE_DIR = Path(__file__).resolve().parents[1]
LIBRARY_DIR = PACKAGE_DIR / "lib"

_lock = threading.RLock()


def _new_lock() -> None:
    """Replace the lock in a forked child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.RLock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_new_lock)


class NativeLibraryError(NativeError, ImportError):
    """A native library cannot be used. The message says which, why, and what to do."""


class NothingToRunOnError(NativeLibraryError):
    """A library was opened, but found no driver or no device."""


class BuildInfo(NamedTuple):
    """The contents of `_build_info.json`: what the build recorded about the libraries of this package."""

    ggml_version: str
    backend_api_version: int
    abi_fingerprint: str
    variants: tuple[str, ...]
    openmp: bool
    compiler: str
    system: str
    llama_cpp_commit: str | None = None


class Variant(NamedTuple):
    """One CPU library of this installation."""

    name: str
    path: Path


class DeviceFacts(NamedTuple):
    """What a ggml device reports about itself. Memory is in bytes."""

    pointer: Any  # ggml_backend_dev_t
    name: str
    description: str
    type: int  # GGML_BACKEND_DEVICE_TYPE_*
    device_id: str | None  # PCI id, if the device has one
    memory_free: int
    memory_total: int
    host_buffer: bool
    buffer_from_host_ptr: bool
    asynchronous: bool


@functools.cache
def build_info() -> BuildInfo:
    """The metadata of this installation's build. Opens no library. Raises NativeLibraryError if it was not built."""
    path = PACKAGE_DIR / "_build_info.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NativeLibraryError(
            f"hotshoe-ggml-cpu was not built: {path} is missing. Import it from where pip installed it, "
            f"not from the source folder; `{pip_install('hotshoe-ggml-cpu')}` builds it."
        ) from None
    fields["variants"] = tuple(fields["variants"])
    return BuildInfo(**fields)


def _file_name(stem: str) -> str:
    """The file name, on this platform, of a library such as "ggml-cpu-x64"."""
    if sys.platform == "win32":
        return f"{stem}.dll"
    # for modules, which are opened and never linked to, CMake uses ".so" on macOS too
    return f"lib{stem}.so"


_adopted: Path | None = None


def adopt(folder: Path) -> None:
    """Use the libggml-base in ``folder`` from now on instead of this package's. The loader compares their versions.

    Raises NativeLibraryError if the folder has no libggml-base, or this process has opened another one already.
    """
    global _adopted
    names = re.compile(r"(lib)?ggml-base(\.\d+)*\.(so(\.\d+)*|dylib|dll)")
    found = sorted((p for p in folder.iterdir() if names.fullmatch(p.name)), key=lambda p: (len(p.name), p.name))
    if not found:
        raise NativeLibraryError(f"{folder} has no libggml-base. Name a folder with a complete set of ggml libraries.")
    if _open_base.cache_info().currsize and base_path() != found[0]:
        raise NativeLibraryError(
            f"{base_path()} is open in this process already, so {found[0]} cannot be used. Call load_all(ggml=...) "
            "before you open a backend."
        )
    _adopted = found[0]


def base_path() -> Path:
    """The path of this process's libggml-base: an adopted one, or that of this package."""
    if _adopted is not None:
        return _adopted
    names = {"win32": "ggml-base.dll", "darwin": "libggml-base.0.dylib"}
    return LIBRARY_DIR / names.get(sys.platform, "libggml-base.so.0")


@functools.cache  # cffi closes a library without references, and a closed ggml backend crashes later
def _open(path: Path) -> Any:
    if not path.is_file():
        raise NativeLibraryError(
            f"{path} is missing from the installation of hotshoe-ggml-cpu. Reinstall it: "
            f"`{pip_install('hotshoe-ggml-cpu', '--force-reinstall --no-deps')}`."
        )
    # RTLD_LOCAL, not GLOBAL: a backend names libggml-base as its dependency, and the linker finds the open one by its
    # SONAME; global symbols would also capture the calls of any other ggml that is loaded later.
    # RTLD_NODELETE: cffi closes libraries at exit, while threads of a pool may still run in them.
    flags = 0 if sys.platform == "win32" else os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_NODELETE
    try:
        return ffi.dlopen(str(path), flags)
    except OSError as error:
        raise NativeLibraryError(
            f"{path.name} could not be opened: {error}. If it names a missing library, install that; "
            "`hotshoe doctor` shows every backend's state."
        ) from error


@functools.cache
def _open_base() -> Any:
    with _lock:
        _refuse_foreign_base()
        base = _open(base_path())
        found, expected = ffi.string(base.ggml_version()).decode(), build_info().ggml_version
        if found != expected and _adopted is None:
            raise NativeLibraryError(
                f"{base_path()} is ggml {found}, but this installation was built with {expected}. "
                "Another package overwrote it: reinstall hotshoe-ggml-cpu."
            )
        log.install(base, kernels())
        base.ggml_time_init()
        return base


def lib() -> Any:
    """libggml-base, opened at the first call.

    Raises NativeLibraryError if another ggml is loaded in this process, or the installation is damaged.
    """
    return _open_base()


@functools.cache
def kernels() -> Any:
    """hotshoe's own kernels, `libhotshoe_kernels`. They need no open ggml library."""
    return _open(LIBRARY_DIR / _file_name("hotshoe_kernels"))


@functools.cache
def ggml_functions() -> Any:
    """The functions of libggml-base that our native code calls: a ``struct hotshoe_ggml *``."""
    g = lib()
    table = ffi.new("struct hotshoe_ggml *")
    for name, _ in ffi.typeof("struct hotshoe_ggml").fields:
        prefix = "ggml_" if name.startswith(("gallocr_", "nbytes", "build_")) else "ggml_backend_"
        setattr(table, name, ffi.addressof(g, prefix + name))
    return table


def _refuse_foreign_base() -> None:
    # every ggml 0.x names its base library libggml-base.so.0: structs of two versions would meet in one call
    foreign = [path for path in mapped_libraries("ggml-base") if not is_same_file(path, base_path())]
    if foreign:
        raise NativeLibraryError(
            f"another ggml is already loaded in this process: {', '.join(foreign)}. Its libggml-base has the same "
            f"name as hotshoe's ({base_path()}), so our backends would call into it. Import hotshoe first, or use "
            "the other package (llama-cpp-python, whisper bindings, ...) in another process."
        )


def variants() -> tuple[Variant, ...]:
    """The CPU libraries of the set in use; of this installation's, the baseline is first. Opens no library."""
    if _adopted is not None:
        names = re.compile(r"(?:lib)?ggml-cpu(?:-(.+))?\.(?:so|dylib|dll)")
        found = [(names.fullmatch(path.name), path) for path in _adopted.parent.iterdir()]
        return tuple(sorted(Variant(match[1] or "", path) for match, path in found if match))
    return tuple(Variant(name, LIBRARY_DIR / _file_name(f"ggml-cpu-{name}")) for name in build_info().variants)


def score(path: Path) -> int:
    """The score that the backend library at ``path`` gives itself for this machine. 0: it cannot run here.

    A library without `ggml_backend_score` scores 1: only libraries that come in variants have that function.
    """
    lib()
    try:
        function = _open(path).ggml_backend_score
    except ffi.error:
        return 1
    return int(function())


def best_variant() -> Variant:
    """The CPU library with the best score on this machine.

    Raises NativeLibraryError if none of the installed libraries runs here.
    """
    scored = [(score(variant.path), variant) for variant in variants()]
    best, variant = max(scored, key=lambda pair: pair[0])
    if best <= 0:
        names = ", ".join(variant.name for _, variant in scored)
        raise NativeLibraryError(
            f"none of the installed CPU variants ({names}) runs on this machine. Build one that does: "
            f"`{pip_build('hotshoe-ggml-cpu')}`."
        )
    return variant


class BackendLibrary:
    """An open backend library: its registration and its devices. endpoint: the devices' server, if any."""

    __slots__ = ("_functions", "endpoint", "handle", "kind", "name", "path", "registration")

    def __init__(self, path: Path, handle: Any, registration: Any, endpoint: str = "") -> None:
        self.path = path
        self.handle = handle
        self.registration = registration  # ggml_backend_reg_t
        self.name = _text(lib().ggml_backend_reg_name(registration)) or path.name
        self.kind = self.name.partition("[")[0]  # RPC's name contains the server's address
        self.endpoint = endpoint
        self._functions: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"BackendLibrary({self.name!r}, {str(self.path)!r})"

    def devices(self) -> list[DeviceFacts]:
        """The devices of this library, with their current free memory."""
        base = lib()
        count = base.ggml_backend_reg_dev_count(self.registration)
        return [device_facts(base.ggml_backend_reg_dev_get(self.registration, i)) for i in range(count)]

    def function(self, name: str, ctype: str) -> Any | None:
        """The extra function ``name`` as a C function of type ``ctype``, or None if the backend lacks it."""
        if name not in self._functions:
            address = lib().ggml_backend_reg_get_proc_address(self.registration, name.encode())
            self._functions[name] = ffi.cast(ctype, address) if address != ffi.NULL else None
        return self._functions[name]

    def failures(self, device: str = "") -> tuple[int, str] | None:
        """How often a device, by ggml's name, or its server was lost, and why the last time.

        Without a name: why the library has no device. None if the library cannot lose devices. ggml's interface has no
        such call: libraries that can lose devices export a function that hotshoe added.
        """
        ask = self.function("hotshoe_backend_failure", "const char *(*)(const char *, uint64_t *)")
        if ask is None:
            return None
        count = ffi.new("uint64_t *")
        why = _text(ask((self.endpoint or device).encode(), count))
        return int(count[0]), why or ""

    def extra_buffer_types(self, device: Any) -> list[Any]:
        """Buffer types in addition to the default one, such as CPU_REPACK (weights laid out for this CPU)."""
        get = self.function("ggml_backend_dev_get_extra_bufts", "ggml_backend_dev_get_extra_bufts_t")
        listed = get(device) if get is not None else ffi.NULL
        found: list[Any] = []
        while listed != ffi.NULL and listed[len(found)] != ffi.NULL:
            found.append(listed[len(found)])
        return found

    def features(self) -> dict[str, str]:
        """The compile-time features of this library, such as {"AVX512": "1"}."""
        get = self.function("ggml_backend_get_features", "ggml_backend_get_features_t")
        listed = get(self.registration) if get is not None else ffi.NULL
        found: dict[str, str] = {}
        while listed != ffi.NULL and listed.name != ffi.NULL:
            found[_text(listed.name) or ""] = _text(listed.value) or ""
            listed += 1
        return found


def device_facts(device: Any) -> DeviceFacts:
    """The properties of a `ggml_backend_dev_t`. The CPU's memory is from ``host_memory``: ggml reports all as free."""
    # 256 bytes more: a library of another version clears its own sizeof(props), which may be larger
    memory = ffi.new("char[]", ffi.sizeof("struct ggml_backend_dev_props") + 256)
    props = ffi.cast("struct ggml_backend_dev_props *", memory)
    lib().ggml_backend_dev_get_props(device, props)
    total, free = int(props.memory_total), int(props.memory_free)
    if props.type == lib().GGML_BACKEND_DEVICE_TYPE_CPU:
        total, free = host_memory() or (total, free)
    return DeviceFacts(
        pointer=device,
        name=_text(props.name) or "",
        description=(_text(props.description) or "").strip(),
        type=int(props.type),
        device_id=_text(props.device_id),
        memory_free=free,
        memory_total=total,
        host_buffer=bool(props.caps.host_buffer),
        buffer_from_host_ptr=bool(props.caps.buffer_from_host_ptr),
        asynchronous=bool(getattr(props.caps, "async")),
    )


def _text(pointer: Any) -> str | None:
    return None if pointer == ffi.NULL else str(ffi.string(pointer).decode("utf-8", "replace"))


_loaded: dict[Path, BackendLibrary] = {}


def load_backend(path: str | os.PathLike[str]) -> BackendLibrary:
    """Open the backend library at ``path``. Further calls return the same object.

    Raises NativeLibraryError if the file is missing, is not a dynamic ggml backend, or has another API version;
    NothingToRunOnError if it finds no driver or no device.
    """
    resolved = Path(path).resolve()
    with _lock:
        if resolved in _loaded:
            return _loaded[resolved]
        lib()
        log.follow_level()
        _refuse_foreign_base()  # one may have been loaded since the base was opened
        handle = _open(resolved)
        registration = _registration(resolved, handle)()
        if registration == ffi.NULL:
            raise NothingToRunOnError(f"{resolved}: ggml_backend_init found nothing to run on (no driver, no device)")
        version, expected = int(registration.api_version), build_info().backend_api_version
        if version != expected:
            raise NativeLibraryError(
                f"{resolved} has version {version} of ggml's backend interface; expected {expected}. "
                "Install a build of it for this version of hotshoe-ggml-cpu."
            )
        _loaded[resolved] = BackendLibrary(resolved, handle, registration)
        log.raise_pending()
        return _loaded[resolved]


_PREFIXES = {"vulkan": "vk", "hip": "cuda", "musa": "cuda"}  # the last two are ggml's code for CUDA


def _registration(path: Path, handle: Any) -> Any:
    """The function of a backend library that returns its registration. Raises NativeLibraryError if it has none."""
    try:
        return handle.ggml_backend_init
    except ffi.error:
        pass
    # a library built to be linked, without GGML_BACKEND_DL, such as those of llama-cpp-python
    backend = re.sub(r"^(lib)?ggml-|[-.].*$", "", path.name)
    name = f"ggml_backend_{_PREFIXES.get(backend, backend)}_reg"
    try:
        address = ctypes.cast(getattr(ctypes.CDLL(str(path)), name), ctypes.c_void_p).value
    except AttributeError:
        raise NativeLibraryError(
            f"{path} is not a ggml backend: it does not export ggml_backend_init or {name}. "
            "Build it with GGML_BACKEND_DL=ON."
        ) from None
    return ffi.cast("ggml_backend_init_t", address)


_servers: dict[str, BackendLibrary] = {}


def server(path: Path, endpoint: str) -> BackendLibrary:
    """The devices of an RPC server at ``host:port``, as a library. path: of ggml's RPC library.

    Raises NativeLibraryError if no server answers there, or it has another version of the protocol.
    """
    with _lock:
        if endpoint not in _servers:
            library = load_backend(path)
            add = library.function("ggml_backend_rpc_add_server", "ggml_backend_reg_t (*)(const char *)")
            registration = ffi.NULL if add is None else add(endpoint.encode())
            if registration == ffi.NULL:
                failed = BackendLibrary(path, library.handle, library.registration, endpoint).failures()
                why = failed[1] if failed else ""
                why = why or "its answer is invalid: is its ggml the same version?"
                raise NativeLibraryError(f"the RPC server at {endpoint} cannot be used: {why}")
            _servers[endpoint] = BackendLibrary(path, library.handle, registration, endpoint)
        return _servers[endpoint]


def is_connected(endpoint: str) -> bool:
    """Whether this process has used the RPC server at ``host:port``."""
    return endpoint in _servers


def library_of(device: Device) -> BackendLibrary:
    """The open library of a device, or its server if the device is on another machine."""
    assert device.library is not None
    endpoint = device.properties.get("endpoint")
    return load_backend(device.library) if endpoint is None else server(device.library, str(endpoint))


def load_cpu(variant: str | None = None) -> BackendLibrary:
    """Open the CPU library ``variant``, by default the one with the best score on this machine.

    Raises NativeLibraryError if this variant is not installed, or cannot run on this machine.
    """
    if variant is None:
        return load_backend(best_variant().path)
    known = {candidate.name: candidate.path for candidate in variants()}
    if variant not in known:
        raise NativeLibraryError(
            f"CPU variant {variant!r} is not installed; installed: {', '.join(known)}. Build it: "
            f"`HOTSHOE_GGML_VARIANTS={','.join([*known, variant])} {pip_build('hotshoe-ggml-cpu')}`."
        )
    if score(known[variant]) <= 0:
        raise NativeLibraryError(
            f"CPU variant {variant!r} needs instructions that this machine lacks; use {best_variant().name}."
        )
    return load_backend(known[variant])
