"""hotshoe's ggml engine, and the CPU. Importing this package loads no native code.

From the bottom up; a level imports only lower ones (tests/test_architecture.py):

- ``native``: ggml's C API. ``abi``: the fingerprint of its headers. ``parallel``: threads for work in Python.
- ``lowering``: makes ggml's nodes from core's. ``memory``: buffers, layouts of weights, copying.
- ``unit``: an opened device, with ggml's own ops. ``weights``: loads weights, makes states.
- ``run``: compiled graphs. ``quirks``: workarounds for individual ggml libraries.
- ``cpu``: the CPU's unit with hotshoe's kernels. Only ``open_units`` imports it.
- ``open_units``, ``backend``, ``provider``: from devices to core's contract and the loader's hooks.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
