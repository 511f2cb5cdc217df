"""The generated module has no annotations; C objects are `Any` to the type checker."""

from typing import Any

ffi: Any
