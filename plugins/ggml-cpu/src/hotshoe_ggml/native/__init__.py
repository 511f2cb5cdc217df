"""ggml's C API: its libraries, devices and contexts. Other plugins import from here.

Importing this opens no library: the functions do. ``libraries`` opens them, ``context`` has ggml's contexts and shapes,
``blocks`` converts block formats, ``log`` passes ggml's messages on.
"""

from hotshoe_ggml.native.libraries import (
    LIBRARY_DIR,
    PACKAGE_DIR,
    BackendLibrary,
    BuildInfo,
    DeviceFacts,
    NativeLibraryError,
    NothingToRunOnError,
    Variant,
    adopt,
    base_path,
    best_variant,
    build_info,
    device_facts,
    ffi,
    ggml_functions,
    is_connected,
    kernels,
    lib,
    library_of,
    load_backend,
    load_cpu,
    score,
    server,
    variants,
)

__all__ = [
    "LIBRARY_DIR", "PACKAGE_DIR", "BackendLibrary", "BuildInfo", "DeviceFacts", "NativeLibraryError",
    "NothingToRunOnError", "Variant", "adopt", "base_path", "best_variant", "build_info", "device_facts", "ffi",
    "ggml_functions", "is_connected", "kernels", "lib", "library_of", "load_backend", "load_cpu", "score", "server",
    "variants",
]  # fmt: skip
