"""hotshoe's ggml engine, and the CPU. Importing it loads no native code.

From the bottom up; a level imports only lower ones (tests/test_architecture.py):

- ``native``: ggml's C API. ``abi``: the fingerprint of its headers.
- ``lowering``: core's nodes to ggml's. ``memory``: buffers, layouts of weights, moving bytes.
- ``unit``: an opened device, by what ggml has. ``weights``: loading weights, making states.
- ``run``: compiled graphs. ``quirks``: what single libraries need in addition.
- ``cpu``: the CPU's unit with hotshoe's kernels. Only ``open_units`` imports it.
- ``open_units``, ``backend``, ``provider``: from devices to core's contract and the loader's hooks.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
