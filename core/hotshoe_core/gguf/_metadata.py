"""Metadata: checked access to a file's metadata by key and type."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf._array import GGUFArray, LongString
from hotshoe_core.gguf._format import ValueType, quoted

__all__ = ["Metadata", "MetadataKeyError"]

T = TypeVar("T")
_TYPES = {
    bool: ValueType.BOOL,
    int: ValueType.UINT32,
    float: ValueType.FLOAT32,
    str: ValueType.STRING,
    list: ValueType.ARRAY,
    GGUFArray: ValueType.ARRAY,
}


class MetadataKeyError(ModelFileError, KeyError):
    """The metadata has no such key. Also a KeyError, because Metadata is a Mapping."""


class Metadata(Mapping[str, Any]):
    """A mapping from key to value, in file order: int, float, bool, str or GGUFArray.

    Read a value with ``require`` or ``get`` and pass its type: if the value has another type, they raise a
    ModelFileError that names the file, the key and what was found. ``arch`` gives the keys of the file's own
    architecture: ``metadata.arch.require("block_count", int)`` reads ``"bert.block_count"`` in a BERT's file.

    The metadata remember which keys were read, by any view of them: ``unread`` gives the others.
    """

    __slots__ = ("_path", "_prefix", "_read", "_types", "_values")

    def __init__(
        self,
        values: dict[str, Any],
        types: dict[str, ValueType],
        path: Path,
        prefix: str = "",
        read: set[str] | None = None,
    ) -> None:
        self._values = values
        self._types = types
        self._path = path
        self._prefix = prefix
        self._read: set[str] = set() if read is None else read

    @property
    def architecture(self) -> str:
        """``general.architecture``. Raises ModelFileError if it is missing or not a string."""
        return self._view("").require("general.architecture", str)

    @property
    def arch(self) -> Metadata:
        """The keys of the file's architecture, without its name.

        Raises ModelFileError if the architecture is missing.
        """
        return self._view(f"{self.architecture}.")

    def scope(self, prefix: str) -> Metadata:
        """The keys that begin with ``prefix`` and a dot, without that prefix. A view, not a copy."""
        return self._view(f"{self._prefix}{prefix}.")

    @property
    def unread(self) -> dict[str, Any]:
        """The keys of this view that no code has read yet, and their values, in file order.

        A key is read once code gets its value, or asks with ``in`` whether it is there.
        """
        n = len(self._prefix)
        keys = (k for k in self._values if k.startswith(self._prefix) and k not in self._read)
        return {k[n:]: _decoded(self._values[k]) for k in keys}

    def _view(self, prefix: str) -> Metadata:
        return Metadata(self._values, self._types, self._path, prefix, self._read)

    def changed(self, renamed: Mapping[str, str], values: Mapping[str, Any]) -> Metadata:
        """All keys, of which some have another name, and further ones. A value of None removes a key."""
        names = {key: renamed.get(key, key) for key in self._values if renamed.get(key, key) not in values}
        types = {name: self._types[key] for key, name in names.items()}
        found = {name: self._values[key] for key, name in names.items()}
        for key, value in values.items():
            if value is not None:
                found[key], types[key] = value, _TYPES[value.__class__]
        return Metadata(found, types, self._path)

    def require(self, key: str, type: type[T]) -> T:
        """The value as int, float (also from an int), bool, str, GGUFArray or list.

        Raises MetadataKeyError if the key is missing, ModelFileError if the value has another type.
        """
        return self._as(key, self[key], type)

    @overload
    def get(self, key: str) -> Any: ...
    @overload
    def get(self, key: str, default: T) -> T: ...
    @overload
    def get(self, key: str, default: None, type: type[T]) -> T | None: ...
    def get(self, key: str, default: Any = None, type: Any = None) -> Any:
        """The value, or ``default`` if the key is missing. Its type must be ``type``, or the type of the default.

        Raises ModelFileError if the value has another type.
        """
        if self._prefix + key not in self._values:
            return default
        expected = type if type is not None or default is None else default.__class__
        return self[key] if expected is None else self._as(key, self[key], expected)

    def per_layer(self, key: str, n_layers: int, type: type[T], default: T | None = None) -> list[T]:
        """One value for each layer, from a key that holds one value for all layers or an array of ``n_layers`` values.

        Raises ModelFileError if the key is missing and there is no default, or if the array has another length.
        """
        if default is not None and key not in self:
            return [default] * n_layers
        value = self[key]
        if not isinstance(value, (GGUFArray, list)):
            return [self._as(key, value, type)] * n_layers
        if len(value) != n_layers:
            raise self.error(key, f"an array of {len(value)} values; expected {n_layers}, one for each layer")
        return [self._as(f"{key}[{i}]", v, type) for i, v in enumerate(value)]

    def value_type(self, key: str) -> ValueType:
        """The type of the value in the file; ValueType.ARRAY for any array. Raises MetadataKeyError."""
        try:
            return self._types[self._prefix + key]
        except KeyError:
            raise self._missing(key) from None

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise self._missing(key)
        return _decoded(self._values[self._prefix + key])

    def __contains__(self, key: object) -> bool:
        found = isinstance(key, str) and self._prefix + key in self._values
        if found:
            self._read.add(f"{self._prefix}{key}")
        return found

    def __iter__(self) -> Iterator[str]:
        n = len(self._prefix)
        return (k[n:] for k in self._values if k.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(k.startswith(self._prefix) for k in self._values)

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys{f' {self._prefix}*' if self._prefix else ''} in {str(self._path)!r}>"

    def _as(self, key: str, value: Any, expected: type[T]) -> T:
        found = value.__class__
        if expected is found:
            return cast(T, value)
        if expected is float and found is int:
            return cast(T, float(value))
        if expected is list and found is GGUFArray:
            return cast(T, value.tolist())
        if expected not in (int, float, bool, str, list, GGUFArray):
            raise TypeError(f"metadata values are int, float, bool, str, list or GGUFArray, not {expected.__name__}")
        shown = repr(value) if found is not str else quoted(value)
        raise self.error(key, f"found {shown} of type {found.__name__}; expected {expected.__name__}")

    def error(self, key: str, message: str, hint: str | None = None) -> ModelFileError:
        """A ModelFileError for an invalid value; it names the file and the key. The caller raises it."""
        return ModelFileError(message, path=self._path, field=f"key {quoted(self._prefix + key)}", hint=hint)

    def _missing(self, key: str) -> MetadataKeyError:
        # Compare without the common prefix, which would make every key look similar.
        known = [k for k in islice(self, 1000) if len(k) <= 200]
        if near := difflib.get_close_matches(key, known, n=1):
            hint = f"did you mean {quoted(self._prefix + near[0])}?"
        elif self._prefix and key in self._values:
            hint = f"the file has {quoted(key)}, without the prefix {quoted(self._prefix)}"
        elif self._prefix and not known:
            hint = f"the file has no key that begins with {quoted(self._prefix)}"
        else:
            hint = "hotshoe inspect lists the file's contents"
        field = f"key {quoted(self._prefix + key)}"
        return MetadataKeyError("the metadata has no such key", path=self._path, field=field, hint=hint)


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, LongString) else value
